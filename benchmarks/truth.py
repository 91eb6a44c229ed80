"""Expected results of a run, computed while the input is written."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator
from struct import Struct
from typing import Protocol

from benchmarks.data import TABLE_SEED, records
from benchmarks.workloads import JOIN_WITHIN_MS, LARGE_AMOUNT, WINDOW_MS

LONG, DOUBLE = Struct(">q"), Struct(">d")

Output = tuple[bytes, bytes]
"""Key and value."""


class Truth(Protocol):
    """Expected results. `total`: records of the input."""

    total: int

    def look(self, outputs: Iterator[Output]) -> tuple[int, int]:
        """Return the number of outputs, and the number of wrong keys (or records)."""


class Latest:
    """Compares the last value of each key."""

    def __init__(self, total: int, values: dict[bytes, bytes]) -> None:
        self.total = total
        self._values = values

    def look(self, outputs: Iterator[Output]) -> tuple[int, int]:
        found: dict[bytes, bytes] = {}
        updates = 0
        for key, value in outputs:
            updates += 1
            found[key] = value
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
