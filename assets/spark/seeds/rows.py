"""Conversion of a table's rows to entries of a store, with the store's own serdes and layouts, one Arrow batch at a time.

The input has the columns of a table: `key`, `value`, and times as int64 (ms) with the names that tables use. The output has the columns
of `ENTRIES`, which Spark sorts before they are written to files:

    partition    the task of the key, by Kafka's default partitioner
    slot         a number that Spark's partitioner sends to a partition without rows of other tasks
    segment      the number of the time segment; `LATEST` for latest versions, 0 for a store without segments
    entry_key    the store key
    entry_value  the value that the store keeps under it
    time         time that advances the store's own stream time, ms; -1: none
    observed     time that advances the stream time of the nodes that write to the store, ms; -1: none
    note         null for an entry; else describes rows of a batch that are not entries (`BatchNotes`)

A version contains only its start. Its end follows from the next one of its key, so versions pass through Spark twice (`VERSIONS`) before
they become entries.

A column of bytes is taken for output of the serde, and read once to verify that. For a JSON serde, a string is read as JSON, and a struct
is written as an object. Everything else is passed to the serde unchanged.

A table made from a store (`OF_TABLE`) shows strings without quotes, and JSON without a type of its own as text too: `5` may be a number or
a string. Such a row is refused if both are values of the serde. So is a null in an object of untyped JSON, which may be a missing name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from operator import itemgetter
from uuid import UUID

import msgspec
import numpy as np
import pyarrow as pa

from penstock.assets.spark.seeds.partitioner import partitions_of
from penstock.assets.spark.seeds.plan import StorePlan
from penstock.assets.spark.types.json_schema import shape_of
from penstock.runtime.model.record import Window, Windowed
from penstock.runtime.serdes.keys import pack_session_suffix, pack_timestamp, pack_window_suffix
from penstock.runtime.serdes.serde import Serde
from penstock.runtime.serdes.windowed import window_bytes
from penstock.runtime.stores.headers import NO_HEADERS
from penstock.runtime.stores.settings import WindowSettings

LATEST = 2**62
"""Segment of the latest versions; larger than all others, as the newest is written first."""
NOTES = LATEST + 1
"""Segment of notes."""
SHOWN = 5
"""Maximum number of malformed rows that are described."""
OF_TABLE = "_of_table"
"""Column of the input, if it was made from a store by `penstock.state` or `[[tables]]`."""
_LONGEST_SHOWN = 120
_ENDLESS_MS = 2**53
"""Windows of this size or more have no end that a table could show."""
_DELETED, _VALUE = b"\x00", b"\x01"

ENTRIES = pa.schema(
    [
        ("partition", pa.int32()),
        ("slot", pa.int32()),
        ("segment", pa.int64()),
        ("entry_key", pa.binary()),
        ("entry_value", pa.binary()),
        ("time", pa.int64()),
        ("observed", pa.int64()),
        ("note", pa.binary()),
    ]
)
VERSIONS = pa.schema(
    [
        ("partition", pa.int32()),
        ("slot", pa.int32()),
        ("version_key", pa.binary()),
        ("version_value", pa.binary()),
        ("since", pa.int64()),
        ("until", pa.int64()),
        ("note", pa.binary()),
    ]
)


class BatchNotes(msgspec.Struct):
    """Notes on the rows of a batch that become no entry: those without a value, and malformed ones, some of them described."""

    nulls: int = 0
    malformed: int = 0
    examples: list[str] = []

    def refuse(self, reason: str) -> None:
        """Count another malformed row."""
        self.malformed += 1
        if len(self.examples) < SHOWN:
            self.examples.append(reason)

    def add(self, other: BatchNotes) -> None:
        """Add the notes of another batch."""
        self.nulls += other.nulls
        self.malformed += other.malformed
        self.examples = (self.examples + other.examples)[:SHOWN]


class SeedEncoder:
    """Encoder of the rows of one store. `slots`: one per partition."""

    def __init__(self, plan: StorePlan, slots: Sequence[int]) -> None:
        settings = plan.settings
        self._plan = plan
        self._kind = settings.kind
        self._timestamped, self._headers = settings.timestamped, settings.headers
        self._key, self._value = settings.key_serde, settings.value_serde
        self._segment_ms = settings.times.segments.segment_ms if settings.times is not None else None
        self._window_ms = settings.times.size_ms if isinstance(settings.times, WindowSettings) else None
        self._slots = np.array(slots, np.int32)

    def entries(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the entries for rows of a table (`VERSIONS` for those of a versioned store), and notes."""
        for batch in batches:
            notes = BatchNotes()
            yield self._versions(batch, notes) if self._kind == "versioned" else self._entries(batch, notes)
            if notes.nulls or notes.malformed:
                schema = VERSIONS if self._kind == "versioned" else ENTRIES
                yield _note(schema, int(self._slots[0]), notes)

    def _entries(self, batch: pa.RecordBatch, notes: BatchNotes) -> pa.RecordBatch:
        keys, values, rows = self._written(batch, notes)
        with_value = [row for row in rows if values[row] is not None]
        notes.nulls += len(rows) - len(with_value)
        count = len(with_value)
        times = {name: _picked(batch, name, with_value) for name in ("window_start", "window_end", "timestamp")}
        found, kept = [keys[row] for row in with_value], [values[row] or b"" for row in with_value]
        partitions = self._partitions(found)
        observed, time = times["timestamp"], [-1] * count
        if self._kind == "window":
            time = times["window_start"]
            found = [key + pack_window_suffix(at, 0) for key, at in zip(found, time, strict=True)]
        elif self._kind == "session":
            spans = zip(found, times["window_end"], times["window_start"], strict=True)
            time, found = times["window_end"], [key + pack_session_suffix(end, start) for key, end, start in spans]
        if self._timestamped:
            kept = [pack_timestamp(at) + value for at, value in zip(times["timestamp"], kept, strict=True)]
        if self._headers:
            kept = [NO_HEADERS + value for value in kept]
        if not observed or not self._timestamped:
            observed = [max(pair) for pair in zip(observed or time, time, strict=True)]
        segments = np.array(time, np.int64) // self._segment_ms if self._segment_ms else np.zeros(count, np.int64)
        return pa.RecordBatch.from_arrays(
            [
                pa.array(partitions),
                pa.array(self._slots[partitions]),
                pa.array(segments),
                pa.array(found, pa.binary()),
                pa.array(kept, pa.binary()),
                pa.array(time, pa.int64()),
                pa.array(observed, pa.int64()),
                pa.nulls(count, pa.binary()),
            ],
            schema=ENTRIES,
        )

    def _versions(self, batch: pa.RecordBatch, notes: BatchNotes) -> pa.RecordBatch:
        keys, values, rows = self._written(batch, notes)
        found = [keys[row] for row in rows]
        partitions = self._partitions(found)
        until = batch.column("valid_to").to_pylist() if "valid_to" in batch.schema.names else [None] * batch.num_rows
        return pa.RecordBatch.from_arrays(
            [
                pa.array(partitions),
                pa.array(self._slots[partitions]),
                pa.array(found, pa.binary()),
                pa.array([values[row] for row in rows], pa.binary()),
                pa.array(_picked(batch, "valid_from", rows), pa.int64()),
                pa.array([until[row] for row in rows], pa.int64()),
                pa.nulls(len(rows), pa.binary()),
            ],
            schema=VERSIONS,
        )

    def _partitions(self, keys: Sequence[bytes]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        behind = self._plan.window_bytes
        return partitions_of([key[:-behind] for key in keys] if behind else keys, self._plan.partitions)

    # --- serialization ------------------------------------------------------------------------------------------------------

    def _written(self, batch: pa.RecordBatch, notes: BatchNotes) -> tuple[list[bytes], list[bytes | None], list[int]]:
        """Return keys and values by row, and the numbers of the well-formed rows. Keys of malformed rows are empty."""
        bad: dict[int, str] = {}
        of_table = OF_TABLE in batch.schema.names
        keys = written_bytes(batch.column("key"), self._key, self._plan.changelog, "key", bad, of_table=of_table)
        values = written_bytes(batch.column("value"), self._value, self._plan.changelog, "value", bad, of_table=of_table)
        for row, key in enumerate(keys):
            if key is None:
                bad.setdefault(row, "the key is null")
        self._check_times(batch, bad)
        if "_malformed" in batch.schema.names:
            apart = np.flatnonzero(batch.column("_malformed").to_numpy(zero_copy_only=False))
            bad.update(dict.fromkeys(apart.tolist(), "it is one of those that the table keeps apart"))
        shown = batch.column("key")
        for row, reason in sorted(bad.items()):
            notes.refuse(_short(f"row with the key {shown[row].as_py()!r}: {reason}"))
        return [key or b"" for key in keys], values, [row for row in range(batch.num_rows) if row not in bad]

    def _check_times(self, batch: pa.RecordBatch, bad: dict[int, str]) -> None:
        columns = {"window": ["window_start"], "session": ["window_start", "window_end"], "versioned": ["valid_from"]}.get(self._kind, [])
        for name in [*columns, *(["timestamp"] if self._timestamped else [])]:
            column = batch.column(name)
            if not column.null_count and (not len(column) or np.asarray(column).min() >= 0):
                continue
            for row, at in enumerate(column.to_pylist()):
                if at is None or at < 0:
                    bad.setdefault(row, f"{name} is {'null' if at is None else f'{at} ms, which is before 1970'}")
        if "window_end" not in batch.schema.names or self._kind == "key_value":
            return
        starts, ends = batch.column("window_start").to_pylist(), batch.column("window_end").to_pylist()
        size = self._window_ms
        for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
            if row in bad or end is None:
                continue
            if end < start:
                bad[row] = f"it ends at {end} ms, before its start at {start} ms"
            elif size is not None and size < _ENDLESS_MS and end - start != size:
                bad[row] = f"its window is {end - start} ms long; those of the store are {size} ms"


def written_bytes(
    column: pa.Array, serde: Serde, topic: str, what: str, bad: dict[int, str], *, of_table: bool = False
) -> list[bytes | None]:
    """Serialise each row; put the reason for a row that cannot be serialised into `bad`. `of_table`: the column is that of a table made
    from a store."""
    objects, write = _reading(column, serde, topic, of_table=of_table)
    if of_table and not is_json(serde) and "json" in serde.name.lower():  # JSON inside another serde
        write = _checked(write)
    try:
        return [None if each is None else write(each) for each in objects]
    except Exception:  # noqa: BLE001 (a serde may raise anything; the row is found below)
        found: list[bytes | None] = []
    for row, each in enumerate(objects):
        try:
            found.append(None if each is None else write(each))
        except Exception as error:  # noqa: BLE001 (as above)
            bad.setdefault(row, f"its {what} {each!r} does not fit {serde!r}: {type(error).__name__}: {error}")
            found.append(None)
    return found


def _reading(column: pa.Array, serde: Serde, topic: str, *, of_table: bool) -> tuple[list[object], Callable[[object], bytes | None]]:
    """Return a column as objects, and the function that serialises one."""
    objects, kind = column.to_pylist(maps_as_pydicts="strict"), column.type
    write, read = serde.serializer(topic), serde.deserializer(topic)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):

        def checked(data: object) -> bytes:
            assert isinstance(data, bytes)
            read(data)
            return data

        return objects, checked
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if is_json(serde) and is_text:
        return objects, lambda text: write(_read_shown(str(text), read) if of_table else read(str(text).encode()))
    if is_json(serde):
        untyped = serde.schema is None
        check = of_table and (untyped or shape_of(serde.schema or {})[0].has_text)

        def as_json(each: object) -> bytes | None:
            if check:
                _require_one_meaning(each, untyped=untyped)
            return write(read(_json(each)))

        return objects, as_json
    if window_bytes(serde) and pa.types.is_struct(kind):
        return objects, lambda each: write(_windowed(each))
    if serde.name == "UUID" and is_text:
        return objects, lambda text: write(UUID(str(text)))
    return objects, write


