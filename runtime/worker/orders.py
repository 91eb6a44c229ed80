"""What the leader and operators want of a worker, carried out; and what the worker tells them (coordination.md)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from runtime.changelog.restore import Restorer
from runtime.coordination import Command, CommandResult, Coordination, Granted, Lost, Revoked
from runtime.errors import TaskMigratedError, TransactionAbortedError
from runtime.events import EventKind, EventSink
from runtime.ids import TaskId
from runtime.intake.reader import Reader
from runtime.states import State
from runtime.worker.answers import Answer, Work
from runtime.worker.commands import Commands
from runtime.worker.followers import Followers
from runtime.worker.reports import active_report, follower_report
from runtime.worker.tasks import TaskSet

REPORT_MS = 1_000
"""How often the worker's tasks are reported while nothing but their lag changes."""


class Orders:
    """Grants, revocations and commands from the coordination topic, and the reports to it. Belongs to the worker's thread."""

    def __init__(
        self,
        *,
        instance: str,
        coordination: Coordination,
        commands: Commands,
        tasks: TaskSet,
        followers: Followers,
        reader: Reader,
        restorer: Restorer,
        events: EventSink,
        commit: Callable[[], object],
        show: Callable[[], None],
    ) -> None:
        """`show`: swaps in what other threads see of the worker; called before a command is answered, as for a call of theirs."""
        self._instance = instance
        self._coordination = coordination
        self._commands = commands
        self._tasks = tasks
        self._followers = followers
        self._reader = reader
        self._restorer = restorer
        self._events = events
        self._commit = commit
        self._show = show
        self._untold: deque[Command] = deque()
        self._under_way: list[tuple[Command, Work]] = []
        self._reported_at_ms = 0
        self.granted = False
        """True once this incarnation was granted anything, be it nothing to run."""

    def begin_incarnation(self) -> None:
        """Nothing is granted to the new name yet."""
        self.granted = False

    def listen(self) -> None:
        """Carries out what has come. Raises TransactionAbortedError, TaskMigratedError and what opening a task does; orders that fail
        are given again, and commands wait here until the worker has recovered."""
        orders = self._coordination.poll()
        self._untold.extend(told for told in orders if isinstance(told, Command))
        for told in orders:
            match told:
                case Granted():
                    self._grant(told)
                case Revoked():
                    self._hand_over(told.tasks)
                case Lost():
                    raise TaskMigratedError(f"this worker is no longer a member: {told.reason}")
        while self._untold:
            self._carry_out(self._untold.popleft())
        for command, work in tuple(self._under_way):
            answer = work()
            if answer is not None:
                self._under_way.remove((command, work))
                self._answer(command, answer)

    def _grant(self, grant: Granted) -> None:
        gone = [task.id for task in self._tasks.all() if task.id not in grant.active]
        if gone:
            self._hand_over(gone)
        new = [task for task in sorted(grant.active) if task not in self._tasks]
        if new or not self.granted:
            self._events.emit(EventKind.TASKS_ASSIGNED, {"active": [str(task) for task in sorted(grant.active)]})
        self.granted = True
        promoted = self._followers.promote(grant.active)
        self._followers.keep(grant.copies)
        self._tasks.create(grant.active, promoted)
        self._followers.open(grant.copies)

    def _hand_over(self, tasks: Sequence[TaskId]) -> None:
        """Commit, and say so: only then may another be granted them (coordination.md, 3). Nothing is done for them after the commit, so the
        other begins while they are closed here. (A worker of the same instance waits for the folder's lock.)"""
        self._commit()
        self._coordination.released(tasks)
        self._tasks.close(tasks)

    def _carry_out(self, command: Command) -> None:
        try:
            answer = self._commands.run(command.kind, None if command.task is None else TaskId.parse(command.task), command.args)
        except (TransactionAbortedError, TaskMigratedError) as error:
            self._answer(command, Answer(False, f"rolled back, nothing was done: {error}", {"again": True}))
            raise
        if isinstance(answer, Answer):
            self._show()
            self._answer(command, answer)
        else:
            self._under_way.append((command, answer))

    def _answer(self, command: Command, answer: Answer) -> None:
        self._coordination.result(
            CommandResult(id=command.id, ok=answer.ok, reason=answer.reason, data=dict(answer.data), by=self._instance)
        )

    def report(self, state: State, now_ms: int) -> None:
        """Tells the others of every task, where something has changed, and now and then. `now_ms` is monotonic time."""
        if self._tasks.changed or self._followers.changed or now_ms - self._reported_at_ms >= REPORT_MS:
            self._reported_at_ms = now_ms
            reports = {task.id: active_report(task, self._reader, self._restorer.task_progress(task.id)) for task in self._tasks.all()}
            reports.update((task.id, follower_report(task, self._followers.lag(task.id))) for task in self._followers.all())
            self._coordination.report(reports, state)
