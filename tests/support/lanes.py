"""Distribution of the slow tests over three processes (scripts/slow-tests).

Three on two cores: most of their time is waiting. Tests of one file stay together, in their order: they share fixtures. The files in
`HEAVY` are one unit, so Spark, PostgreSQL, the browser and three brokers never run at the same time; so is `tests/differential`, which
shares one JVM. The units in `LONG` come first, the others by number of tests: a process that becomes free takes the next, so all end at
about the same time.
"""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

HEAVY = {
    f"tests/dagster/test_{name}.py"
    for name in (
        "board",
        "changelog_tables",
        "demo",
        "live",
        "outages",
        "postgresql",
        "screens",
        "secured",
        "spark_cluster",
        "spark_history",
        "spark_messages",
        "spark_seed",
        "spark_source",
        "tables",
        "tutorial",
    )
} | {"tests/chaos/test_cluster.py", "tests/broker/test_racks.py"}
"""Files that need Spark, PostgreSQL, a browser or three brokers."""
LONG = (
    "heavy",
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
    """Return the unit that a test runs in: `heavy`, `tests/differential`, or its file."""
    file = nodeid.split("::", 1)[0]
    if file in HEAVY:
        return "heavy"
    return "tests/differential" if file.startswith("tests/differential/") else file
