"""The worker's side of the coordination topic: handles grants, revocations and commands, and reports its tasks (coordination.md)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from penstock.runtime.changelog.progress import TaskProgress
from penstock.runtime.changelog.restore import Restorer
from penstock.runtime.coordination import (
    Cause,
    Command,
    CommandResult,
    Coordination,
    GlobalStoreReport,
    Granted,
    Lost,
    PausedAt,
    RestoreReport,
    Revoked,
    Shutdown,
    TaskReport,
)
from penstock.runtime.kafka.input_reader import Reader
from penstock.runtime.model.clock import Clock
from penstock.runtime.model.errors import ApplicationShutdownError, TaskMigratedError, TransactionAbortedError
from penstock.runtime.model.events import EventKind, EventSink
from penstock.runtime.model.ids import TaskId
from penstock.runtime.model.metrics import THREAD, Counter, Metrics
from penstock.runtime.model.states import State, TaskKind, TaskState
from penstock.runtime.tasks.active import ActiveTask
from penstock.runtime.tasks.follower import FollowerTask
from penstock.runtime.tasks.global_state import GlobalProgress, Phase
from penstock.runtime.tasks.global_task import GlobalTask
from penstock.runtime.tasks.incidents import PausePoint
from penstock.runtime.worker.commands import Answer, Commands, Work
from penstock.runtime.worker.followers import Followers
from penstock.runtime.worker.incarnations import Incarnations
from penstock.runtime.worker.task_manager import TaskManager
from penstock.runtime.worker.view import task_info

REPORT_MS = 1_000
"""Interval of the reports while only the tasks' lag changes."""


