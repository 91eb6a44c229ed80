"""Global tables: a full copy of a topic in every worker, kept right when the topic is cut, cleaned or made anew (KIP-406)."""

from __future__ import annotations

from runtime.ids import TaskId


class GlobalTask:
    """All global stores of a worker. Belongs to the worker's thread; never paused."""

    def start(self) -> None:
        """Opens the stores (a damaged one is wiped), checks the topics, and begins to read."""

    def step(self, timeout: float) -> bool:
        """Reads and applies once, waiting at most `timeout` seconds; True if something was applied. Also where recoveries begin and end."""
        ...

    @property
    def restoring(self) -> bool:
        """True while a global store is built or built anew: the client's state is RESTORING (rules.md, 1)."""
        ...

    def register_reader(self, store: str, task: TaskId) -> None:
        """`get_state_store` of a task's processor, at init (rules.md, 27)."""

    def unregister_reader(self, task: TaskId) -> None:
        """The task was closed."""

    def may_process(self, task: TaskId) -> bool:
        """False while a global store that the task reads is being rebuilt: nothing may be joined against half a table."""
        ...

    def checkpoint(self) -> None:
        """Flushes the stores and writes `global/.checkpoint` if `statestore.checkpoint.interval.ms` has passed (KIP-116)."""

    def close(self) -> None: ...
