"""Draining asks whoever may live: also an instance of this machine that systemd started."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import select

from penstock.orchestration.database import ControlPlane
from penstock.orchestration.database.models import AuditEntry
from penstock.orchestration.declarations.applications import Application, Applications
from penstock.orchestration.declarations.project_paths import ProjectPaths
from penstock.orchestration.instances import draining
from penstock.orchestration.instances.operations import Operations
from penstock.runtime.coordination.commands import CommandClient
from penstock.runtime.coordination.records import CommandResult, Member
from penstock.runtime.model.errors import StreamsConfigError

APPLICATION = Application("a", "m:f", ("a-1",), {"bootstrap.servers": "127.0.0.1:1"})


def ended_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.mark.parametrize(
    ("host", "alive", "asked"), [(socket.gethostname(), True, True), (socket.gethostname(), False, False), ("another", False, True)]
)
def test_an_instance_that_another_process_manager_started_is_drained(
    monkeypatch: pytest.MonkeyPatch, host: str, alive: bool, asked: bool
) -> None:
    pid = os.getpid() if alive else ended_process()
    members = [Member(instance="a-1", incarnation=1, transactional_id="", host=host, pid=pid, member_id="a-1", tasks={})]
    sent: list[str] = []

    def send(_: CommandClient, kind: str, **_to: object) -> CommandResult:
        sent.append(kind)
        members.clear()
        return CommandResult(id="c", ok=True, reason="", data={}, by="a-1")

    monkeypatch.setattr(CommandClient, "members", lambda _: list(members))
    monkeypatch.setattr(CommandClient, "send", send)
    assert draining.drain(APPLICATION, "a-1", None, actor="ann", timeout_s=1) is asked
    assert sent == (["close"] if asked else [])


@pytest.mark.parametrize("change", ["scale", "drain"])
def test_a_change_that_cannot_reach_the_broker_records_no_wish(tmp_path: Path, control_plane: ControlPlane, change: str) -> None:
    """A wish that was recorded would be carried out later, although the command failed."""
    declared = '[applications.a]\nfactory = "a:b"\ninstances = 2\n[applications.a.config]\n"bootstrap.servers" = "${PENSTOCK_TEST_UNSET}"\n'
    paths = ProjectPaths(tmp_path, tmp_path, tmp_path / "streams.toml", "sqlite://")
    operations = Operations(paths, Applications.parse(declared, paths.streams_toml), control_plane)
    with pytest.raises(StreamsConfigError, match=r"PENSTOCK_TEST_UNSET\} is not set in the environment"):
        if change == "scale":
            operations.scale("a", 3, actor="ann")
        else:
            operations.drain(operations.applications.named("a"), "a-1", actor="ann")
    with control_plane.reading() as session:
        assert session.scalars(select(AuditEntry.action)).all() == []
    assert operations.instances(operations.applications.named("a")) == ("a-1", "a-2")
