"""Draining asks whoever may live: also an instance of this machine that systemd started."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from penstock.orchestration.declarations.applications import Application
from penstock.orchestration.instances import draining
from penstock.runtime.coordination.commands import CommandClient
from penstock.runtime.coordination.records import CommandResult, Member

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
