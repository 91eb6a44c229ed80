"""Run-books: what an operator would do, step by step, written down before it is done. `base` says what they share."""

from orchestration.run_books.approvals import approve, approved_run_book, reject
from orchestration.run_books.base import DryRun, Progress, Request, RunBook, RunBookError, Step
from orchestration.run_books.rebuild_global_store import RebuildGlobalStore
from orchestration.run_books.replay_dead_letters import ReplayDeadLetters
from orchestration.run_books.restart_instance import RestartInstance
from orchestration.run_books.skip_record import SkipRecord
from orchestration.run_books.tasks import RecordInTheWay, ResumeTask

ALL: tuple[type[RunBook], ...] = (SkipRecord, ResumeTask, ReplayDeadLetters, RebuildGlobalStore, RestartInstance)

__all__ = [
    "ALL",
    "DryRun",
    "Progress",
    "RebuildGlobalStore",
    "RecordInTheWay",
    "ReplayDeadLetters",
    "Request",
    "RestartInstance",
    "ResumeTask",
    "RunBook",
    "RunBookError",
    "SkipRecord",
    "Step",
    "approve",
    "approved_run_book",
    "reject",
]
