"""Metadata of what an instance does now, under the same names wherever they are shown. A page of a partition shows the newest value of each
name, so an event that left a name out would leave an old value there: what is not known is reported as unknown.

A page of 1440 pixels has room for tables of five columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

import dagster as dg

from penstock.orchestration.database.models import Task
from penstock.orchestration.health.figures import Figures
from penstock.runtime.model.states import TaskKind

Metadata = Mapping[str, dg.MetadataValue]


def instance_metadata(figures: Figures, tasks: Sequence[Task], at: datetime) -> Metadata:
    """Return the state and figures of an instance, and a row per task. `tasks`: those that it runs, or ran last, copies included."""
    shown = tasks if figures.runs else ()
    counts: dict[str, int | float | None] = {
        "task_count": len(shown),
        "workers": len({task.worker for task in shown}),
        "records_to_learn": sum(task.lag or 0 for task in shown if task.kind == TaskKind.LEARNER.value),
    }
    return {
        "state": dg.MetadataValue.text(figures.state),
        "as_of": dg.MetadataValue.timestamp(at),
        **numbers(figures.numbers),
        "tasks": _tasks_table(shown, at),
        **numbers(counts if figures.known else dict.fromkeys(counts)),
    }


def numbers(named: Mapping[str, int | float | None]) -> Metadata:
    """Return figures as numbers, which Dagster plots, and those that are None as unknown, which leaves a gap in the plot."""
    return {name: _number(value) for name, value in named.items()}


def _number(value: int | float | None) -> dg.MetadataValue:
    if value is None:
        return dg.MetadataValue.text("unknown")
    return dg.MetadataValue.int(value) if isinstance(value, int) else dg.MetadataValue.float(value)


def _tasks_table(tasks: Sequence[Task], at: datetime) -> dg.TableMetadataValue:
    """Return a row per task. `lag`: an active task's on its input, a copy's on its changelogs. All times are as of `at`."""
    columns = {"task": "string", "kind": "string", "state": "string", "lag": "int", "checkpoint_age_s": "float"}
    several = len({task.worker for task in tasks}) > 1
    records = [
        dg.TableRecord(
            {
                "task": f"{task.task} (worker {task.worker})" if several else task.task,
                "kind": task.kind,
                "state": _state(task),
                "lag": task.lag,
                "checkpoint_age_s": None if task.checkpoint_at is None else round((at - task.checkpoint_at).total_seconds(), 1),
            }
        )
        for task in tasks
    ]
    return table(columns, records)


def _state(task: Task) -> str:
    """Return the state of a task, with the record at which it is paused, or with the part of its changelogs that a copy has read."""
    if task.paused_topic is not None:
        return f"{task.state} at {task.paused_topic}-{task.paused_partition}@{task.paused_offset}"
    percent = learned_percent(task)
    return task.state if percent is None else f"{task.state}, {percent} % read"


def table(columns: Mapping[str, str], records: Sequence[dg.TableRecord]) -> dg.TableMetadataValue:
    """Return a table with columns of these types."""
    return dg.MetadataValue.table(records=records, schema=dg.TableSchema([dg.TableColumn(name, kind) for name, kind in columns.items()]))


def learned_percent(task: Task) -> float | None:
    """Return the percentage of its changelogs that a copy has read; None for an active task, and if the end is not known."""
    if task.kind == TaskKind.ACTIVE.value or task.lag is None or not task.end_sum:
        return None
    return round(100 * (1 - task.lag / task.end_sum), 1)
