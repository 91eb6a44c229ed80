"""Distribution of the slow tests over two processes (scripts/slow-tests).

Tests of one file stay together, in their order: they share fixtures. Everything outside `tests/broker` is one unit, so Spark's cluster,
PostgreSQL and the browser never run at the same time. This unit comes first; a process that becomes free takes the next file of
`tests/broker`, so both end at about the same time, however long a file takes.
"""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling


class Lanes(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no type hints
    """Scheduler for `-n 2 --dist loadscope`."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)


def unit_of(nodeid: str) -> str:
    """Return the unit that a test runs in: its file in `tests/broker`, or one for all other tests."""
    file = nodeid.split("::", 1)[0]
    return file if file.startswith("tests/broker/") else "others"
