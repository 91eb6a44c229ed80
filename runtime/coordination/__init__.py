"""Assignment of tasks to workers (coordination.md): liveness by the members' group, order by the coordination topic, fencing by
transactions."""

from penstock.runtime.coordination.coordination import Coordination, Granted, Lost, Revoked, TakenOver
from penstock.runtime.coordination.decision import Cause
from penstock.runtime.coordination.records import (
    Command,
    CommandResult,
    GlobalStoreReport,
    Member,
    PausedAt,
    RestoreReport,
    Shutdown,
    TaskReport,
)

__all__ = [
    "Cause",
    "Command",
    "CommandResult",
    "Coordination",
    "GlobalStoreReport",
    "Granted",
    "Lost",
    "Member",
    "PausedAt",
    "RestoreReport",
    "Revoked",
    "Shutdown",
    "TakenOver",
    "TaskReport",
]
