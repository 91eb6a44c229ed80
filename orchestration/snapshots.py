"""A fresh snapshot of an application's stores, taken by the instances that run its tasks."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from pathlib import Path

from orchestration.applications import Application
from orchestration.operations import Operations
from orchestration.tasks import RefusedError, TaskCommands
from runtime.config import StreamsConfig
from runtime.topics import TopicAdmin

_SNAPSHOT_SECONDS = 60.0
_LIVING = {"RUNNING", "RESTORING", "REBALANCING"}


def new_snapshot_id() -> str:
    """Names of snapshots sort by time and never repeat."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{uuid.uuid4().hex[:6]}"


def take_snapshot(operations: Operations, application: Application, snapshot_id: str, actor: str) -> tuple[Path, ...]:
    """Has each living instance of the application write a snapshot of its tasks' stores; the folders, one per instance.

    Each task is consistent in itself; there is no common cut between tasks (rules.md, 29). Raises RefusedError if no instance lives or one
    of them cannot write, BrokerUnavailableError.
    """
    with operations.feed(application) as feed:
        feed.step()
    living = [name for name in application.instances if operations.look(name)[0].state in _LIVING]
    if not living:
        start = f"penstock start {application.instances[0]}"
        raise RefusedError(f"no instance of {application.id} runs, so there is no state to look at. Start one: {start}")
    folders: list[Path] = []
    with TaskCommands(application, actor) as commands:
        for name in living:
            result = commands.ask_instance("snapshot", name, {"snapshot_id": snapshot_id}, _SNAPSHOT_SECONDS)
            if result.data["tasks"]:
                folders.append(Path(str(result.data["directory"])))
    return tuple(folders)


def partitions_of(application: Application, topic: str) -> int | None:
    """How many partitions a topic has; None if it does not exist. Raises BrokerUnavailableError."""
    config = StreamsConfig({**application.config, "application.id": application.id})
    found = TopicAdmin(config).describe([topic]).get(topic)
    return None if found is None else found.partitions