def _read_shown(text: str, read: Callable[[bytes], object]) -> object:
    """Read text as a table shows it: a string without quotes, or other JSON. Raises ValueError if it may be both."""
    found = []
    for data in (msgspec.json.encode(text), *([text.encode()] if _is_other_json(text) else [])):
        try:
            found.append(read(data))
        except msgspec.MsgspecError as error:
            refused = error
    if not found:
        raise refused
    if len(found) > 1 and found[0] != found[1]:
        raise ValueError(_TWO_MEANINGS.format(text=_short(text)))
    return found[0]


def _checked(write: Callable[[object], bytes | None]) -> Callable[[object], bytes | None]:
    def checked(shown: object) -> bytes | None:
        _require_one_meaning(shown, untyped=True)
        return write(shown)

    return checked


def _require_one_meaning(shown: object, *, untyped: bool) -> None:
    """Raise ValueError if a part of a value that a table shows may have been another one."""
    match shown:
        case str() if _is_other_json(shown):
            raise ValueError(_TWO_MEANINGS.format(text=_short(shown)))
        case dict():
            for name, each in shown.items():
                if each is None and untyped:
                    raise ValueError(f"{name} may be null or missing. Give the value's JSON as bytes")
                _require_one_meaning(each, untyped=untyped)
        case list():
            for each in shown:
                _require_one_meaning(each, untyped=untyped)


