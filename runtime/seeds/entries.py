"""Conversion of a store's files to changelog records: those that the store would have written for its current entries.

    key-value, timestamped    key → value, at the value's timestamp; without timestamps, at the time of the seed
    windows                   window store key → value, at the value's timestamp; without timestamps, at the window's start
    sessions                  session key → value, at the value's timestamp; without timestamps, at the session's end
    versioned                 key → value of each version, at the time at which it became valid; a deletion is a tombstone
    buffers                   key → buffered change, at the change's timestamp
    with headers              packed values, whose headers become those of the record (`with_headers`)

Versions must be written in order of time over all keys: a restore drops a put older than stream time minus the history retention, and
stream time is the largest timestamp seen. The files have them in order of keys, so they are sorted, on disk beyond some size.

Deletions removed by compaction or retention are missing, and are not needed: the changelog begins empty.
"""

from __future__ import annotations

import heapq
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from operator import itemgetter
from pathlib import Path
from struct import Struct
from typing import IO

import msgspec

from penstock.runtime.model.record import Headers
from penstock.runtime.serdes.keys import SESSION_SUFFIX, TIMESTAMP, WINDOW_SUFFIX
from penstock.runtime.stores.base import ChangelogRecord, StoreLayout
from penstock.runtime.stores.buffer import CHANGELOG_HEADERS, BufferValue
from penstock.runtime.stores.headers import by_headers, split_stored
from penstock.runtime.stores.rocks_files import read_files

SEEDED_KINDS = ("key_value", "window", "session", "versioned", "buffer")
"""Kinds of stores that can be seeded. Custom stores cannot: only their authors can read their files."""

_TIME = Struct(">q")
_SPAN = Struct(">qq")
_SEQUENCE = Struct(">i")
_LATEST = "latest"
_RUN = 500_000
"""Number of versions sorted in memory at a time."""
_BLOCK = 4_096
_SUFFIX = {"window": WINDOW_SUFFIX, "session": SESSION_SUFFIX}

_Version = tuple[int, bytes, bytes | None]
"""Time from which it is valid, key, value."""


def changelog_records(path: Path, layout: StoreLayout, at_ms: int) -> Iterator[list[ChangelogRecord]]:
    """Yield all records of the store in the folder `path`, some thousand at a time, in a fixed order. `at_ms`: time of the seed. Raises
    StateDirectoryError if the store cannot be read."""
    if layout.kind == "versioned":
        yield from _version_records(path)
        return
    for _, batch in read_files(path):
        yield _records(batch, layout, at_ms)


def with_headers(layout: StoreLayout, records: list[ChangelogRecord]) -> Iterator[tuple[Headers | None, list[ChangelogRecord]]]:
    """Yield such records with their headers, as `ChangelogWriter` does."""
    if layout.headers:
        yield from by_headers(records)
    else:
        yield CHANGELOG_HEADERS if layout.kind == "buffer" else None, records


def _records(batch: list[tuple[bytes, bytes]], layout: StoreLayout, at_ms: int) -> list[ChangelogRecord]:
    if layout.kind == "buffer":
        return [(key, value, BufferValue.from_bytes(value).timestamp) for key, value in batch]
    if layout.timestamped:
        if layout.headers:
            return [(key, packed, at) for key, value in batch for at, packed in (split_stored(value),)]
        unpack = _TIME.unpack_from
        return [(key, value[TIMESTAMP:], unpack(value)[0]) for key, value in batch]
    size = _SUFFIX.get(layout.kind)
    if size is None:
        return [(key, value, at_ms) for key, value in batch]
    time = slice(-size, -size + TIMESTAMP)  # a window's start, a session's end
    return [(key, value, int.from_bytes(key[time], "big", signed=True)) for key, value in batch]


# --- versions ---------------------------------------------------------------------------------------------------------------------


def _version_records(path: Path) -> Iterator[list[ChangelogRecord]]:
    with tempfile.TemporaryDirectory(prefix=".versions-", dir=path.parent) as folder:
        versions = _by_time(_versions(path), Path(folder))
        while block := [(key, value, since) for since, key, value in islice(versions, _BLOCK)]:
            yield block


def _versions(path: Path) -> Iterator[_Version]:
    for family, batch in read_files(path):
        if family == _LATEST:
            for key, row in batch:
                yield _TIME.unpack_from(row)[0], key, row[TIMESTAMP:]
        else:
            for key, row in batch:
                _, since = _SPAN.unpack_from(key, len(key) - _SPAN.size)
                yield since, key[: -_SPAN.size], row[1:] if row[:1] == b"\x01" else None


def _by_time(versions: Iterable[_Version], folder: Path) -> Iterator[_Version]:
    """Sort by time, with one run in memory. (A key has one version per time, so values are never compared.)"""
    order = itemgetter(0, 1)
    runs: list[Iterator[_Version]] = []
    waiting = iter(versions)
    while run := sorted(islice(waiting, _RUN), key=order):
        if len(run) < _RUN:
            runs.append(iter(run))
            break
        runs.append(_kept(run, folder))
    return heapq.merge(*runs, key=order)


def _kept(run: list[_Version], folder: Path) -> Iterator[_Version]:
    """Write a sorted run to disk and return an iterator over it."""
    file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (read later; deleted when it is closed)
    for first in range(0, len(run), _BLOCK):
        data = msgspec.msgpack.encode(run[first : first + _BLOCK])
        file.write(_TIME.pack(len(data)) + data)
    file.seek(0)
    return chain.from_iterable(_blocks(file))


def _blocks(file: IO[bytes]) -> Iterator[list[_Version]]:
    decoder = msgspec.msgpack.Decoder(list[_Version])
    with file:
        while head := file.read(_TIME.size):
            yield decoder.decode(file.read(_TIME.unpack(head)[0]))


# --- metadata of a store ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Latest:
    """Maxima over a store's entries: of the time that drives expiry (a window's start, a session's end, a version's start), of record
    timestamps, and of sequence numbers. -1, -1 and 0 for an empty store."""

    time: int = -1
    timestamp: int = -1
    sequence: int = 0


def latest(path: Path, layout: StoreLayout) -> Latest:
    """Scan all entries of a window, session or versioned store. Raises StateDirectoryError if it cannot be read."""
    found = Latest()
    for rows in changelog_records(path, layout, -1):
        found.timestamp = max(found.timestamp, *(row[2] for row in rows), -1)
        if (size := _SUFFIX.get(layout.kind)) is not None:
            time = slice(-size, -size + TIMESTAMP)
            found.time = max(found.time, int.from_bytes(max(row[0][time] for row in rows), "big", signed=True))
        if layout.duplicates:
            found.sequence = max(found.sequence, *(_SEQUENCE.unpack(row[0][-4:])[0] for row in rows), 0)
    if layout.kind == "versioned":
        found.time = found.timestamp
    return found
