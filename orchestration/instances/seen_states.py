"""States of instances, as their reports on Kafka and the processes of this machine show them."""

from __future__ import annotations

import socket
import time

import psutil

from penstock.orchestration.instances.launcher import CLOCK_WOBBLE_SECONDS, Launcher
from penstock.orchestration.kafka.observer import Picture
from penstock.runtime.coordination.records import SILENT_MS, Member

NOT_RUNNING = ("gone", "silent", "starting", "never started")
"""States of instances that do not run, besides `stopped`."""


def lives(member: Member, at_ms: int | None = None) -> bool:
    """Return True if the member runs, as far as this machine can say. `at_ms`: the time of the last answer of a broker, if none answers
    now: no one can be heard then."""
    return _reported(member, _now_ms(at_ms)) not in (*NOT_RUNNING, "stopped")


def state_of(picture: Picture, name: str, launcher: Launcher | None, at_ms: int | None = None) -> str:
    """Return the state of an instance: the one that it reported last, or one of `NOT_RUNNING`, or `stopped`.

    `launcher`: of this machine's project, to look up processes that have not joined. `at_ms`: as for `lives`.
    """
    member = picture.member(name)
    now_ms = _now_ms(at_ms)
    return _unheard(picture, name, launcher, now_ms) if member is None else _reported(member, now_ms)


def _now_ms(at_ms: int | None) -> float:
    return time.time() * 1000 if at_ms is None else at_ms


def _unheard(picture: Picture, name: str, launcher: Launcher | None, now_ms: float) -> str:
    """Return the state of an instance without a member: it has not joined yet, or it left or died and its record was deleted."""
    desired = picture.desired.get(name)
    if desired is None:
        return "never started"
    if not desired.running:
        return "stopped"
    process = None if launcher is None else launcher.last(name)
    died = process is not None and not process.alive and process.created * 1000 > desired.at_ms - CLOCK_WOBBLE_SECONDS * 1000
    joined = picture.heard_ms.get(name, 0) > desired.at_ms
    return "gone" if died or joined or now_ms - desired.at_ms >= SILENT_MS else "starting"


def _reported(member: Member, now_ms: float) -> str:
    """Return the state that the instance reported last; `gone` if its process on this machine is gone, `silent` after half a minute without
    a report."""
    if member.state.name in ("PENDING_SHUTDOWN", "NOT_RUNNING") or (member.returns and not member.tasks):
        return "stopped"
    if member.host == socket.gethostname() and not _runs(member.pid):
        return "gone"
    return "silent" if now_ms - member.heartbeat_ms > SILENT_MS else member.state.value


def _runs(pid: int) -> bool:
    """Return True if there is a process with this id. A zombie, which has ended and whose parent has not noticed it yet, is none."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True
