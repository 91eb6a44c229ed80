"""Assignment of tasks to workers (coordination.md): liveness by the members' group, order by the coordination topic, fencing by
transactions."""

from penstock.runtime.coordination.coordination import Coordination, Granted, Lost, Revoked
from penstock.runtime.coordination.records import Command, CommandResult, Member, PausedAt, RestoreReport, TaskReport

__all__ = ["Command", "CommandResult", "Coordination", "Granted", "Lost", "Member", "PausedAt", "RestoreReport", "Revoked", "TaskReport"]