def _is_other_json(text: str) -> bool:
    """Return True for the JSON of something other than a string."""
    try:
        return not isinstance(msgspec.json.decode(text), str)
    except (msgspec.DecodeError, RecursionError):
        return False


_TWO_MEANINGS = "{text} may be that JSON or a string, which the table shows alike. Give the value's JSON as bytes"


def _json(value: object) -> bytes:
    """Write a value as JSON. Raises ValueError for numbers that JSON lacks, which would become null."""
    data = msgspec.json.encode(value)
    if b"null" in data and _has_no_number(value):
        raise ValueError("JSON has no NaN and no infinity: they would become null")
    return data


def _has_no_number(value: object) -> bool:
    """Return True if a value contains NaN or an infinity."""
    if isinstance(value, dict | list):
        return any(map(_has_no_number, value.values() if isinstance(value, dict) else value))
    return isinstance(value, float) and not math.isfinite(value)


def _windowed(shown: object) -> Windowed:
    """Convert a windowed key as tables show it: `key` and `window_start`, for sessions also `window_end`. (The bytes of a time window do
    not contain its end.)"""
    assert isinstance(shown, dict)
    start = _ms(shown["window_start"])
    return Windowed(shown["key"], Window(start, _ms(shown.get("window_end", start))))


def _ms(time: object) -> int:
    if isinstance(time, datetime):
        return int(time.timestamp() * 1000)
    if isinstance(time, int):
        return time
    raise TypeError(f"a window's time is a timestamp or milliseconds, not {time!r}")


