"""Declarations of the run-books: a name, a sentence and the inputs of each. Dagster's job and the command are made from them.

The docstring of a class is the description of the job and the help of the command. A field is an entry of Dagster's form, and an argument
(no default) or option (a default) of the command. A new run-book needs a `RunBook`, a class here, and a place in `DECLARED`.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from typing import ClassVar

from pydantic import BaseModel, Field, field_validator

from penstock.orchestration.database import audit
from penstock.orchestration.instances.operations import Operations
from penstock.orchestration.resets.target import Target
from penstock.orchestration.run_books.base import Progress, Request, RunBook
from penstock.orchestration.run_books.rebuild_global_store import RebuildGlobalStore
from penstock.orchestration.run_books.replay_dead_letters import ReplayDeadLetters
from penstock.orchestration.run_books.reset_application import ResetApplication
from penstock.orchestration.run_books.restart_instance import RestartInstance
from penstock.orchestration.run_books.restore_global_topic import RestoreGlobalTopic
from penstock.orchestration.run_books.skip_record import SkipRecord
from penstock.orchestration.run_books.tasks import PausedRecord, ResumeTask
from penstock.runtime.model.ids import TaskId

BY = "Your name, for the audit trail; Dagster itself does not know its users"
_APPLICATION = "The application.id, for example flight-board"


class RunBookInputs(BaseModel):
    """Inputs shared by all run-books. `JOB` and `OP`: names in Dagster; runs of a job are configured by the op's name."""

    BOOK: ClassVar[type[RunBook]]
    JOB: ClassVar[str]
    OP: ClassVar[str]

    reason: str = Field(default="", description="Why, for the audit trail")
    by: str = Field(default="", description=BY)
    dry_run: bool = Field(default=False, description="Only say what would be done")

    @abstractmethod
    def run_book(self, operations: Operations, request: Request, progress: Progress) -> RunBook:
        """Return a run with these inputs. Raises WrongDeclarationError for an unknown name, ValueError for an input that cannot be read."""

    def request(self, actor: str, dagster_run_id: str | None = None) -> Request:
        """Return the requester of the run, and the reason."""
        return Request(requested_by=actor, reason=self.reason, dagster_run_id=dagster_run_id)

    def question(self) -> str | None:
        """Return the question that the command asks before it starts; None if it does not ask."""
        return None


class TaskInputs(RunBookInputs):
    """Inputs of run-books about a task."""

    application: str = Field(description=_APPLICATION)
    task: str = Field(description="The task's id, SUBTOPOLOGY_PARTITION, for example 0_3")

    @field_validator("task")
    @classmethod
    def _is_a_task(cls, task: str) -> str:
        return str(TaskId.parse(task))


class ResumeTaskInputs(TaskInputs):
    """Resume a paused task from the committed offsets."""

    BOOK, JOB, OP = ResumeTask, "resume_task", "resume"

    def run_book(self, operations: Operations, request: Request, progress: Progress) -> RunBook:
        application = operations.applications.named(self.application)
        return ResumeTask(application, operations.control_plane, TaskId.parse(self.task), request, progress)


class SkipRecordInputs(TaskInputs):
    """Move a paused task past the record that it is paused at: the record is stored in the dead-letter topic, the task continues after it,
    the alert is closed. Refused if the task is not paused at exactly this record. If it is the code that is wrong, correct it instead:
    penstock rehearse APPLICATION --paused TASK (job rehearse_repair) tries it on this record first."""

    BOOK, JOB, OP = SkipRecord, "skip_record", "skip"

    topic: str = Field(description="The topic of the record that the task is paused at")
    partition: int = Field(description="Its partition", ge=0)
    offset: int = Field(description="Its offset", ge=0)
    run_book_run: int | None = Field(default=None, description="A run that the policy has reserved; leave it empty")
    occurrence: str | None = Field(default=None, description="The event that this answers; leave it empty")

    def request(self, actor: str, dagster_run_id: str | None = None) -> Request:
        return _by_policy(self, actor, dagster_run_id)

    def run_book(self, operations: Operations, request: Request, progress: Progress) -> RunBook:
        record = PausedRecord(TaskId.parse(self.task), self.topic, self.partition, self.offset)
        return SkipRecord(operations.applications.named(self.application), operations.control_plane, record, request, progress)


class ReplayDeadLettersInputs(RunBookInputs):
    """After a fix: write dead letters back to their input, each exactly once, in order per key among them.

    Refused if a raw record is gone, or was never stored. Records that were replayed before are not replayed again."""

    BOOK, JOB, OP = ReplayDeadLetters, "replay_dead_letters", "replay"

    application: str = Field(description=_APPLICATION)
    records: list[str] = Field(
        default=[], description="Only these: where they stood, topic-partition@offset", json_schema_extra={"option": "--record"}
    )
    error: str = Field(default="", description="Only where this regular expression is found in 'type: message' of the error")

    @field_validator("error")
    @classmethod
    def _is_a_pattern(cls, error: str) -> str:
        try:
            re.compile(error)
        except re.error as wrong:
            raise ValueError(f"{error!r} is not a regular expression: {wrong}") from wrong
        return error

    def run_book(self, operations: Operations, request: Request, progress: Progress) -> RunBook:
        application = operations.applications.named(self.application)
        return ReplayDeadLetters(application, operations.control_plane, request, progress, records=self.records, error=self.error)

    def question(self) -> str:
        return f"Write {', '.join(self.records) or 'all dead letters'} of {self.application} back to where they came from?"


