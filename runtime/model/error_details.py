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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count, dropwhile
from types import FrameType
from typing import Self, TypeVar

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
_PATH = re.compile(r"\$(?:\.[^.\[\]]+|\[\d+\])*")
"""A path to one value. `[...]` is any entry of a list or of a dict, and does not say which."""
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")
_NAMED = ("properties", "patternProperties", "dependentSchemas", "dependencies")
"""Keywords of JSON Schema after which a path has a name that the schema's author chose, which may be a keyword too."""
_ENTRIES = (
    "patternProperties",
    "additionalProperties",
    "unevaluatedProperties",
    "items",
    "prefixItems",
    "additionalItems",
    "unevaluatedItems",
)
"""Keywords of JSON Schema that lead to any entry."""
_ANY = object()
_SPACE = re.compile(r"[ \t\n\r]*")
_BYTE = re.compile(r"\(byte (\d+)\)$")
_OTHER_SIZE = re.compile(r"^unpack requires a buffer of (\d+) bytes$")
_STANDARD_LIBRARY = (*(os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "platstdlib")), "<frozen ")
_INSTALLED = tuple(f"{os.sep}{folder}{os.sep}" for folder in ("site-packages", "dist-packages"))

E = TypeVar("E", bound=BaseException)
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


class Place(str):
    """Note on a serde's exception: field and byte of `data` at which it could not be read, as in ErrorDetails."""

    __slots__ = ("byte", "data", "field")

    byte: int | None
    data: bytes
    field: str | None

    def __new__(cls, data: bytes, byte: int | None, field: str | None = None) -> Self:
        at = f" at `{field}`" if field else ""
        place = super().__new__(cls, f"unreadable{at}" if byte is None else f"unreadable{at} (byte {byte})")
        place.data, place.byte, place.field = data, byte, field
        return place

    def __reduce__(self) -> tuple[type[Place], tuple[bytes, int | None, str | None]]:
        return Place, (self.data, self.byte, self.field)


def with_place(error: E, data: bytes, byte: int | None, field: str | None = None) -> E:
    """Return the exception of a serde with the note that it could not read `data` at this byte or field."""
    error.add_note(Place(data, byte, field))
    return error


def note_place_in(data: bytes, start: int, part: bytes, error: BaseException, step: str = "") -> None:
    """Note on the exception of the serde that read `part`, which begins at `start` in `data`, where in `data` it failed. `step`: the part
    as a step of the field's path."""
    field, byte = position(error, part)
    path = f"${step}{field[1:] if field else ''}" if step or field else None
    if (path is not None or byte is not None) and _notes(error) is not None:
        with_place(error, data, None if byte is None else start + byte, path)


def _notes(error: BaseException) -> list[object] | None:
    """Return the notes on an exception; None for a class that has made something else of them."""
    try:
        notes: object = getattr(error, "__notes__", [])
    except Exception:  # noqa: BLE001 (a property of the application's exception may raise anything)
        return None
    return notes if isinstance(notes, list) else None


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
        field, byte = position(cause, (key if part == "key" else value) or b"")
    elif isinstance(error, SerializationError):
        serde, part = error.serde, "key" if error.is_key else "value"
        field, _ = position(cause, b"")
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


def position(error: BaseException, raw: bytes) -> tuple[str | None, int | None]:
    """Return the field and the byte in `raw` at which a serde failed, as far as its error, or one that led to it, says."""
    field: str | None = None
    byte: int | None = None
    chain = _chain(error)
    for place in (note for each in chain for note in reversed(_notes(each) or []) if isinstance(note, Place)):
        return place.field, None if place.byte is None else _byte_in(raw, place.data, place.byte)  # a serde around it may have removed some
    for each in chain:
        if isinstance(each, UnicodeDecodeError):
            byte = _byte_in(raw, each.object, each.start)
        elif isinstance(each, json.JSONDecodeError):
            before, after = (part.encode(errors="surrogatepass") for part in (each.doc[: each.pos], each.doc[each.pos :]))
            byte = _byte_in(raw, before + after, len(before))
        elif type(each) in (msgspec.DecodeError, msgspec.ValidationError):
            text = text_of(each)
            at, path = _BYTE.search(text), _FIELD.search(text)
            field = path[1] if path else field
            if at or text == "Input data was truncated":
                byte = int(at[1]) if at else len(raw)
            elif "at `key` in" not in text and _PATH.fullmatch(field or "$"):
                byte = _byte_of_value(raw, [name or int(index) for name, index in _STEP.findall(field or "")])
            if missing := _MISSING_FIELD.search(text):
                field = f"{field or '$'}.{missing[1]}"
        elif isinstance(each, struct.error):  # of a number, after or before which the bytes end
            size = _OTHER_SIZE.search(text_of(each))
            byte = min(int(size[1]), len(raw)) if size else byte
        elif (found := _place_of_schema(each, raw)) is not None:
            field, byte = found
    return field, byte


def _byte_in(raw: bytes, part: bytes, at: int) -> int | None:
    """Return the index in `raw` of index `at` in a part of it; None if it is not a part of it, but decoded from it."""
    start = len(raw) - len(part) if raw.endswith(part) else raw.find(part)
    return None if start < 0 else start + at


def _byte_of_value(raw: bytes, path: Iterable[object], value: object = _ANY) -> int | None:
    """Return the index at which the value of this path of names and indices begins in JSON; None if it is not there once, or is not
    `value`."""
    try:
        text = raw.decode()
        json.loads(text)
        at = _after_space(text, 0)
        for step in path:
            [at] = [start for name, start in _members(text, at) if name == step]
        found: object = json.JSONDecoder().raw_decode(text, at)[0]
    except (ValueError, RecursionError):  # the bytes are not JSON, or the name is not there just once: nothing is known
        return None
    return len(text[:at].encode()) if value is _ANY or found == value else None


def _members(text: str, at: int) -> Iterator[tuple[object, int]]:
    """Yield name or index and start of each value of the JSON object or array at this index; nothing if another value is there."""
    read = json.JSONDecoder().raw_decode
    is_object, first = text[at] == "{", _after_space(text, at + 1)
    more = text[at] in "{[" and text[first] not in "}]"
    for index in count():
        if not more:
            return
        at = _after_space(text, at + 1)
        name: object = index
        if is_object:
            name, at = read(text, at)
            at = _after_space(text, _after_space(text, at) + 1)
        yield name, at
        at = _after_space(text, read(text, at)[1])
        more = text[at] == ","


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _place_of_schema(error: BaseException, raw: bytes) -> tuple[str | None, int | None] | None:
    """Return the place of a jsonschema error; None for another one. Its path in the data may have keys of the record, so the field is named
    by the path in the schema."""
    path, schema_path = (getattr(error, name, None) for name in ("absolute_path", "absolute_schema_path"))
    if not isinstance(path, Iterable) or not isinstance(schema_path, Iterable):
        return None
    path, steps, fields = list(path), iter(schema_path), list[str]()
    for step in steps:
        name = next(steps, None) if step in _NAMED else None
        if step == "properties":
            fields.append(f".{name}")
        elif step in _ENTRIES:
            fields.append("[...]")
    byte = _byte_of_value(raw, path, getattr(error, "instance", None))
    if len(fields) < len(path):  # by a keyword that is not known here
        return None, byte
    if missing := _MISSING_PROPERTY.search(str(getattr(error, "message", ""))):
        path, fields = [*path, missing[1]], [*fields[: len(path)], f".{missing[1]}"]
    return writable("".join(["$", *fields[: len(path)]])), byte
