"""Instances of one application as processes, started, stopped and killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks.measure import ROOT, MeasurementError
from penstock.runtime.coordination.commands import CommandClient
from penstock.runtime.coordination.records import Member
from penstock.runtime.kafka.connection import Connection
from penstock.runtime.model.errors import StreamsError
from penstock.runtime.model.states import State, TaskKind, TaskState

POLL_SECONDS = 0.2
SETTLE_SECONDS = 120.0
END_SECONDS = 60.0


@dataclass(slots=True)
class Instances:
    """Processes of one application, by name, with their state and logs in `folder`. `factory` and `config` apply to all instances."""

    application: str
    bootstrap: str
    folder: Path
    factory: str
    environment: dict[str, str]
    config: dict[str, object]
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str, **more: object) -> None:
        """Start an instance, with the state in its folder if there is any. `more` is configuration of this instance."""
        path, log = self.folder / f"{name}.json", self.folder / f"{name}.log"
        config = {**self.config, **more, "bootstrap.servers": self.bootstrap, "state.dir": str(self.folder / name)}
        settings = {
            "application": self.application,
            "instance": name,
            "factory": self.factory,
            "config": config,
            "log_path": str(log),
        }
        path.write_text(json.dumps(settings))
        command = [sys.executable, "-m", "penstock.runtime.instance", "--config", str(path)]
        with (self.folder / f"{name}.err").open("ab") as errors:
            self.processes[name] = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **self.environment}, stdout=errors, stderr=errors)

    def stop(self, name: str) -> None:
        """Send SIGTERM: the instance will be started again."""
        self.processes[name].send_signal(signal.SIGTERM)
        self._ended(name)

    def leave(self, name: str) -> None:
        """Make the instance leave the group: it hands its tasks over and ends; delete its state."""
        with CommandClient(self.application, Connection(self.bootstrap), "benchmark") as client:
            client.send("close", instance=name)
        self._ended(name)
        shutil.rmtree(self.folder / name)

    def _ended(self, name: str) -> None:
        try:
            status = self.processes.pop(name).wait(END_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise MeasurementError(f"{name} did not end:\n{self._log_end(name)}") from error
        if status != 0:
            raise MeasurementError(f"{name} ended with status {status}:\n{self._log_end(name)}")

    def kill(self, name: str) -> None:
        """Send SIGKILL; delete the state, as if the machine were lost."""
        process = self.processes.pop(name)
        process.kill()
        process.wait()
        shutil.rmtree(self.folder / name)

    def freeze(self, name: str) -> None:
        """Suspend all processes of an instance, as if its machine were, or its network away."""
        main = psutil.Process(self.processes[name].pid)
        for process in (main, *main.children(recursive=True)):
            process.suspend()

    def kill_worker(self, name: str) -> None:
        """Send SIGKILL to one worker process of an instance, which keeps running; return when the other members have noticed."""
        before: set[str] = set()

        def known() -> bool:
            before.update(member.identity for member in self._members() if member.instance == name)
            return len(before) > 1

        self.wait(known, f"the workers of {name}")
        psutil.Process(self.processes[name].pid).children()[0].kill()
        self.wait(lambda: bool(before - {member.identity for member in self._members()}), f"the death of a worker of {name}")

    def kill_all(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
        self.processes.clear()

    # -- waiting ---------------------------------------------------------------------------------------------------------------

    def settled(self, wanted: dict[str, int], standbys: int = 0) -> None:
        """Wait until these instances run this many tasks each, and have `standbys` caught-up copies in total."""
        self.wait(lambda: self._is_settled(wanted, standbys), f"{wanted} tasks, {standbys} standbys")

    def shared_evenly(self, workers: int) -> None:
        """Wait until so many workers share the tasks, the difference being one task at most."""

        def shared() -> bool:
            counts = [len(member.active) for member in self._members()]
            return len(counts) == workers and max(counts) - min(counts) <= 1

        self.wait(shared, f"the same number of tasks for each of {workers} workers")

    def _is_settled(self, wanted: dict[str, int], standbys: int) -> bool:
        members = self._members()
        tasks: dict[str, int] = {}
        for member in members:
            tasks[member.instance] = tasks.get(member.instance, 0) + len(member.active)
        reports = [report for member in members for report in member.tasks.values()]
        return (
            tasks == wanted
            and all(member.state is State.RUNNING for member in members)
            and all(report.state is not TaskState.RESTORING for member in members for report in (member.tasks[t] for t in member.active))
            and sum(report.caught_up and report.kind is TaskKind.STANDBY for report in reports) >= standbys
        )

    def _members(self) -> list[Member]:
        try:
            with CommandClient(self.application, Connection(self.bootstrap), "benchmark") as client:
                return client.members()
        except StreamsError:
            return []  # the application has not started yet

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for a condition. Raises MeasurementError on a timeout, or if an instance ends meanwhile."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while not condition():
            for name, process in self.processes.items():
                if process.poll() is not None:
                    raise MeasurementError(f"{name} ended with status {process.returncode}:\n{self._log_end(name)}")
            if time.monotonic() > deadline:
                raise MeasurementError(f"{what} did not come within {SETTLE_SECONDS:.0f} s")
            time.sleep(POLL_SECONDS)

    def _log_end(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")[-3000:]
