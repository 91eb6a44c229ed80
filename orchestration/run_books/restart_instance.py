"""*Restart instance*: closed cleanly, its tasks stay reserved for it, and started with the code and configuration of now."""

from __future__ import annotations

import socket
from typing import ClassVar

from orchestration.operations import STOP_SECONDS, Operations, Started
from orchestration.run_books.base import Found, Progress, Request, RunBook, Step, Subject
from orchestration.tasks import RefusedError


class RestartInstance(RunBook):
    """One run. Refused: it runs on another machine. Killed after the stop, the instance is still wanted: the sensor, or the next start of
    this run-book, starts it."""

    NAME = "restart-instance"
    STEPS: ClassVar[tuple[Step, ...]] = (
        Step("check", "a broker answers, and the instance is this machine's to start"),
        Step("stop", "the process closes cleanly; its tasks stay reserved for it"),
        Step("start", "a process starts, with the code and configuration of now, and says RUNNING"),
    )

    def __init__(self, operations: Operations, instance: str, request: Request, progress: Progress = lambda _: None) -> None:
        """Raises WrongDeclarationError for an instance that is not declared."""
        super().__init__(operations.applications.of_instance(instance), operations.control_plane, request, progress)
        self._operations = operations
        self._instance = instance
        self.started: Started | None = None

    def subject(self) -> Subject:
        return Subject(f"instance {self._instance}")

    def look(self, found: Found) -> None:
        self.feed.step()  # closing it while no broker answers would leave it closed
        row, tasks = self._operations.look(self._instance)
        process = self._operations.launcher.running(self._instance)
        if process is None and row.member_id is not None and row.host not in (None, socket.gethostname()):
            raise RefusedError(f"{self._instance} runs on {row.host}: restart it there")
        found.update({"process": None if process is None else process.pid, "state": row.state, "tasks": len(tasks)})

    def take(self, step: Step, found: Found) -> None:
        match step.name:
            case "stop":
                found["ran"] = self._operations.close_for_restart(self._instance, actor=self.request.requested_by, timeout_s=STOP_SECONDS)
            case "start":
                self.started = self._operations.start(self._instance, actor=self.request.requested_by, progress=self.progress)
                found.update({"process": self.started.process.pid, "state": self.started.instance.state})

    def outcome(self) -> str:
        assert self.started is not None  # asked after the last step
        return f"{self._instance} is {self.started.instance.state} as process {self.started.process.pid}"
