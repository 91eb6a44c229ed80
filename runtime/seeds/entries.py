"""A store's files as the records of its changelog: what the store itself would have written for the entries that are there now.

    key-value, timestamped    key → value, at the value's timestamp; without timestamps, at the time of the seed
    windows                   window store key → value, at the value's timestamp; without timestamps, at the window's start
    sessions                  session key → value, at the value's timestamp; without timestamps, at the session's end
    versioned                 key → value of each version that is there, at the moment at which it began; a deletion is a tombstone
    buffers                   key → change that waits, at the change's timestamp

Versions have to come in the order of time, over all keys: a restore drops a put that is older than stream time minus the history retention,
and stream time is the largest timestamp it has seen. The files have them by key, so they are sorted, beyond some size on disk.

Deletions that a compaction or the retention has taken are not there, and need not be: the changelog begins empty.
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

from runtime.record import Headers
from runtime.serdes.keys import SESSION_SUFFIX, TIMESTAMP, WINDOW_SUFFIX
from runtime.stores.base import ChangelogRecord, StoreLayout
from runtime.stores.buffer_format import CHANGELOG_HEADERS, BufferValue
from runtime.stores.rocks_files import read_files

SEEDED_KINDS = ("key_value", "window", "session", "versioned", "buffer")
"""Kinds of stores that can be seeded. A user's own cannot: only the user can read its files."""

_TIME = Struct(">q")
_SPAN = Struct(">qq")
_SEQUENCE = Struct(">i")
_LATEST = "latest"
_RUN = 500_000
"""Versions that are sorted in memory at a time."""
_BLOCK = 4_096
_SUFFIX = {"window": WINDOW_SUFFIX, "session": SESSION_SUFFIX}

_Version = tuple[int, bytes, bytes | None]
"""When it began, key, value."""


def changelog_records(path: Path, layout: StoreLayout, at_ms: int) -> Iterator[list[ChangelogRecord]]:
    """All records for the store in the folder `path`, some thousand at a time; each time in the same order. `at_ms`: the time of the seed.
    Raises StateDirectoryError where the store cannot be read."""
    if layout.kind == "versioned":
        yield from _version_records(path)
        return
    for _, batch in read_files(path):
        yield _records(batch, layout, at_ms)


def changelog_headers(layout: StoreLayout) -> Headers | None:
    """The headers of such records, as `EngineStore.changelog_headers`."""
    return CHANGELOG_HEADERS if layout.kind == "buffer" else None


def _records(batch: list[tuple[bytes, bytes]], layout: StoreLayout, at_ms: int) -> list[ChangelogRecord]:
    if layout.kind == "buffer":
        return [(key, value, BufferValue.from_bytes(value).timestamp) for key, value in batch]
    if layout.timestamped:
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
    """Sorted by time, with the memory of one run. (Of one key and moment there is one version, so the value never decides.)"""
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
    """A run that lies on the disk until it is read."""
    file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (read later; gone when nobody reads it any more)
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


# --- what a store knows beside its entries ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Latest:
    """Of a store's entries: the largest time by which the store itself goes (a window's start, a session's end, a version's beginning), the
    largest timestamp of a record, and the largest sequence number. -1 and 0 for an empty store."""

    time: int = -1
    timestamp: int = -1
    sequence: int = 0


def latest(path: Path, layout: StoreLayout) -> Latest:
    """Looks through all entries of a store of windows, sessions or versions. Raises StateDirectoryError where it cannot be read."""
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
