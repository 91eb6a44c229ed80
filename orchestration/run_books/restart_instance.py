"""*Restart instance*: close it cleanly, keep its tasks reserved for it, and start it with the current code and configuration."""

from __future__ import annotations

import socket
from typing import ClassVar

from penstock.orchestration.instances.deployment import refuse
from penstock.orchestration.instances.operations import STOP_SECONDS, Operations, Started
from penstock.orchestration.kafka.task_commands import RefusedError
from penstock.orchestration.run_books.base import Findings, Progress, Request, RunBook, Step, Subject


class RestartInstance(RunBook):
    """One run. Refused if the instance runs on another machine, or would not start again. If the run is killed after the stop, the instance
    is still wanted: the sensor, or the next run of this run-book, starts it."""

    NAME = "restart-instance"
    STEPS: ClassVar[tuple[Step, ...]] = (
        Step("check", "a broker answers, the instance is this machine's to start, and would start with the code and configuration of now"),
        Step("stop", "the process closes cleanly; its tasks stay reserved for it"),
        Step("start", "a process starts, with the code and configuration of now, and says RUNNING"),
    )

    def __init__(self, operations: Operations, instance: str, request: Request, progress: Progress = lambda _: None) -> None:
        """Prepare a run. Raises WrongDeclarationError for an instance that is not declared."""
        super().__init__(operations.owner(instance), operations.control_plane, request, progress)
        self._operations = operations
        self._instance = instance
        self.started: Started | None = None

    def subject(self) -> Subject:
        return Subject(f"instance {self._instance}")

    def inspect(self, findings: Findings) -> None:
        self.feed.step()  # fails if no broker answers: the instance could be closed, but not started again
        row, tasks = self._operations.rows(self._instance)
        process = self._operations.launcher.running(self._instance)
        if process is None and row.member_id is not None and row.host not in (None, socket.gethostname()):
            raise RefusedError(f"{self._instance} runs on {row.host}: restart it there")
        prechecked = self._operations.launcher.precheck(self.application, [self._instance])
        prechecked.beside.pop(self._instance, None)
        refuse(self.application, prechecked, alone=False)
        findings.update({"process": None if process is None else process.pid, "state": row.state, "tasks": len(tasks)})

    def take(self, step: Step, findings: Findings) -> None:
        match step.name:
            case "stop":
                findings["ran"] = self._operations.close_for_restart(
                    self._instance, actor=self.request.requested_by, timeout_s=STOP_SECONDS
                )
            case "start":
                self.started = self._operations.start(self._instance, actor=self.request.requested_by, progress=self.progress)
                findings.update({"process": self.started.process.pid, "state": self.started.instance.state})

    def outcome(self) -> str:
        assert self.started is not None  # called after the last step
        return f"{self._instance} is {self.started.instance.state} as process {self.started.process.pid}"
