"""Progress of Spark's jobs as log lines: `writing rows: 12 of 40 tasks done, 2 at work, 1,234,567 rows read`.

For a local driver, a thread polls Spark's status tracker about once a second; a Spark Connect server sends progress with its replies.
A line is logged when another tenth is done, at most every two seconds, and every half minute in any case, so that a long silence means
trouble.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from penstock.orchestration.declarations.spark_settings import SparkSettings

if TYPE_CHECKING:  # the Spark Connect client is loaded only if a session uses it
    from pyspark.sql.connect.shell.progress import StageInfo

_POLL_SECONDS = 0.5
_LEAST_SECONDS = 2.0
_MOST_SECONDS = 30.0
_NO_EXECUTOR_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Work:
    """Active stages and their progress. `rows`: the number that finished and running tasks have read (0: not known)."""

    stages: int = 0
    tasks: int = 0
    done: int = 0
    active: int = 0
    failed: int = 0
    rows: int = 0


class Lines:
    """Formats lines and decides when one is due. Times are seconds of any clock."""

    def __init__(self, now: float) -> None:
        self.doing = "Spark"
        """Name of the current work in the lines."""
        self._said_at = now
        self._share = 0.0
        self._idle_since: float | None = None
        self._warned = False

    def begin(self, doing: str, now: float) -> None:
        """Start the next piece of work."""
        self.doing, self._said_at, self._share = doing, now, 0.0

    def line(self, work: Work | None, now: float) -> str | None:
        """Return the line to log now, if one is due. `work` is None if Spark is idle."""
        if work is None or work.tasks == 0:
            self._idle_since, self._share = None, 0.0
            return None
        if work.active == 0 and work.done == 0:
            return self._no_executor(now)
        self._idle_since, self._warned = None, False
        share = work.done / work.tasks
        waited = now - self._said_at
        if share < self._share:  # the next stage
            self._share = 0.0
        if waited < _LEAST_SECONDS or (share - self._share < 0.1 and waited < _MOST_SECONDS):
            return None
        self._said_at, self._share = now, share
        line = f"{self.doing}: {work.done} of {work.tasks} tasks done, {work.active} at work"
        if work.stages > 1:
            line += f", in {work.stages} stages"
        if work.rows:
            line += f", {work.rows:,} rows read"
        return line + (f", {work.failed} tasks failed and tried again" if work.failed else "")

    def _no_executor(self, now: float) -> str | None:
        if self._idle_since is None:
            self._idle_since = now
        if self._warned or now - self._idle_since < _NO_EXECUTOR_SECONDS:
            return None
        self._warned = True
        return (
            f"{self.doing}: no executor has taken a task for {_NO_EXECUTOR_SECONDS:.0f} seconds. Are there workers, and has one of them "
            "as much free memory and as many cores as [spark] asks for?"
        )


class Progress(Protocol):
    """Reports progress of the work until closed."""

    def begin(self, doing: str) -> None:
        """Set the name of the current work, for the lines and for Spark's own pages."""

    def close(self) -> None:
        """Stop reporting."""


def follow(session: SparkSession, settings: SparkSettings, say: Callable[[str], None]) -> Progress:
    """Report the session's progress line by line until closed. `say` is called on another thread."""
    return _Received(session, say) if settings.connect else _Polled(session, say)


class _Polled:
    """Reads progress from the driver's status tracker."""

    def __init__(self, session: SparkSession, say: Callable[[str], None]) -> None:
        self._context = session.sparkContext
        self._say = say
        self._lines = Lines(time.monotonic())
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
        self._thread.start()

    def begin(self, doing: str) -> None:
        self._lines.begin(doing, time.monotonic())
        self._context.setJobDescription(doing)

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(_POLL_SECONDS):
            try:
                work = self._look()
            except (Py4JError, OSError):  # the JVM is going down: the waiting caller reports the reason
                return
            line = self._lines.line(work, time.monotonic())
            if line:
                self._say(line)

    def _look(self) -> Work | None:
        tracker = self._context.statusTracker()
        stages = []
        for job in tracker.getActiveJobsIds():
            info = tracker.getJobInfo(job)
            stages += [tracker.getStageInfo(stage) for stage in (info.stageIds if info else ())]
        known = [stage for stage in stages if stage is not None]
        if not known:
            return None
        return Work(
            stages=len(known),
            tasks=sum(stage.numTasks for stage in known),
            done=sum(stage.numCompletedTasks for stage in known),
            active=sum(stage.numActiveTasks for stage in known),
            failed=sum(stage.numFailedTasks for stage in known),
            rows=sum(self._rows_read(stage.stageId) for stage in known),
        )

    def _rows_read(self, stage: int) -> int:
        store = self._context._jsc.sc().statusStore()
        return int(store.lastStageAttempt(stage).inputRecords())


class _Received:
    """Reads progress from the Spark Connect client, which calls it with each reply to a query."""

    def __init__(self, session: SparkSession, say: Callable[[str], None]) -> None:
        self._session = session
        self._say = say
        self._lines = Lines(time.monotonic())
        session.registerProgressHandler(self._on_progress)

    def begin(self, doing: str) -> None:
        self._lines.begin(doing, time.monotonic())

    def close(self) -> None:
        self._session.clearProgressHandlers()

    def _on_progress(self, stages: Iterable[StageInfo] | None, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
        known = [stage for stage in stages or () if not stage.done]
        work = Work(len(known), sum(s.num_tasks for s in known), sum(s.num_completed_tasks for s in known), inflight_tasks)
        line = self._lines.line(None if done else work, time.monotonic())
        if line:
            self._say(line)
