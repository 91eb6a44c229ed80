"""*Skip record* takes one unreadable record out of a paused task's way.

Refused, with a reason: the task is not paused, is paused at another record, or was paused by hand. A record that this run-book took out of
the way before counts as done, and changes nothing. Two records are never skipped for one: the committed offset moves only from the bad
record's to the one after it (compare-and-set), whoever tries, however often.
"""

from __future__ import annotations

import time
from typing import ClassVar

from orchestration import dead_letter, raw_bytes
from orchestration.applications import Application
from orchestration.control_plane import ControlPlane
from orchestration.control_plane.models import Event, Task
from orchestration.run_books.base import Found, Progress, Request, RunBookError, Step, Subject
from orchestration.run_books.tasks import SETTLE_SECONDS, RecordInTheWay, TaskRunBook, paused_at
from orchestration.tasks import RefusedError
from runtime.states import TaskState


class SkipRecord(TaskRunBook):
    """One run of the run-book."""

    NAME = "skip-record"
    STEPS: ClassVar[tuple[Step, ...]] = (
        Step("check", "the task is paused at exactly this record"),
        Step("keep", "the raw record, its headers and the error go to the dead-letter topic, exactly once"),
        Step("shift", "the committed offset moves from this record to the one after it (compare-and-set)"),
        Step("resume", "the owner reads the committed offset and goes on"),
        Step("verify", "the task runs, or has paused at a later record"),
        Step("close", "the alert is resolved"),
    )

    def __init__(
        self,
        application: Application,
        control_plane: ControlPlane,
        record: RecordInTheWay,
        request: Request,
        progress: Progress = lambda _: None,
    ) -> None:
        super().__init__(application, control_plane, request, progress)
        self.task_id = record.task
        self._record = record
        self._owner: str | None = None
        self._skipped_before = False
        self._kept: dead_letter.Kept | None = None
        self._goes_on = "no instance runs: the next one goes on after it"

    def subject(self) -> Subject:
        record = self._record
        return Subject(str(record), str(record.task), record.topic, record.partition, record.offset)

    def needless(self, step: Step) -> bool:
        if self._skipped_before:
            return step.name != "close"
        return self._owner is None and step.name in ("resume", "verify")

    def look(self, found: Found) -> None:
        self.feed.step()  # a broker that is away shows here
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
        found.update({"record": str(self._record), "owner": self._owner, "already skipped": self._skipped_before})

    def take(self, step: Step, found: Found) -> None:
        record = self._record
        match step.name:
            case "keep":
                self._kept = kept = self._keep()
                found.update({"topic": kept.topic, "offset": kept.offset, "already": kept.already})
            case "shift":
                shift = self.commands.shift(record.task, record.topic, record.partition, record.offset)
                found.update({"to": record.offset + 1, "by": shift.by, "already": shift.already})
            case "resume":
                found["by"] = self.ask_to_resume(record)
            case "verify":
                found.update(self._verify())
            case "close":
                found["alerts"] = self.close_alerts(record, self.outcome())

    def outcome(self) -> str:
        if self._kept is None:
            return f"{self._record} had been skipped before; nothing was changed"
        return f"{self._record} is skipped and kept in {self._kept.topic}@{self._kept.offset}; {self._goes_on}"

    def _waits_here(self, task: Task, owner_lives: bool) -> bool:
        """True if the task is paused at the record; or was, when its last owner closed it, if nobody lives."""
        waiting = task.state == TaskState.PAUSED.value or (task.state == TaskState.CLOSED.value and not owner_lives)
        return waiting and paused_at(task) == self._record

    def _refuse_if_by_hand(self) -> None:
        event = self.pause_event(self._record)
        if event is not None and event.payload.get("reason") == "command":
            raise RefusedError(f"task {self.task_id} was paused by hand: nothing is known to be wrong with {self._record}; resume it")

    def _why_not(self, task: Task | None) -> str:
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
        return dead_letter.is_kept(self.application.bootstrap_servers, self.application.id, record.topic, record.partition, record.offset)

    def _keep(self) -> dead_letter.Kept:
        record, event = self._record, self.pause_event(self._record)
        servers = self.application.bootstrap_servers
        raw = dead_letter.read_record(servers, record.topic, record.partition, record.offset)
        if raw is None:  # the topic's retention was faster than us: the event has the bytes
            raw = self._from_event(event)
        payload = {} if event is None else event.payload
        error_type, error = str(payload.get("error_type", "unknown")), str(payload.get("error", "unknown"))
        return dead_letter.keep(servers, self.application.id, raw, error_type, error)

    def _from_event(self, event: Event | None) -> dead_letter.RawRecord:
        if event is None or event.payload.get("left_out_bytes"):
            raise RunBookError(f"{self._record} is no longer in its topic, and no event holds its bytes: not kept, so not skipped")
        timestamp = event.payload.get("timestamp_ms")
        return dead_letter.RawRecord(
            topic=self._record.topic,
            partition=self._record.partition,
            offset=self._record.offset,
            key=raw_bytes.from_base64(event.payload.get("key_base64")),
            value=raw_bytes.from_base64(event.payload.get("value_base64")),
            timestamp_ms=timestamp if isinstance(timestamp, int) else None,
            headers=_headers_of(event.payload.get("headers")),
        )

    def _verify(self) -> Found:
        task = self.wait_until_past(self._record)
        committed = self.commands.committed(self._record.topic, self._record.partition)
        if committed is None or committed <= self._record.offset:
            raise RunBookError(f"the task runs, but {self._record.topic}-{self._record.partition} is committed at {committed}")
        again = paused_at(task) if task.state == TaskState.PAUSED.value else None
        self._goes_on = "the task runs" if again is None else f"the task is paused at {again} now"
        return {"state": task.state, "instance": task.instance, "committed": committed}


def _headers_of(listed: object) -> tuple[tuple[str, bytes | None], ...]:
    """Headers of an event's payload: a list of name and base64."""
    pairs = listed if isinstance(listed, list) else []
    return tuple((str(pair[0]), raw_bytes.from_base64(pair[1])) for pair in pairs if isinstance(pair, list) and len(pair) == 2)
