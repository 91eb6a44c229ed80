"""Rates of counters, such as offsets, from samples."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable

WINDOW_MS = 4_000
"""A rate is the mean over at least this time, if the samples reach back so far."""
OLD_MS = 15_000
"""A counter without a sample for so long has no rate."""
LONGEST_STEP_MS = 60_000
"""A counter that has not changed for so long has the rate 0, however seldom it changes. (With at least once, offsets are committed every
30 s.)"""


class Rates:
    """Samples of counters by key. Of each counter, those at which it has changed are kept: one that changes seldom, as committed offsets
    do, has the mean rate between its changes, instead of none and then too much."""

    def __init__(self) -> None:
        self._changes: dict[Hashable, deque[tuple[int, int]]] = {}
        self._seen: dict[Hashable, tuple[int, int]] = {}

    def add(self, key: Hashable, count: int, at_ms: int) -> None:
        """Add a sample. A counter that decreases begins again; a sample that is not newer than the last one is ignored."""
        first_ms, last_ms = self._seen.get(key, (at_ms, at_ms - 1))
        if at_ms <= last_ms:
            return
        changes = self._changes.setdefault(key, deque())
        if changes and count < changes[-1][1]:
            changes.clear()
            first_ms = at_ms
        elif changes and count > changes[-1][1] and last_ms - changes[-1][0] > LONGEST_STEP_MS:
            count_before = changes[-1][1]
            changes.clear()
            changes.append((last_ms, count_before))  # it begins to change now: the time before is not averaged in
        self._seen[key] = (first_ms, at_ms)
        if not changes or count > changes[-1][1]:
            changes.append((at_ms, count))
        while len(changes) > 2 and changes[1][0] <= changes[-1][0] - WINDOW_MS:
            changes.popleft()

    def per_second(self, key: Hashable, now_ms: int) -> float | None:
        """Return the rate; None if it is unknown."""
        changes = self._changes.get(key)
        first_ms, last_ms = self._seen.get(key, (now_ms, now_ms))
        if not changes or first_ms == last_ms or now_ms - last_ms > OLD_MS:
            return None
        (start_ms, start), (end_ms, end) = changes[0], changes[-1]
        if len(changes) == 1:
            return 0.0
        step_ms = end_ms - changes[-2][0]
        if last_ms - end_ms > min(LONGEST_STEP_MS, max(WINDOW_MS, 2 * step_ms)):
            return 0.0
        return (end - start) * 1000 / (end_ms - start_ms)

    def keep(self, wanted: Callable[[Hashable], bool]) -> None:
        """Forget the counters that are not wanted any more."""
        self._changes = {key: changes for key, changes in self._changes.items() if wanted(key)}
        self._seen = {key: seen for key, seen in self._seen.items() if wanted(key)}
