"""Draining: an instance closes after others have learned its tasks and taken them over. Requested through Kafka, for any machine."""

from __future__ import annotations

import socket
import time

import psutil

from penstock.orchestration.declarations.applications import Application
from penstock.orchestration.instances.launcher import LaunchError, Process
from penstock.runtime.coordination.commands import CommandClient
from penstock.runtime.coordination.records import Member
from penstock.runtime.model.errors import BrokerUnavailableError, StreamsError

DRAIN_SECONDS = 120.0
"""Time for other instances to learn the tasks."""
_CLOSE_SECONDS = 60.0
"""Additional time to hand over the remaining tasks and close."""


def drain(application: Application, name: str, process: Process | None, *, actor: str, timeout_s: float) -> bool:
    """Ask an instance to leave the group and wait until it has ended. After `timeout_s` it hands over tasks that others have not learned.
    Return False if it is not a member: it does not run, is dead, or is just starting.

    `process`: its process, if on this machine. Raises BrokerUnavailableError, LaunchError (it has not ended in time).
    """
    with CommandClient(application.id, application.connection, actor) as client:
        if not any(m.instance == name and not m.returns and (process or _may_live(m)) for m in client.members()):
            return False
        try:
            client.send("close", instance=name, args={"timeout_ms": int(timeout_s * 1000)})
        except BrokerUnavailableError:
            raise
        except StreamsError as error:
            if process is not None and process.alive:
                raise LaunchError(f"instance {name} does not answer: {error}") from error
            return False
        deadline = time.monotonic() + timeout_s + _CLOSE_SECONDS
        while process.alive if process is not None else any(member.instance == name for member in client.members()):
            if time.monotonic() > deadline:
                raise LaunchError(
                    f"instance {name} is still closing after {timeout_s + _CLOSE_SECONDS:g} s; its log shows what it waits for"
                )
            time.sleep(0.2)
    return True


def _may_live(member: Member) -> bool:
    """Return False for an instance whose process was on this machine and is gone, even if the group does not know it yet. An instance
    started by another process manager lives, although the launcher has no process of it."""
    return member.host != socket.gethostname() or psutil.pid_exists(member.pid)
