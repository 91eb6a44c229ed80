"""Draining: an instance hands its tasks to others, who learn them first, and ends. Through Kafka alone, so on whichever machine it runs."""

from __future__ import annotations

import socket
import time

import psutil

from orchestration.applications import Application
from orchestration.launcher import LaunchError, Process
from runtime.coordination.commands import CommandClient
from runtime.coordination.records import Member
from runtime.errors import BrokerUnavailableError, StreamsError

DRAIN_SECONDS = 120.0
"""How long the others may take to learn what the instance has."""
_CLOSE_SECONDS = 60.0
"""How long it may take beyond that to hand over what is left, and to close."""


def drain(application: Application, name: str, process: Process | None, *, actor: str, timeout_s: float) -> bool:
    """Asks an instance to close for good and waits for its end. After `timeout_s` it hands over what the others have not learned. False if
    it is not a member: it does not run, it is dead, or has only just begun to start.

    `process`: its process, if that is one of this machine's. Raises BrokerUnavailableError, LaunchError (it has not ended in time).
    """
    with CommandClient(application.id, application.bootstrap_servers, actor) as client:
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
                    f"instance {name} is still closing after {timeout_s + _CLOSE_SECONDS:g} s; its log tells what it waits for"
                )
            time.sleep(0.2)
    return True


def _may_live(member: Member) -> bool:
    """False for one whose process was on this machine and is gone, though the others do not know it yet. One that another process manager
    started lives, though it is no process of the launcher's."""
    return member.host != socket.gethostname() or psutil.pid_exists(member.pid)
