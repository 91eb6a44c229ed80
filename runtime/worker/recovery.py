"""Recovery of a worker from the errors that a turn of its loop may raise (rules.md, 10; `loop.py`)."""

from __future__ import annotations

from penstock.runtime.model.errors import BrokerUnavailableError, TaskCorruptedError, TransactionAbortedError
from penstock.runtime.model.metrics import THREAD, Metrics
from penstock.runtime.model.states import TaskState
from penstock.runtime.tasks.global_task import GlobalTask
from penstock.runtime.tasks.incidents import Incidents
from penstock.runtime.worker.committer import Committer
from penstock.runtime.worker.followers import Followers
from penstock.runtime.worker.incarnations import Incarnations
from penstock.runtime.worker.task_manager import TaskManager


class Recovery:
    """Takes the tasks of one worker back to a state from which it can continue. Used by the worker's thread only."""

    def __init__(
        self,
        *,
        tasks: TaskManager,
        followers: Followers,
        global_task: GlobalTask | None,
        committer: Committer,
        incarnations: Incarnations,
        incidents: Incidents,
        metrics: Metrics,
    ) -> None:
        self._tasks = tasks
        self._followers = followers
        self._global_task = global_task
        self._committer = committer
        self._incarnations = incarnations
        self._search = incidents.search
        self._rollbacks = metrics.counter("rollback-total", THREAD)

    def roll_back(self) -> None:
        """Abort the transaction and roll every task back to the last commit. Raises TaskMigratedError, or TransactionAbortedError if the
        broker does not answer: call it again then."""
        self._rollbacks.add()
        self._committer.drop_untrue_events()
        self._incarnations.current.transport.abort()
        done = [task.offsets_to_commit() for task in self._tasks.in_state(TaskState.RUNNING)]
        self._search.rolled_back({partition: at for of_task in done for partition, at in of_task.items()})
        try:
            self._tasks.rollback()
        except BrokerUnavailableError as error:
            raise TransactionAbortedError(f"the tasks cannot be rolled back to their last commit yet: {error}") from error

    def wipe(self, error: TaskCorruptedError) -> None:
        """Wipe and restore the tasks that the error names. The others are rolled back to the last commit, unless only standbys or learners
        are named."""
        error.clear_traceback()
        if self._global_task is not None and self._global_task.damaged(error):
            self.roll_back()  # after the wipe, so that no task begins that reads the store before it is complete
            return
        self._followers.wipe(error)
        if any(task in self._tasks for task in error.tasks):
            self.roll_back()
            self._tasks.wipe(error)

    def rebuilt_since(self, error: TaskCorruptedError, found_ms: int) -> bool:
        """Return True if the error is about a global store that was rebuilt after it was found, at a monotonic time in ms."""
        return self._global_task is not None and self._global_task.rebuilt_since(error, found_ms)

    def begin_incarnation(self) -> None:
        """Close all tasks dirty, since others may own them, and join under a new name."""
        self._tasks.drop()
        self._search.rolled_back()
        self._committer.drop_untrue_events()
        self._incarnations.renew()
