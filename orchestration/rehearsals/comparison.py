"""Comparison of what two builds have made of the same records: entries of stores, byte by byte, and records of topics, key by key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from penstock.orchestration.rehearsals import messages
from penstock.orchestration.rehearsals.outputs import Output, by_key, topics
from penstock.runtime.snapshots.manifest import read_manifest
from penstock.runtime.stores.rocks_files import read_files

MOST_SAMPLES = 5

K = TypeVar("K", bound="tuple[object, ...] | bytes")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Sample:
    """A key at which the builds differ, with the entry of each; None where a build has none. Of a topic: the first records that differ."""

    running: messages.Entry | None
    new: messages.Entry | None


@dataclass(slots=True)
class Difference:
    """A store or a topic. Rows are a store's entries; of a topic, `rows` are records, and the other numbers are keys. `most`: the largest
    number of samples."""

    kind: str
    name: str
    rows: tuple[int, int] = (0, 0)
    bytes: tuple[int, int] = (0, 0)
    different: int = 0
    only_running: int = 0
    only_new: int = 0
    samples: list[Sample] = field(default_factory=list)
    most: int = MOST_SAMPLES

    @property
    def differing(self) -> int:
        """Number of keys at which the builds differ."""
        return self.different + self.only_running + self.only_new

    @property
    def label(self) -> str:
        return f"{self.kind} {self.name}"

    def add(self, running: messages.Entry | None, new: messages.Entry | None) -> None:
        """Count a key at which the builds differ."""
        if running is None:
            self.only_new += 1
        elif new is None:
            self.only_running += 1
        else:
            self.different += 1
        if len(self.samples) < self.most:
            self.samples.append(Sample(running, new))


Parts = Mapping[str, str]
"""Folder of each task's stores."""


def compare_stores(running: Parts, new: Parts, most: int = MOST_SAMPLES) -> list[Difference]:
    """Return every store of either build, sorted by name, with at most so many samples each."""
    found: dict[str, Difference] = {}
    for task in sorted({*running, *new}):
        stores = _folders(running.get(task)), _folders(new.get(task))
        for name in sorted({*stores[0], *stores[1]}):
            of_store = found.setdefault(name, Difference("store", name, most=most))
            _compare_store(of_store, stores[0].get(name), stores[1].get(name))
    return [found[name] for name in sorted(found)]


def _folders(part: str | None) -> dict[str, Path]:
    if part is None:
        return {}
    folder = Path(part)
    return {store.name: folder / store.directory for store in read_manifest(folder).stores}


def _compare_store(into: Difference, running: Path | None, new: Path | None) -> None:
    counts = [0, 0]
    for (family, key), before, after in merged(_entries(running), _entries(new)):
        counts[0] += before is not None
        counts[1] += after is not None
        if before != after:
            into.add(*(None if value is None else messages.Entry(key, value, family) for value in (before, after)))
    into.rows = (into.rows[0] + counts[0], into.rows[1] + counts[1])
    into.bytes = (into.bytes[0] + _size(running), into.bytes[1] + _size(new))


def _entries(folder: Path | None) -> Iterator[tuple[tuple[str, bytes], bytes]]:
    if folder is not None:
        for family, batch in read_files(folder):
            for key, value in batch:
                yield (family, key), value


def _size(folder: Path | None) -> int:
    return 0 if folder is None else sum(file.stat().st_size for file in folder.iterdir())


def compare_outputs(running: Path, new: Path) -> list[Difference]:
    """Return every topic that either build has written to, sorted. Records of a key are compared in order, with their timestamps and
    headers."""
    return [_compare_topic(topic, running, new) for topic in sorted({*topics(running), *topics(new)})]


def _compare_topic(topic: str, running: Path, new: Path) -> Difference:
    found, counts = Difference("topic", topic), [0, 0]
    for key, before, after in merged(by_key(running, topic), by_key(new, topic)):
        counts[0] += len(before or ())
        counts[1] += len(after or ())
        if before != after:
            first = _first(before or [], after or [])
            bare = key[1:] if key else None
            found.add(*(_entry(bare, records, first) for records in (before, after)))
    found.rows = (counts[0], counts[1])
    return found


def _first(before: list[Output], after: list[Output]) -> int:
    """Return the place of the first records that differ."""
    same = min(len(before), len(after))
    return next((place for place in range(same) if before[place] != after[place]), same)


def _entry(key: bytes | None, records: list[Output] | None, place: int) -> messages.Entry | None:
    if records is None:
        return None
    return messages.Entry(key, records[place].value if place < len(records) else None)


def merged(left: Iterable[tuple[K, V]], right: Iterable[tuple[K, V]]) -> Iterator[tuple[K, V | None, V | None]]:
    """Yield each key of two sorted sequences once, with the value that each has, None where it has none."""
    lefts, rights = iter(left), iter(right)
    one, other = next(lefts, None), next(rights, None)
    while one is not None or other is not None:
        if other is None or (one is not None and one[0] < other[0]):  # type: ignore[operator]  # tuples and bytes of one kind
            assert one is not None  # one of the two is there
            yield one[0], one[1], None
            one = next(lefts, None)
        elif one is None or other[0] < one[0]:  # type: ignore[operator]
            yield other[0], None, other[1]
            other = next(rights, None)
        else:
            yield one[0], one[1], other[1]
            one, other = next(lefts, None), next(rights, None)