class CoordinationHandler:
    """Grants, revocations and commands from the coordination topic, and the reports to it. Used by the worker's thread only."""

    def __init__(
        self,
        *,
        instance: str,
        coordination: Coordination,
        commands: Commands,
        incarnations: Incarnations,
        tasks: TaskManager,
        followers: Followers,
        reader: Reader,
        restorer: Restorer,
        events: EventSink,
        global_task: GlobalTask | None,
        metrics: Metrics,
        clock: Clock,
        commit: Callable[[], object],
        written: Callable[[], int],
        refresh_view: Callable[[], None],
    ) -> None:
        """`written` returns how many records the commits have written. `refresh_view` updates what other threads see of the worker; called
        before a command is answered, as before the answer to a call of theirs."""
        self._instance = instance
        self._coordination = coordination
        self._commands = commands
        self._incarnations = incarnations
        self._tasks = tasks
        self._followers = followers
        self._reader = reader
        self._restorer = restorer
        self._events = events
        self._global_task = global_task
        self._metrics = metrics
        self._clock = clock
        self._assigned: Granted | None = None
        """The last grant of this incarnation that changed its tasks."""
        self._assigned_ms: int | None = None
        self._commit = commit
        self._written = written
        self._refresh_view = refresh_view
        self._waiting_commands: deque[Command] = deque()
        self._under_way: list[tuple[Command, Work]] = []
        self._reported_at_ms = 0
        for cause in Cause:
            self._assignments(cause.value)
        metrics.gauge_of("last-rebalance-seconds-ago", THREAD, self._seconds_since_assignment)

    def _assignments(self, cause: str) -> Counter:
        return self._metrics.counter("assignment-total", THREAD, cause=cause)

    def _seconds_since_assignment(self) -> float:
        at_ms = self._assigned_ms
        return -1.0 if at_ms is None else (self._clock.monotonic_ms() - at_ms) / 1000

    def listen(self) -> None:
        """Handle new records of the coordination topic. Raises TransactionAbortedError, TaskMigratedError and what opening a task raises;
        ApplicationShutdownError after a last commit. Orders that fail are repeated; commands wait until the worker has recovered."""
        orders = self._coordination.poll()
        self._waiting_commands.extend(order for order in orders if isinstance(order, Command))
        for order in orders:
            match order:
                case Granted():
                    self._grant(order)
                case Revoked():
                    self._hand_over(order.tasks)
                case Lost():
                    raise TaskMigratedError(f"this worker is no longer a member: {order.reason}")
                case Shutdown():
                    self._commit()
                    raise ApplicationShutdownError(
                        f"instance {order.by} shuts the application down: its uncaught-exception handler answered SHUTDOWN_APPLICATION to "
                        f"{order.error}"
                    )
        while self._waiting_commands:
            self._execute(self._waiting_commands.popleft())
        for command, work in tuple(self._under_way):
            answer = work()
            if answer is not None:
                self._under_way.remove((command, work))
                self._answer(command, answer)

    def _grant(self, grant: Granted) -> None:
        gone = [task.id for task in self._tasks.all() if task.id not in grant.active]
        if gone:
            self._hand_over(gone)
        incarnation = self._incarnations.current
        if not incarnation.granted:
            self._assigned = None
        incarnation.granted = True
        self._note_assignment(grant)
        promoted = self._followers.promote(grant.active)
        self._followers.close_unwanted(grant.copies)
        self._tasks.create(grant.active, promoted)
        self._followers.open(grant.copies)

    def _note_assignment(self, grant: Granted) -> None:
        """Publish the grant, if the tasks differ from those of the last one."""
        last, self._assigned = self._assigned, grant
        if last is not None and (last.active, last.copies) == (grant.active, grant.copies):
            return
        self._assigned_ms = self._clock.monotonic_ms()
        self._assignments(grant.cause or Cause.OTHER.value).add()

        def copies(kind: TaskKind) -> list[str]:
            return [str(task) for task in sorted(grant.copies) if grant.copies[task] is kind]

        tasks = {
            "active": [str(task) for task in sorted(grant.active)],
            "standby": copies(TaskKind.STANDBY),
            "learner": copies(TaskKind.LEARNER),
        }
        self._events.emit(EventKind.TASKS_ASSIGNED, {**tasks, "cause": grant.cause})

    def _hand_over(self, tasks: Sequence[TaskId]) -> None:
        """Commit, then release the tasks: only then may the leader grant them to another member (coordination.md, 3). They are closed here
        while the other member opens them. (A worker of the same instance waits for the directory's lock.)"""
        self._commit()
        self._coordination.released(tasks)
        self._tasks.close(tasks)

    def _execute(self, command: Command) -> None:
        try:
            answer = self._commands.run(command.kind, None if command.task is None else TaskId.parse(command.task), command.args)
        except (TransactionAbortedError, TaskMigratedError) as error:
            self._answer(command, Answer(False, f"rolled back, nothing was done: {error}", {"again": True}))
            raise
        if isinstance(answer, Answer):
            self._refresh_view()
            self._answer(command, answer)
        else:
            self._under_way.append((command, answer))

    def _answer(self, command: Command, answer: Answer) -> None:
        self._coordination.result(
            CommandResult(id=command.id, ok=answer.ok, reason=answer.reason, data=dict(answer.data), by=self._instance)
        )

    def report(self, state: State, now_ms: int) -> None:
        """Report every task and global store to the other members, on a change and periodically. `now_ms` is monotonic time."""
        if self._tasks.changed or self._followers.changed or now_ms - self._reported_at_ms >= REPORT_MS:
            self._reported_at_ms = now_ms
            reports = {task.id: _active_report(task, self._reader, self._restorer.task_progress(task.id)) for task in self._tasks.all()}
            reports.update((task.id, _follower_report(task, self._followers.lag(task.id))) for task in self._followers.all())
            self.report_global_stores()
            self._coordination.written = self._written()
            self._coordination.report(reports, state)

    def report_global_stores(self) -> None:
        """Put the global stores into the next report; a new incarnation begins with them."""
        if self._global_task is not None:
            self._coordination.global_stores = {each.store: _global_report(each) for each in self._global_task.progress()}


def _active_report(task: ActiveTask, reader: Reader, restore: TaskProgress | None) -> TaskReport:
    """Return the report of an active task, restored or still restoring."""
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


def _follower_report(task: FollowerTask, lag: int | None) -> TaskReport:
    """Return the report of a standby or learner that is `lag` records behind."""
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


def _global_report(store: GlobalProgress) -> GlobalStoreReport:
    return GlobalStoreReport(
        topic=store.topic,
        state=TaskState.RUNNING if store.phase is Phase.RUNNING else TaskState.RESTORING,
        position=store.position,
        end=store.end,
        lag=store.end - store.position,
        checkpoint_ms=store.checkpoint_ms,
        restore=None if store.restore is None else _restore(store.restore),
        reason=store.reason,
        attempt=store.attempt,
        waits=store.phase is Phase.GONE,
    )


def _in_memory(task: ActiveTask | FollowerTask) -> bool:
    return any(not task.stores[name].persistent for name in task.changelogs if name in task.stores)


def _paused_at(point: PausePoint) -> PausedAt:
    return PausedAt(
        topic=point.partition.topic,
        partition=point.partition.partition,
        offset=point.offset,
        error_type=point.error_type,
        error=point.error,
        location=None if point.details is None else point.details.location,
        since_ms=point.since_ms,
    )


def _restore(progress: TaskProgress) -> RestoreReport:
    return RestoreReport(records=progress.records, remaining=progress.remaining, rate=progress.rate, seconds_left=progress.seconds_left)