class RebuildGlobalStoreInputs(RunBookInputs):
    """Delete a global store and read it again from its topic. Tasks that read it wait meanwhile, others keep processing."""

    BOOK, JOB, OP = RebuildGlobalStore, "rebuild_global_store", "rebuild"

    application: str = Field(description=_APPLICATION)
    store: str = Field(description="The store's name")
    instance: str | None = Field(default=None, description="Only on this instance; leave it empty for all that run")

    def run_book(self, operations: Operations, request: Request, progress: Progress) -> RunBook:
        application = operations.applications.named(self.application)
        return RebuildGlobalStore(application, operations.control_plane, self.store, request, progress, instance=self.instance)

    def question(self) -> str:
        return f"Wipe and rebuild {self.store} on {self.instance or f'all instances of {self.application}'}?"


class RestoreGlobalTopicInputs(RunBookInputs):
    """Write rows back to the topic of a global table that has lost them, from the newest snapshot.

    Only keys without any record on the topic are written. One that was deleted since the snapshot comes back if its deletion was lost."""

    BOOK, JOB, OP = RestoreGlobalTopic, "restore_global_topic", "restore"

    application: str = Field(description=_APPLICATION)
    topic: str = Field(description="The topic of the global table")
    run_book_run: int | None = Field(default=None, description="A run that the policy has reserved; leave it empty")
    occurrence: str | None = Field(default=None, description="The event that this answers; leave it empty")

    def request(self, actor: str, dagster_run_id: str | None = None) -> Request:
        return _by_policy(self, actor, dagster_run_id)

    def run_book(self, operations: Operations, request: Request, progress: Progress) -> RunBook:
        return RestoreGlobalTopic(operations, operations.applications.named(self.application), self.topic, request, progress)

    def question(self) -> str:
        return f"Write rows of the newest snapshot of {self.application} to {self.topic}?"


class RestartInstanceInputs(RunBookInputs):
    """Close an instance cleanly and start it with the current code and configuration. Its tasks stay reserved for it meanwhile."""

    BOOK, JOB, OP = RestartInstance, "restart_instance", "restart"

    instance: str = Field(description="The name of a declared instance, for example flight-board-1")

    def run_book(self, operations: Operations, request: Request, progress: Progress) -> RunBook:
        return RestartInstance(operations, self.instance, request, progress)


class ResetApplicationInputs(RunBookInputs):
    """Delete the state of an application that is stopped: changelogs, offsets, local state, pauses and events."""

    BOOK, JOB, OP = ResetApplication, "reset_application", "reset"

    application: str = Field(description="The application.id, for example flight-board; every instance must be stopped")
    to: str = Field(
        default="earliest",
        description="earliest, latest, a time (2026-01-31T12:00:00, UTC), a duration back from now (PT1H), or flights:0=100,flights:1=200",
    )
    delete_outputs: bool = Field(default=False, description="Delete the records of the output topics too")
    internal_topics: list[str] = Field(default=[], description="Internal topics to delete that no known topology of it has")
    force: bool = Field(default=False, description="Instances of other machines that are in no group count as dead")

    def run_book(self, operations: Operations, request: Request, progress: Progress) -> RunBook:
        return ResetApplication(
            operations,
            operations.applications.named(self.application),
            Target.parse(self.to, audit.now()),
            request,
            progress,
            delete_outputs=self.delete_outputs,
            internal_topics=self.internal_topics,
            force=self.force,
        )


def _by_policy(inputs: SkipRecordInputs | RestoreGlobalTopicInputs, actor: str, dagster_run_id: str | None) -> Request:
    """Return the request of a run that a policy may have reserved."""
    by = actor if inputs.run_book_run is None else f"policy ({actor})"
    return Request(by, inputs.reason, inputs.run_book_run, inputs.occurrence, dagster_run_id)


DECLARED: tuple[type[RunBookInputs], ...] = (
    RestartInstanceInputs,
    ResumeTaskInputs,
    SkipRecordInputs,
    ReplayDeadLettersInputs,
    RebuildGlobalStoreInputs,
    RestoreGlobalTopicInputs,
    ResetApplicationInputs,
)
PROPOSED: tuple[type[RunBookInputs], ...] = (SkipRecordInputs, RestoreGlobalTopicInputs)
"""Run-books that a policy starts, or proposes with `start = "after-approval"`."""
