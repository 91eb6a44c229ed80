"""Distribution of the slow tests over three processes (scripts/slow-tests).

Three on two cores: much of their time is waiting. Tests of one file stay together, in their order: they share fixtures. The files of a
unit in `UNITS` run one after the other, so no two of them need their gigabyte at the same time, and one session of Spark serves many; so do
those of `tests/differential`, which share one JVM. The units in `LONG` come first, the others by number of tests: a process that becomes
free takes the next, so all end at about the same time.
"""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

UNITS = {
    "spark": (
        "tests/dagster/test_changelog_tables.py",
        "tests/dagster/test_spark_cluster.py",
        "tests/dagster/test_spark_history.py",
        "tests/dagster/test_spark_history_ends.py",
        "tests/dagster/test_spark_messages.py",
        "tests/dagster/test_spark_seed.py",
        "tests/dagster/test_spark_source.py",
        "tests/dagster/test_tables.py",
    ),
    "screens": (
        "tests/broker/test_racks.py",
        "tests/chaos/test_cluster.py",
        "tests/dagster/test_board.py",
        "tests/dagster/test_demo.py",
        "tests/dagster/test_live.py",
        "tests/dagster/test_outages.py",
        "tests/dagster/test_postgresql.py",
        "tests/dagster/test_screens.py",
        "tests/dagster/test_secured.py",
        "tests/dagster/test_tutorial.py",
    ),
}
"""Files that need Spark, PostgreSQL, a browser or three brokers, in two units of about the same length: those of one session of Spark, and
the others."""
LONG = (
    "screens",
    "spark",
    "tests/broker/test_group_life.py",
    "tests/dagster/test_reset.py",
    "tests/dagster/test_deploy.py",
    "tests/broker/test_evolving_types.py",
    "tests/chaos/test_broker_away.py",
    "tests/chaos/test_fleet.py",
    "tests/dagster/test_run_books.py",
    "tests/chaos/test_rounds.py",
    "tests/broker/test_embedded.py",
    "tests/broker/test_transactions.py",
)
"""Units of more than half a minute, the longest first."""


class Lanes(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no type hints
    """Scheduler for `-n 3 --dist loadscope`."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        longest = next((unit for unit in LONG if unit in self.workqueue), None)
        if longest is not None:
            self.workqueue.move_to_end(longest, last=False)
        super()._assign_work_unit(node)


def unit_of(nodeid: str) -> str:
    """Return the unit that a test runs in: a name in `UNITS`, `tests/differential`, or its file."""
    file = nodeid.split("::", 1)[0]
    if file.startswith("tests/differential/"):
        return "tests/differential"
    return next((unit for unit, files in UNITS.items() if file in files), file)
