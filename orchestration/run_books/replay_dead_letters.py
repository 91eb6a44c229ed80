"""*Replay dead letters*: after a fix, write skipped records back to the input, exactly once, in order per key among those replayed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

from sqlalchemy import select

from penstock.orchestration.database import ControlPlane
from penstock.orchestration.database.models import RunBookRun, RunBookState, StepState
from penstock.orchestration.dead_letters import replay
from penstock.orchestration.dead_letters.replay import DeadLetter
from penstock.orchestration.declarations.applications import Application
from penstock.orchestration.kafka.task_commands import RefusedError
from penstock.orchestration.run_books.base import Findings, Progress, Request, RunBook, RunBookError, Step, Subject
from penstock.orchestration.run_books.skip_record import SkipRecord

_LISTED = 20


class ReplayDeadLetters(RunBook):
    """One run. Without `records` (`topic-partition@offset`) it applies to all; `error` is a regular expression on `type: message`.

    Records whose skip-record was killed before they were skipped are left out. Refused if there are no dead letters, if a named record is
    not or no longer among them, or if its topic does not exist. Records that were replayed before are not replayed again.
    """

    NAME = "replay-dead-letters"
    STEPS: ClassVar[tuple[Step, ...]] = (
        Step("check", "the raw records are kept, and have a topic to go to"),
        Step("replay", "they go back to the partitions that they came from, in their old order, with a mark in the same transaction"),
        Step("verify", "each has its mark"),
    )

    def __init__(
        self,
        application: Application,
        control_plane: ControlPlane,
        request: Request,
        progress: Progress = lambda _: None,
        *,
        records: Sequence[str] = (),
        error: str = "",
    ) -> None:
        super().__init__(application, control_plane, request, progress)
        self._records = tuple(dict.fromkeys(records))
        self._error = error
        self._chosen: tuple[DeadLetter, ...] = ()
        self._replayed = 0

    def subject(self) -> Subject:
        named = ", ".join(self._records[:3]) + (" …" if len(self._records) > 3 else "")
        return Subject((named or f"all dead letters of {self.application.id}")[:767])

    def needless(self, step: Step) -> bool:
        return not self._chosen

    def inspect(self, findings: Findings) -> None:
        kept = replay.read_dead_letters(self.application)
        if not kept.topics:
            raise RefusedError(f"nothing was ever kept: there is no topic {' or '.join(replay.dead_letter_topics(self.application))}")
        self._refuse_what_is_gone(kept)
        marks = replay.read_marks(self.application)
        meant = [record for record in kept.records if self._is_meant(record)]
        blocking = self._still_blocking()
        if named := sorted(set(self._records) & blocking):
            raise RefusedError(f"{', '.join(named)} is kept, but its skip-record has not ended: start that again first")
        wanted = [record for record in meant if record.place not in blocking]
        self._chosen = tuple(record for record in wanted if record.place not in marks)
        gone = replay.missing_targets(self.application, self._chosen)
        if gone:
            raise RefusedError(f"there is nowhere to write to: {', '.join(gone)} does not exist")
        findings.update(
            {
                "to replay": len(self._chosen),
                "replayed before": len(wanted) - len(self._chosen),
                "records": [record.place for record in self._chosen[:_LISTED]],
                "kept but not skipped": len(meant) - len(wanted) or None,
                "without coordinates": kept.without_place or None,
                "removed by retention": kept.removed or None,
            }
        )

    def take(self, step: Step, findings: Findings) -> None:
        match step.name:
            case "replay":
                count = len(self._chosen)
                report = lambda done: self.progress(f"replayed {done} of {count}")  # noqa: E731 (one line, used once)
                self._replayed = replay.replay(self.application, self._chosen, self.request.requested_by, report)
                findings.update({"replayed": self._replayed, "by others meanwhile": count - self._replayed or None})
            case "verify":
                missing = {record.place for record in self._chosen} - replay.read_marks(self.application)
                if missing:
                    raise RunBookError(f"{len(missing)} records have no mark, for example {min(missing)}: start it again")
                findings["marked"] = len(self._chosen)

    def outcome(self) -> str:
        if not self._chosen:
            return "nothing is left to replay"
        return f"{self._replayed} records are in their topics again"

    def _is_meant(self, record: DeadLetter) -> bool:
        if self._records and record.place not in self._records:
            return False
        return not self._error or re.search(self._error, f"{record.error_type}: {record.error}") is not None

    def _still_blocking(self) -> set[str]:
        """Return dead letters that have not been skipped, as far as is known: their skip-record was killed or refused in between. The task
        still reads the originals, so a replay would have them processed twice."""
        query = select(RunBookRun).where(RunBookRun.application == self.application.id, RunBookRun.run_book == SkipRecord.NAME)
        begun, skipped = set[str](), set[str]()
        with self.control_plane.reading() as session:
            for run in session.scalars(query):
                done = {step.name for step in run.steps if step.state == StepState.DONE.value}
                if run.state == RunBookState.DONE.value or "shift" in done:
                    skipped.add(run.subject)
                elif "check" in done:
                    begun.add(run.subject)
        return begun - skipped

    def _refuse_what_is_gone(self, kept: replay.DeadLetters) -> None:
        missing = sorted(set(self._records) - {record.place for record in kept.records})
        if missing:
            why = f"; retention has removed {kept.removed} records there" if kept.removed else ""
            raise RefusedError(f"the raw record is gone, or was never kept: {', '.join(missing)} is not on {', '.join(kept.topics)}{why}")
