"""Range of keys, given as text, over keys in bytes.

The encodings of strings sort like the strings, so RocksDB seeks the range. Those of numbers sort like the numbers only within one sign; if
a range contains both signs, all keys are read and compared as numbers. Both ends are inclusive, like those of a store's `range`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T

from penstock.assets.spark.types.serde_formats import Format
from penstock.runtime.stores.rows import StoreRows

_LAYOUTS = {"SHORT": ">h", "INTEGER": ">i", "LONG": ">q", "FLOAT": ">f", "DOUBLE": ">d"}
_WHOLE = ("SHORT", "INTEGER", "LONG")
_PARSERS: dict[type[T.DataType], Callable[[str], object]] = {
    T.StringType: str,
    T.LongType: int,
    T.DoubleType: float,
}


@dataclass(frozen=True, slots=True)
class KeyRange:
    """`lo` and `hi`: bounds on the bytes of keys, None for no bound. `keep`: a further filter on rows."""

    lo: bytes | None = None
    hi: bytes | None = None
    keep: Callable[[StoreRows], StoreRows] | None = None

    def within(self, rows: StoreRows) -> StoreRows:
        """Return the rows whose keys are in the range. Keep rows whose key cannot be read: their position is not known."""
        return rows if self.keep is None else self.keep(rows)


def key_range(serde: str, keys: Format, first: str | None, last: str | None) -> KeyRange:
    """Return the range from `first` to `last` (None: no bound) of keys of a serde, whose format is `keys`. Raises ValueError for text that
    is not such a key, for keys that have no order as text, and for a range that ends before it begins."""
    if first is None and last is None:
        return KeyRange()
    serde = serde.removeprefix("nullable(").removesuffix(")") if serde.startswith("nullable(") else serde
    if serde in ("STRING", "UUID"):
        return _of_bytes(*(None if text is None else text.encode() for text in (first, last)))
    if serde == "BYTES":
        return _of_bytes(*(None if text is None else _parsed(bytes.fromhex, text, "hexadecimal bytes", serde) for text in (first, last)))
    if serde in _LAYOUTS:
        parse: Callable[[str], object] = int if serde in _WHOLE else float
        return _of_numbers(serde, keys, *(None if text is None else _number(parse, text, serde) for text in (first, last)))
    known = _PARSERS.get(type(keys.spark))
    if known is None:
        raise ValueError(f"the options 'from-key' and 'to-key' are for keys of one value; these are {keys.spark.simpleString()} ({serde})")
    what = f"a key of type {keys.spark.simpleString()}"
    bounds = [None if text is None else _parsed(known, text, what, serde) for text in (first, last)]
    return KeyRange(keep=_compared(keys, *bounds))


def _parsed(parse: Callable[[str], object], text: str, what: str, serde: str) -> object:
    try:
        return parse(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not {what}: the store's keys are {serde}") from error


def _number(parse: Callable[[str], object], text: str, serde: str) -> int | float:
    number = _parsed(parse, text, "a whole number" if parse is int else "a number", serde)
    assert isinstance(number, int | float)
    try:
        struct.pack(_LAYOUTS[serde], number)
    except (struct.error, OverflowError) as error:
        raise ValueError(f"{text!r} is out of range: the store's keys are {serde}") from error
    return number


def _of_bytes(lo: object, hi: object) -> KeyRange:
    assert isinstance(lo, bytes | None) and isinstance(hi, bytes | None)
    if lo is not None and hi is not None and lo > hi:
        raise ValueError(f"the option 'from-key' ({lo!r}) is after 'to-key' ({hi!r})")
    return KeyRange(lo, hi)


def _of_numbers(serde: str, keys: Format, first: int | float | None, last: int | float | None) -> KeyRange:
    if first is not None and last is not None and first > last:
        raise ValueError(f"the option 'from-key' ({first}) is after 'to-key' ({last})")
    compared = _compared(keys, first, last)
    if first is not None and first >= 0:
        largest = b"\x7f" + b"\xff" * (struct.calcsize(_LAYOUTS[serde]) - 1)
        lo = struct.pack(_LAYOUTS[serde], first + 0)  # turns minus zero into zero
        return KeyRange(lo, largest if last is None else struct.pack(_LAYOUTS[serde], last), compared)
    return KeyRange(keep=compared)


def _compared(keys: Format, first: object, last: object) -> Callable[[StoreRows], StoreRows]:
    def keep(rows: StoreRows) -> StoreRows:
        column = keys.decode(rows.keys).column
        mask = pa.array([True]).take(pa.array([0] * len(rows), pa.int32()))
        if first is not None:
            mask = pc.and_kleene(mask, pc.greater_equal(column, pa.scalar(first, column.type)))
        if last is not None:
            mask = pc.and_kleene(mask, pc.less_equal(column, pa.scalar(last, column.type)))
        return rows.where(pc.fill_null(mask, True))

    return keep
