"""Metadata of what an instance does now, under the same names wherever they are shown. A page of a partition shows the newest value of each
name, so an event that left a name out would leave an old value there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

import dagster as dg

from penstock.orchestration.database.models import Task
from penstock.orchestration.health.figures import Figures
from penstock.runtime.model.states import TaskKind

Metadata = Mapping[str, dg.MetadataValue]


def instance_metadata(figures: Figures, tasks: Sequence[Task], at: datetime) -> Metadata:
    """Return the state and figures of an instance, and a row per task. `tasks`: those that it runs, copies included."""
    learning = [task.lag or 0 for task in tasks if task.kind == TaskKind.LEARNER.value]
    return {
        "state": dg.MetadataValue.text(figures.state),
        "as_of": dg.MetadataValue.timestamp(at),
        **numbers(figures),
        "tasks": _tasks_table(tasks, at),
        "task_count": dg.MetadataValue.int(len(tasks)),
        "workers": dg.MetadataValue.int(len({task.worker for task in tasks})),
        "records_to_learn": dg.MetadataValue.int(sum(learning)),
    }


def numbers(figures: Figures) -> Metadata:
    """Return the known figures as numbers, which Dagster plots."""
    return {name: dg.MetadataValue.int(n) if isinstance(n, int) else dg.MetadataValue.float(n) for name, n in figures.numbers.items()}


def _tasks_table(tasks: Sequence[Task], at: datetime) -> dg.TableMetadataValue:
    """Return a row per task. `lag`: an active task's on its input, a copy's on its changelogs. All times are as of `at`."""
    columns = {
        "task": "string",
        "state": "string",
        "paused_at": "string",
        "kind": "string",
        "worker": "int",
        "lag": "int",
        "learned_percent": "float",
        "checkpoint_age_s": "float",
    }
    records = [
        dg.TableRecord(
            {
                "task": task.task,
                "worker": task.worker,
                "kind": task.kind,
                "state": task.state,
                "lag": task.lag,
                "learned_percent": learned_percent(task),
                "checkpoint_age_s": None if task.checkpoint_at is None else round((at - task.checkpoint_at).total_seconds(), 1),
                "paused_at": None if task.paused_topic is None else f"{task.paused_topic}-{task.paused_partition}@{task.paused_offset}",
            }
        )
        for task in tasks
    ]
    return table(columns, records)


def table(columns: Mapping[str, str], records: Sequence[dg.TableRecord]) -> dg.TableMetadataValue:
    """Return a table with columns of these types."""
    return dg.MetadataValue.table(records=records, schema=dg.TableSchema([dg.TableColumn(name, kind) for name, kind in columns.items()]))


def learned_percent(task: Task) -> float | None:
    """Return the percentage of its changelogs that a standby has read; None for an active task, and if the end is not known."""
    if task.kind == TaskKind.ACTIVE.value or task.lag is None or not task.end_sum:
        return None
    return round(100 * (1 - task.lag / task.end_sum), 1)
