"""Expected results of a run, computed while the input is written."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Protocol

import msgspec

from benchmarks.data import KEYS, PARTITIONS, TABLE_SEED, profiles, records
from benchmarks.workloads import JOIN_WITHIN_MS, LARGE_AMOUNT, SESSION_GAP_MS, WINDOW_MS, Enriched, Profile, cents, group_of, profile_of
from penstock.runtime.serdes.murmur import partition_for

LONG, DOUBLE = Struct(">q"), Struct(">d")

Output = tuple[bytes, bytes]
"""Key and value."""


class Truth(Protocol):
    """Expected results. `total`: records of the input."""

    total: int

    def look(self, outputs: Iterator[Output]) -> tuple[int, int]:
        """Return the number of outputs, and the number of wrong keys (or records)."""


class Latest:
    """Compares the last value of each key; one without a value is deleted."""

    def __init__(self, total: int, values: dict[bytes, bytes]) -> None:
        self.total = total
        self._values = values

    def look(self, outputs: Iterator[Output]) -> tuple[int, int]:
        found: dict[bytes, bytes] = {}
        updates = 0
        for key, value in outputs:
            updates += 1
            if value:
                found[key] = value
            else:
                found.pop(key, None)
        return updates, sum(found.get(key) != self._values.get(key) for key in {*found, *self._values})


class Number:
    """Compares the number of records of each key."""

    def __init__(self, total: int, keys: Counter[bytes]) -> None:
        self.total = total
        self._keys = keys

    def look(self, outputs: Iterator[Output]) -> tuple[int, int]:
        found = Counter(key for key, _ in outputs)
        return found.total(), sum(found[key] != self._keys[key] for key in {*found, *self._keys})


def counts(found: Counter[bytes]) -> Latest:
    """Expect a count per key."""
    return Latest(found.total(), {key: LONG.pack(number) for key, number in found.items()})


def truth(kind: str, count: int) -> Truth:
    """Return the expected results of a kind of workload over `count` records."""
    match kind:
        case "count":
            return counts(Counter(key.encode() for key, *_ in records(count)))
        case "window":
            sums: dict[bytes, float] = {}
            for key, value, at in records(count):
                name = f"{key}@{at // WINDOW_MS * WINDOW_MS}".encode()
                sums[name] = sums.get(name, 0.0) + amount(value)
            return Latest(count, {key: DOUBLE.pack(total) for key, total in sums.items()})
        case "stateless":
            return Number(count, Counter(key.encode() for key, value, _ in records(count) if amount(value) > LARGE_AMOUNT))
        case "join":
            return Number(count, Counter(key.encode() for key, *_ in records(count)))
        case "stream-join":
            return Number(2 * count, _pairs(count))
        case "session":
            return Latest(count, _sessions(count))
        case "suppress":
            return Latest(count, _closed_windows(count))
        case "table-aggregate":
            totals: Counter[str] = Counter()
            for key, value in _last_values(count):
                totals[group_of(key)] += cents(amount(value))
            return Latest(count, {group.encode(): LONG.pack(total) for group, total in totals.items()})
        case "foreign-key-join":
            return Latest(count + KEYS, dict(_enriched(count)))
    raise ValueError(f"unknown kind {kind!r}")


def amount(value: str) -> float:
    """Return the amount in a value of the input."""
    return float(value[value.index('"amount":') + 9 : value.index(',"ts"')])


def _pairs(count: int) -> Counter[bytes]:
    """Count pairs of the two streams within the time difference, by key."""
    times: dict[str, list[int]] = {}
    for key, _, at in records(count, TABLE_SEED):
        times.setdefault(key, []).append(at)
    found: Counter[bytes] = Counter()
    for key, _, at in records(count):
        others = times.get(key)
        if others is not None:
            near = bisect_right(others, at + JOIN_WITHIN_MS) - bisect_left(others, at - JOIN_WITHIN_MS)
            if near:
                found[key.encode()] += near
    return found


def _sessions(count: int) -> dict[bytes, bytes]:
    """Return the number of records of each session. Records are in the order of their times."""
    found: dict[bytes, bytes] = {}
    open_: dict[str, tuple[int, int, int]] = {}
    for key, _, at in records(count):
        first, last, number = open_.get(key, (at, at, 0))
        if at - last > SESSION_GAP_MS:
            found[f"{key}@{first}-{last}".encode()] = LONG.pack(number)
            first, number = at, 0
        open_[key] = first, at, number + 1
    found |= {f"{key}@{first}-{last}".encode(): LONG.pack(number) for key, (first, last, number) in open_.items()}
    return found


def _closed_windows(count: int) -> dict[bytes, bytes]:
    """Return the number of records of each window that ends before the last record of its partition."""
    numbers: Counter[tuple[str, int]] = Counter()
    partitions: dict[str, int] = {}
    last = [0] * PARTITIONS
    for key, _, at in records(count):
        numbers[key, at // WINDOW_MS * WINDOW_MS] += 1
        if key not in partitions:
            partitions[key] = partition_for(key.encode(), PARTITIONS)
        last[partitions[key]] = at
    return {
        f"{key}@{start}".encode(): LONG.pack(number)
        for (key, start), number in numbers.items()
        if start + WINDOW_MS <= last[partitions[key]]
    }


def _last_values(count: int) -> Iterable[tuple[str, str]]:
    return {key: value for key, value, _ in records(count)}.items()


def _enriched(count: int) -> Iterator[Output]:
    rows = {key: msgspec.json.decode(value, type=Profile) for key, value, _ in profiles()}
    for key, value in _last_values(count):
        row = rows[profile_of(amount(value))]
        yield key.encode(), msgspec.json.encode(Enriched(key, amount(value), row.country, row.tier))
