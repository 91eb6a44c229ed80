"""What a worker tells the others of each of its tasks (coordination.md)."""

from __future__ import annotations

from runtime.changelog.progress import TaskProgress
from runtime.coordination import PausedAt, RestoreReport, TaskReport
from runtime.intake.reader import Reader
from runtime.states import TaskKind, TaskState
from runtime.tasks.active import ActiveTask
from runtime.tasks.follower import FollowerTask
from runtime.tasks.incidents import PausePoint
from runtime.worker.view import task_info


def active_report(task: ActiveTask, reader: Reader, restore: TaskProgress | None) -> TaskReport:
    """Of a task that processes, or will when its restore has come to its end."""
    info = task_info(task, reader)
    return TaskReport(
        kind=TaskKind.ACTIVE,
        state=task.state,
        offset_sum=sum(info.committed.values()),
        end_sum=sum(info.ends.values()),
        lag=info.lag,
        position=task.position,
        caught_up=task.was_caught_up or task.state in (TaskState.RUNNING, TaskState.PAUSED),
        in_memory=_in_memory(task),
        stateful=bool(task.stores),
        checkpoint_ms=task.checkpoint_ms,
        paused=None if task.paused_at is None else _paused_at(task.paused_at),
        restore=None if restore is None else _restore(restore),
    )


def follower_report(task: FollowerTask, lag: int | None) -> TaskReport:
    """Of a standby or learner that is `lag` records behind."""
    return TaskReport(
        kind=task.kind,
        state=task.state,
        offset_sum=task.position,
        end_sum=task.position + (lag or 0),
        lag=lag,
        position=task.position,
        caught_up=task.caught_up,
        in_memory=_in_memory(task),
        checkpoint_ms=task.checkpoint_ms,
    )


def _in_memory(task: ActiveTask | FollowerTask) -> bool:
    return any(not task.stores[name].persistent for name in task.changelogs if name in task.stores)


def _paused_at(point: PausePoint) -> PausedAt:
    return PausedAt(
        topic=point.partition.topic,
        partition=point.partition.number,
        offset=point.offset,
        error_type=point.error_type,
        error=point.error,
    )


def _restore(progress: TaskProgress) -> RestoreReport:
    return RestoreReport(records=progress.records, remaining=progress.remaining, rate=progress.rate, seconds_left=progress.seconds_left)
