"""Place and cause of a failure in application code or in a serde, without content of the record.

An exception's text may quote the record, so it is kept apart (`text_of`). The stack here has files, lines, functions, lines of the program
and types of exceptions, but no text of an exception. A field is named as the program or the schema declares it, never by a key of the data.
"""

from __future__ import annotations

import json
import os
import re
import struct
import sysconfig
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import dropwhile
from types import FrameType

import msgspec

from penstock.runtime.model.call_sites import is_ours
from penstock.runtime.model.errors import DeserializationError, ProcessingError, SerializationError
from penstock.runtime.model.user_errors import text_of, writable

MOST_STACK = 8_000
"""Largest length of a stack, in characters."""
_MOST_ERRORS = 4
_FIRST, _LAST = 6, 12
"""Number of frames of an exception that are kept at the beginning, which is the application's, and at the end of a longer stack."""
_FIELD = re.compile(r" - at (?:`key` in )?`(\$[^`]{0,200})`$")
_MISSING_FIELD = re.compile(r"^Object missing required field `([^`]{0,200})`")
_MISSING_PROPERTY = re.compile(r"^'([^']{0,200})' is a required property$")
_BYTE = re.compile(r"\(byte (\d+)\)$")
_OTHER_SIZE = re.compile(r"^unpack requires a buffer of (\d+) bytes$")
_STANDARD_LIBRARY = (*(os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "platstdlib")), "<frozen ")
_INSTALLED = tuple(f"{os.sep}{folder}{os.sep}" for folder in ("site-packages", "dist-packages"))

_Frame = tuple[FrameType, int]


@dataclass(frozen=True, slots=True)
class ErrorDetails:
    """Place and cause of a failure, without content of the record.

    `location`: file, line and function of the application's innermost frame, or of the library that Penstock called; None if only Penstock
    and C code ran. `stack`: bounded, oldest exception first, each with its type as the last line. `part`: `key` or `value`, which `serde`
    could not read or write. `field`: path of the value's field (`$.a.b`), `byte`: position in the bytes from 0; each as far as the serde's
    error says it.
    """

    location: str | None
    stack: str
    node: str | None = None
    serde: str | None = None
    part: str | None = None
    field: str | None = None
    byte: int | None = None


def cause_of(error: BaseException) -> BaseException:
    """Return the exception of the application's code that an error of the engine wraps, or the error itself."""
    wraps = isinstance(error, (DeserializationError, ProcessingError, SerializationError))
    return error.__cause__ if wraps and error.__cause__ is not None else error


def details_of(error: BaseException, key: bytes | None, value: bytes | None, node: str | None = None) -> ErrorDetails:
    """Return the details of an error about a record with this raw key and value. `node`: the node, if the error does not name it."""
    cause = cause_of(error)
    serde = part = field = byte = None
    if isinstance(error, DeserializationError):
        node, serde, part = error.node or node, error.serde, error.part
        field, byte = _position(cause, (key if part == "key" else value) or b"")
    elif isinstance(error, SerializationError):
        serde, part = error.serde, "key" if error.is_key else "value"
        field, _ = _position(cause, b"")
    elif isinstance(error, ProcessingError):
        node = error.node_label or node
    chain = _chain(cause)
    frames = [_outside(each) for each in chain]
    location = next((found for of_error in frames if (found := _location(of_error))), None)
    return ErrorDetails(location, _stack(chain, frames), node, serde, part, field, byte)


def at_line(error: BaseException) -> str:
    """Return `ErrorDetails.location` for a message, `, at topology.py:31 in build.<locals>.<lambda>`; empty if there is none."""
    location = _location(list(traceback.walk_tb(error.__traceback__)))
    return f", at {location}" if location else ""


def _chain(error: BaseException) -> list[BaseException]:
    """Return the error and those that led to it, at most `_MOST_ERRORS`."""
    chain: list[BaseException] = []
    found: BaseException | None = error
    while found is not None and not any(found is each for each in chain) and len(chain) < _MOST_ERRORS:
        chain.append(found)
        found = found.__cause__ or (None if found.__suppress_context__ else found.__context__)
    return chain


def _outside(error: BaseException) -> list[_Frame]:
    """Return the frames from the first one outside Penstock; all of them if there is none."""
    frames = list(traceback.walk_tb(error.__traceback__))
    return list(dropwhile(lambda frame: is_ours(_file(frame)), frames)) or frames


def _file(frame: _Frame) -> str:
    return frame[0].f_code.co_filename


def _of_library(file: str) -> bool:
    return file.startswith(_STANDARD_LIBRARY) or any(folder in file for folder in _INSTALLED)


def _location(frames: list[_Frame]) -> str | None:
    outside = [frame for frame in frames if not is_ours(_file(frame))]
    own = [frame for frame in outside if not _of_library(_file(frame))]
    if not outside:
        return None
    frame, line = own[-1] if own else outside[0]
    return writable(f"{frame.f_code.co_filename}:{line} in {frame.f_code.co_qualname}")


def _stack(chain: list[BaseException], frames: list[list[_Frame]]) -> str:
    parts: list[str] = []
    for error, of_error in zip(chain, frames, strict=True):
        kind = type(error)
        name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        parts.append("".join([*_formatted(of_error), name]))
    return writable("\n\nwhich led to:\n\n".join(reversed(parts)))[-MOST_STACK:]


def _formatted(frames: list[_Frame]) -> Iterable[str]:
    if len(frames) <= _FIRST + _LAST:
        return traceback.StackSummary.extract(iter(frames)).format()
    first, last = (traceback.StackSummary.extract(iter(some)).format() for some in (frames[:_FIRST], frames[-_LAST:]))
    return [*first, f"  … {len(frames) - _FIRST - _LAST} frames\n", *last]


def _position(error: BaseException, raw: bytes) -> tuple[str | None, int | None]:
    """Return the field and the byte at which a serde failed, as far as its error, or one that led to it, says."""
    field: str | None = None
    byte: int | None = None
    for each in _chain(error):
        if isinstance(each, UnicodeDecodeError):
            byte = max(0, raw.find(each.object)) + each.start
        elif isinstance(each, json.JSONDecodeError):
            byte = max(0, raw.find(each.doc.encode(errors="surrogatepass"))) + len(each.doc[: each.pos].encode(errors="surrogatepass"))
        elif type(each) in (msgspec.DecodeError, msgspec.ValidationError):
            text = text_of(each)
            at, path = _BYTE.search(text), _FIELD.search(text)
            byte = int(at[1]) if at else len(raw) if text == "Input data was truncated" else byte
            field = path[1] if path else field
            if missing := _MISSING_FIELD.search(text):
                field = f"{field or '$'}.{missing[1]}"
        elif isinstance(each, struct.error):  # of a number, after or before which the bytes end
            size = _OTHER_SIZE.search(text_of(each))
            byte = min(int(size[1]), len(raw)) if size else byte
        else:
            field = _of_schema(each) or field
    return field, byte


def _of_schema(error: BaseException) -> str | None:
    """Return the field of a jsonschema error from the path in its schema: the path in the data has keys of the record."""
    path: object = getattr(error, "absolute_schema_path", None)
    if not isinstance(path, Iterable):
        return None
    steps, field = iter(path), "$"
    for step in steps:
        if step == "properties":
            field += f".{next(steps, '')}"
        elif step in ("items", "prefixItems", "additionalProperties", "patternProperties"):
            field += "[...]"
    if missing := _MISSING_PROPERTY.search(str(getattr(error, "message", ""))):
        field += f".{missing[1]}"
    return writable(field)
