"""Rates of counters, such as offsets, from samples."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable

WINDOW_MS = 4_000
"""A rate is the mean over at least this time, if the samples reach back so far."""
OLD_MS = 15_000
"""A counter without a sample for so long has no rate."""


class Rates:
    """Samples of counters by key."""

    def __init__(self) -> None:
        self._samples: dict[Hashable, deque[tuple[int, int]]] = {}

    def add(self, key: Hashable, count: int, at_ms: int) -> None:
        """Add a sample. A counter that decreases begins again; a sample that is not newer than the last one is ignored."""
        samples = self._samples.setdefault(key, deque())
        if samples and at_ms <= samples[-1][0]:
            return
        if samples and count < samples[-1][1]:
            samples.clear()
        samples.append((at_ms, count))
        while len(samples) > 2 and samples[1][0] <= at_ms - WINDOW_MS:
            samples.popleft()

    def per_second(self, key: Hashable, now_ms: int) -> float | None:
        """Return the rate; None if it is unknown."""
        samples = self._samples.get(key)
        if not samples or len(samples) < 2 or now_ms - samples[-1][0] > OLD_MS:
            return None
        (first_ms, first), (last_ms, last) = samples[0], samples[-1]
        return (last - first) * 1000 / (last_ms - first_ms)

    def keep(self, wanted: Callable[[Hashable], bool]) -> None:
        """Forget the counters that are not wanted any more."""
        self._samples = {key: samples for key, samples in self._samples.items() if wanted(key)}
