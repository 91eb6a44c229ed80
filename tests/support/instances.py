"""Instances of a counting application as processes that tests can kill and suspend, and their reports on the coordination topic."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from penstock.runtime.coordination.commands import CommandClient
from penstock.runtime.coordination.records import Record, TaskReport, decode
from penstock.runtime.coordination.topics import coordination_topic
from penstock.runtime.topology.topology import Topology
from tests.support import ROOT, Kafka, wait_until
from tests.support.engine import PAUSE, count_topology

SESSION = {"session.timeout.ms": 2000, "heartbeat.interval.ms": 300}


def build() -> Topology:
    """Return the topology of the processes: every update of a count is written."""
    return count_topology(os.environ["TEST_SOURCE"], os.environ["TEST_OUTPUT"], caching=False)


@dataclass(slots=True)
class Application:
    """An application whose instances are processes."""

    broker: Kafka
    id: str
    source: str
    output: str
    folder: Path
    settings: dict[str, object] = field(default_factory=dict)
    factory: str = "tests.support.instances:build"
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    started_ms: dict[str, int] = field(default_factory=dict)
    """Time of each instance's last start (Unix ms)."""

    def start(self, name: str, **more: object) -> subprocess.Popen[bytes]:
        """Start an instance, or start it again with its state. `more` is configuration of this instance alone."""
        config = {
            "bootstrap.servers": self.broker.bootstrap_servers,
            "state.dir": str(self.folder / name),
            "deserialization.exception.handler": PAUSE,
            **SESSION,
            **self.settings,
            **more,
        }
        log = self.folder / f"{name}.log"
        settings = {
            "application": self.id,
            "instance": name,
            "factory": self.factory,
            "config": config,
            "log_path": str(log),
        }
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps(settings))
        environment = {**os.environ, "TEST_SOURCE": self.source, "TEST_OUTPUT": self.output}
        self.started_ms[name] = time.time_ns() // 1_000_000
        process = subprocess.Popen([sys.executable, "-m", "penstock.runtime.instance", "--config", str(path)], cwd=ROOT, env=environment)
        self.processes[name] = process
        return process

    def kill(self, name: str) -> None:
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def stop(self, name: str) -> int:
        """Send SIGTERM, which closes the instance for a restart; return the exit status."""
        process = self.processes.pop(name)
        process.terminate()
        return process.wait(30)

    def freeze(self, name: str) -> None:
        self.processes[name].send_signal(signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        self.processes[name].send_signal(signal.SIGCONT)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def kill_all(self) -> None:
        for name in list(self.processes):
            self.kill(name)

    def produce(self, records: int, keys: int = 20) -> None:
        self.broker.produce(self.source, [(f"k{number % keys}", "v") for number in range(records)])

    def becomes(self, wanted: dict[str, int], seconds: float = 45) -> None:
        """Wait until exactly these members run this many tasks each, all of them RUNNING. The last records of processes that were killed
        before the last start of their instance do not count."""

        def as_wanted() -> bool:
            reports = members(self.broker, self.id, self.started_ms)
            return {name: len(tasks) for name, tasks in reports.items()} == wanted and {
                state for tasks in reports.values() for state in tasks.values()
            } <= {"RUNNING"}

        wait_until(as_wanted, seconds, f"{wanted} tasks")

    def reports(self) -> dict[str, dict[str, str]]:
        """Return the tasks that each member reports: state by task."""
        return members(self.broker, self.id)

    def each_update_came_once(self, records: int, keys: int = 20, seconds: float = 45) -> None:
        """Wait for the last count of each key; then check that every count up to it was written exactly once, in order."""
        wanted = {f"k{number}".encode(): list(range(1, records // keys + 1)) for number in range(keys)}

        def updates() -> dict[bytes, list[int]]:
            found: dict[bytes, list[int]] = {}
            for record in self.broker.consume(self.output):
                found.setdefault(record.key or b"", []).append(int.from_bytes(record.value or b"", "big"))
            return found

        wait_until(lambda: sum(map(len, updates().values())) >= records, seconds, f"{records} updates")
        assert updates() == wanted


def members(broker: Kafka, application_id: str, since_ms: Mapping[str, int] | None = None) -> dict[str, dict[str, str]]:
    """Return the tasks that each member of an application reports: state by task. Empty if there is no such application. Incarnations that
    began before the time in `since_ms` (Unix ms, by instance) are left out."""
    if coordination_topic(application_id) not in broker.topics():
        return {}
    with CommandClient(application_id, broker.connection, "test") as client:
        found: dict[str, dict[str, str]] = {}
        for member in client.members():  # an instance has a member per worker
            if since_ms is not None and member.incarnation < since_ms.get(member.instance, 0):
                continue
            found.setdefault(member.instance, {}).update({task: member.tasks[task].state.value for task in member.active})
        return found


def copies(broker: Kafka, application_id: str) -> dict[str, dict[str, TaskReport]]:
    """Return the copies of tasks that each member reports."""
    with CommandClient(application_id, broker.connection, "test") as client:
        return {
            member.instance: {task: report for task, report in member.tasks.items() if task not in member.active}
            for member in client.members()
        }


def coordination_log(broker: Kafka, application_id: str) -> list[tuple[int, Record]]:
    """Return all records of the coordination topic with their offsets, as a member reads them."""
    found: list[tuple[int, Record]] = []
    for record in broker.consume(coordination_topic(application_id)):
        decoded = decode(record.key, record.value)
        if decoded is not None:
            found.append((record.offset, decoded))
    return found


@contextmanager
def application(broker: Kafka, application_id: str, folder: Path, partitions: int = 4, **settings: object) -> Iterator[Application]:
    """Create an application without instances. Kill the processes that still run at the end."""
    source, output = broker.create_topic("in", partitions), broker.create_topic("out", partitions)
    app = Application(broker, application_id, source, output, folder, settings)
    try:
        yield app
    finally:
        app.kill_all()
