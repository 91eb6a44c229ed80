"""Run-books: an operator's procedures in steps, each recorded before it runs. `base` contains their common code, `inputs` declares them."""

from penstock.orchestration.run_books.approval import approve, approved_run_book, reject
from penstock.orchestration.run_books.base import DryRun, Execution, Progress, Request, RunBook, RunBookError, Step
from penstock.orchestration.run_books.inputs import DECLARED, RunBookInputs
from penstock.orchestration.run_books.rebuild_global_store import RebuildGlobalStore
from penstock.orchestration.run_books.replay_dead_letters import ReplayDeadLetters
from penstock.orchestration.run_books.reset_application import ResetApplication
from penstock.orchestration.run_books.restart_instance import RestartInstance
from penstock.orchestration.run_books.restore_global_topic import RestoreGlobalTopic
from penstock.orchestration.run_books.skip_record import SkipRecord
from penstock.orchestration.run_books.tasks import PausedRecord, ResumeTask

ALL: tuple[type[RunBook], ...] = tuple(declared.BOOK for declared in DECLARED)

__all__ = [
    "ALL",
    "DryRun",
    "Execution",
    "PausedRecord",
    "Progress",
    "RebuildGlobalStore",
    "ReplayDeadLetters",
    "Request",
    "ResetApplication",
    "RestartInstance",
    "RestoreGlobalTopic",
    "ResumeTask",
    "RunBook",
    "RunBookError",
    "RunBookInputs",
    "SkipRecord",
    "Step",
    "approve",
    "approved_run_book",
    "reject",
]
