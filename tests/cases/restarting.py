"""An application that stops and starts again between two records of a case."""

from __future__ import annotations

from enum import Enum

from penstock.runtime.testing.tasks import DriverTask
from penstock.runtime.topology.pipeline import compile_pipeline
from penstock.testing import TopologyTestDriver


class State(Enum):
    """Files that the next start finds on the disk."""

    KEPT = "its stores"
    LOST = "nothing: stores are restored from their changelogs"


def restart(driver: TopologyTestDriver, state: State) -> None:
    """Closes all tasks, and opens them again as a new start would. What goes with the committed offsets is there in any case."""
    for task in driver._tasks:
        _restart(driver, task, state)


def _restart(driver: TopologyTestDriver, task: DriverTask, state: State) -> None:
    context = task._context
    assert task._pipeline is not None
    task._pipeline.close()
    for store in task.stores.values():
        directory, opened_with = store._directory, store._context  # type: ignore[attr-defined]  # of the engine's own stores
        store.close()
        store.open(directory, opened_with)
        if state is State.LOST or not store.persistent:
            store.wipe()
            log = driver._log.unread(f"{context.application_id}-{store.name}-changelog")
            store.restore([(record.raw_key or b"", record.raw_value, record.time_ms) for record in log], {})
    context.shared.clear()
    task._pipeline = compile_pipeline(task.plan.subtopology, context, task._continues_after)
    task._pipeline.init()
