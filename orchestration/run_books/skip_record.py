"""*Skip record*: move a paused task past one unreadable record.

Refused, with a reason, if the task is not paused, is paused at another record, or was paused manually. A record that was skipped before
counts as done, and nothing changes. A run never skips two records instead of one: the committed offset moves only from the bad record's to
the one after it (compare-and-set), even with concurrent or repeated runs.
"""

from __future__ import annotations

import time
from typing import ClassVar

from penstock.orchestration.alerts import raw_bytes
from penstock.orchestration.database import ControlPlane
from penstock.orchestration.database.models import Event, Task
from penstock.orchestration.dead_letters import topic
from penstock.orchestration.declarations.applications import Application
from penstock.orchestration.kafka.task_commands import RefusedError
from penstock.orchestration.run_books.base import Findings, Progress, Request, RunBookError, Step, Subject
from penstock.orchestration.run_books.tasks import SETTLE_SECONDS, PausedRecord, TaskRunBook, paused_at
from penstock.runtime.model.states import TaskState


class SkipRecord(TaskRunBook):
    """One run."""

    NAME = "skip-record"
    STEPS: ClassVar[tuple[Step, ...]] = (
        Step("check", "the task is paused at exactly this record"),
        Step("keep", "the raw record, its headers and the error go to the dead-letter topic, exactly once"),
        Step("shift", "the committed offset moves from this record to the one after it (compare-and-set)"),
        Step("resume", "the owner reads the committed offset and continues"),
        Step("verify", "the task runs, or has paused at a later record"),
        Step("close", "the alert is resolved"),
    )

    def __init__(
        self,
        application: Application,
        control_plane: ControlPlane,
        record: PausedRecord,
        request: Request,
        progress: Progress = lambda _: None,
    ) -> None:
        super().__init__(application, control_plane, request, progress)
        self.task_id = record.task
        self._record = record
        self._owner: str | None = None
        self._skipped_before = False
        self._dead_letter: topic.DeadLetter | None = None
        self._continuation = "no instance runs: the next one continues after it"

    def subject(self) -> Subject:
        record = self._record
        return Subject(str(record), str(record.task), record.topic, record.partition, record.offset)

    def needless(self, step: Step) -> bool:
        if self._skipped_before:
            return step.name != "close"
        return self._owner is None and step.name in ("resume", "verify")

    def inspect(self, findings: Findings) -> None:
        self.feed.step()  # fails if no broker answers
        owner_lives = self.commands.owner_lives()
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            self.feed.step()
            task = self.task()
            if task is not None and self._waits_here(task, owner_lives):
                self._refuse_if_by_hand()
                self._owner = task.instance if owner_lives else None
                break
            if self._was_skipped():
                self._skipped_before = True
                self._owner = None if task is None else task.instance
                break
            if task is not None or time.monotonic() > deadline:  # an owner that has just started has not reported its tasks yet
                raise RefusedError(self._why_not(task))
            time.sleep(0.1)
        findings.update({"record": str(self._record), "owner": self._owner, "already skipped": self._skipped_before})

    def take(self, step: Step, findings: Findings) -> None:
        record = self._record
        match step.name:
            case "keep":
                self._dead_letter = kept = self._store_dead_letter()
                findings.update({"topic": kept.topic, "offset": kept.offset, "already": kept.already})
            case "shift":
                shift = self.commands.shift(record.task, record.topic, record.partition, record.offset)
                findings.update({"to": record.offset + 1, "by": shift.by, "already": shift.already})
            case "resume":
                findings["by"] = self.ask_to_resume(record)
            case "verify":
                findings.update(self._verify())
            case "close":
                findings["alerts"] = self.close_alerts(record, self.outcome())

    def outcome(self) -> str:
        if self._dead_letter is None:
            return f"{self._record} had been skipped before; nothing was changed"
        return f"{self._record} is skipped and kept in {self._dead_letter.topic}@{self._dead_letter.offset}; {self._continuation}"

    def _waits_here(self, task: Task, owner_lives: bool) -> bool:
        """Return True if the task is paused at the record; or if its last owner closed it while paused there, and no instance lives."""
        waiting = task.state == TaskState.PAUSED.value or (task.state == TaskState.CLOSED.value and not owner_lives)
        return waiting and paused_at(task) == self._record

    def _refuse_if_by_hand(self) -> None:
        event = self.pause_event(self._record)
        if event is not None and event.payload.get("reason") == "command":
            raise RefusedError(f"task {self.task_id} was paused by hand: nothing is known to be wrong with {self._record}; resume it")

    def _why_not(self, task: Task | None) -> str:
        """Return why the record cannot be skipped, and the command that shows what can be."""
        return f"{self._state_of(task)}. `penstock tasks {self.application.id}` shows the paused tasks and their records"

    def _state_of(self, task: Task | None) -> str:
        if task is None:
            return f"no instance has reported a task {self.task_id}"
        if task.state != TaskState.PAUSED.value:
            return f"task {task.task} is not paused: it is {task.state} on {task.instance}"
        return f"task {task.task} is paused at {paused_at(task)}, not at {self._record}"

    def _was_skipped(self) -> bool:
        record = self._record
        committed = self.commands.committed(record.topic, record.partition)
        if committed is None or committed <= record.offset:
            return False
        return topic.has_dead_letter(self.application.connection, self.application.id, record.topic, record.partition, record.offset)

    def _store_dead_letter(self) -> topic.DeadLetter:
        record, event = self._record, self.pause_event(self._record)
        connection = self.application.connection
        raw = topic.read_record(connection, record.topic, record.partition, record.offset)
        if raw is None:  # retention has removed the record: the event has its bytes
            raw = self._from_event(event)
        payload = {} if event is None else event.payload
        error_type, error = str(payload.get("error_type", "unknown")), str(payload.get("error", "unknown"))
        return topic.store_dead_letter(connection, self.application.id, raw, error_type, error, str(payload.get("stack") or ""))

    def _from_event(self, event: Event | None) -> topic.RawRecord:
        if event is None or event.payload.get("left_out_bytes"):
            raise RunBookError(f"{self._record} is no longer in its topic, and no event holds its bytes: not kept, so not skipped")
        timestamp = event.payload.get("timestamp_ms")
        return topic.RawRecord(
            topic=self._record.topic,
            partition=self._record.partition,
            offset=self._record.offset,
            key=raw_bytes.from_base64(event.payload.get("key_base64")),
            value=raw_bytes.from_base64(event.payload.get("value_base64")),
            timestamp_ms=timestamp if isinstance(timestamp, int) else None,
            headers=_headers_of(event.payload.get("headers")),
        )

    def _verify(self) -> Findings:
        task = self.wait_until_past(self._record)
        committed = self.commands.committed(self._record.topic, self._record.partition)
        if committed is None or committed <= self._record.offset:
            raise RunBookError(f"the task runs, but {self._record.topic}-{self._record.partition} is committed at {committed}")
        again = paused_at(task) if task.state == TaskState.PAUSED.value else None
        self._continuation = "the task runs" if again is None else f"the task is paused at {again} now"
        return {"state": task.state, "instance": task.instance, "committed": committed}


def _headers_of(listed: object) -> tuple[tuple[str, bytes | None], ...]:
    """Return the headers in an event's payload: a list of name and base64."""
    pairs = listed if isinstance(listed, list) else []
    return tuple((str(pair[0]), raw_bytes.from_base64(pair[1])) for pair in pairs if isinstance(pair, list) and len(pair) == 2)