def is_json(serde: Serde) -> bool:
    """Return True for serdes whose bytes are plain JSON."""
    return serde.name == "JSON" or serde.name.startswith("json(")


def _picked(batch: pa.RecordBatch, name: str, rows: Sequence[int]) -> list[int]:
    """Return the times of some rows; none if the table has no such column. A time that is not needed may be null: it becomes -1."""
    if name not in batch.schema.names:
        return []
    times = batch.column(name).to_pylist()
    return [-1 if times[row] is None else times[row] for row in rows]


def _note(schema: pa.Schema, slot: int, notes: BatchNotes) -> pa.RecordBatch:
    """Return a row that is not an entry, in the partition of task 0."""
    columns = {"partition": 0, "slot": slot, "segment": NOTES, "note": msgspec.json.encode(notes), "entry_key": b"", "version_key": b""}
    return pa.RecordBatch.from_arrays([pa.array([columns.get(name)], schema.field(name).type) for name in schema.names], schema=schema)


def _short(text: str) -> str:
    return text if len(text) <= 2 * _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]} … {text[-_LONGEST_SHOWN:]}"


# --- versions -----------------------------------------------------------------------------------------------------------------------


def version_entries(segment_ms: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Convert versions (`VERSIONS`) to entries. They must have `next_since`: the start of the next version of the key, null for the last.

    The format is that of `runtime/stores/versioned.py`. A row that ends before the next one begins (`until`) is followed by a deletion.
    """
    for batch in batches:
        notes = BatchNotes()
        entries: list[tuple[int, int, int, bytes, bytes, int]] = []
        columns = [batch.column(name).to_pylist() for name in (*VERSIONS.names, "next_since")]
        for partition, slot, key, value, since, until, note, following in zip(*columns, strict=True):
            if note is not None:
                notes.add(msgspec.json.decode(note, type=BatchNotes))
                continue
            if following == since:
                notes.refuse(_short(f"two versions of the key {key!r} begin at {since} ms"))
                continue
            if value is not None and until is not None and following is not None and until > following:
                notes.refuse(_short(f"a version of the key {key!r} ends at {until} ms, but the next one begins at {following} ms"))
                continue
            spans = [(since, value, following)]
            if value is not None and until is not None and until != following:
                spans = [(since, value, until), (until, None, following)]
            for begin, data, end in spans:
                segment, entry_key, entry_value = _version(key, data, begin, end, segment_ms)
                entries.append((partition, slot, segment, entry_key, entry_value, begin))
        yield _version_batch(entries)
        if notes.nulls or notes.malformed:
            yield _note(ENTRIES, batch.column("slot")[0].as_py(), notes)


def _version(key: bytes, value: bytes | None, since: int, until: int | None, segment_ms: int) -> tuple[int, bytes, bytes]:
    """Return segment, entry key and entry value of one version; `until` is None for the last one."""
    if value is not None and until is None:
        return LATEST, key, pack_timestamp(since) + value
    until = since if until is None else until  # a deletion that is the last version ends at its own start
    return until // segment_ms, key + pack_timestamp(until) + pack_timestamp(since), _DELETED if value is None else _VALUE + value


def _version_batch(entries: Sequence[tuple[int, int, int, bytes, bytes, int]]) -> pa.RecordBatch:
    columns = [list(map(itemgetter(place), entries)) for place in range(6)]
    times = pa.array(columns[5], pa.int64())
    arrays = [pa.array(column, kind.type) for column, kind in zip(columns[:5], list(ENTRIES)[:5], strict=True)]
    return pa.RecordBatch.from_arrays([*arrays, times, times, pa.nulls(len(entries), pa.binary())], schema=ENTRIES)
