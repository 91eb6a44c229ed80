"""Commits of a worker, their events and checkpoints, and when each is due."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable

from penstock.runtime.changelog.checkpoint import CheckpointInterval
from penstock.runtime.commit.compare_and_set import CompareAndSet, Offsets
from penstock.runtime.kafka.throttling import Throttling
from penstock.runtime.kafka.topic_admin import TopicAdmin
from penstock.runtime.model.errors import StreamsError, TaskMigratedError, TransactionAbortedError
from penstock.runtime.model.events import Event, EventKind
from penstock.runtime.model.ids import TopicPartition
from penstock.runtime.model.metrics import STATE, THREAD
from penstock.runtime.model.states import TaskState
from penstock.runtime.tasks.global_dead_letters import GlobalDeadLetters
from penstock.runtime.tasks.global_task import GlobalTask
from penstock.runtime.tasks.incidents import Incidents
from penstock.runtime.worker.followers import Followers
from penstock.runtime.worker.incarnations import Incarnations
from penstock.runtime.worker.pace import SPAN_MS, Pace
from penstock.runtime.worker.spec import WorkerSpec
from penstock.runtime.worker.task_manager import TaskManager

logger = logging.getLogger(__name__)

EVENTS_WAIT_MS = 500
"""Longest time that an event waits for a commit, whatever the commit interval."""

FIRST_RESULTS_MS = 20
"""Shortest time between two commits of which the second is for the first results of a task that continues another's work: its consumers
wait no longer than necessary, and hundreds of tasks that begin one after the other do not cause as many commits."""


class Committer:
    """Commits all tasks of one worker together. Used by the worker's thread only."""

    def __init__(
        self,
        spec: WorkerSpec,
        *,
        incarnations: Incarnations,
        tasks: TaskManager,
        followers: Followers,
        global_task: GlobalTask | None,
        dead_letters: GlobalDeadLetters | None,
        incidents: Incidents,
        topics: TopicAdmin,
        throttling: Throttling,
    ) -> None:
        """`dead_letters`: those of the global task, written with the next commit; None without a global task."""
        config, clock, metrics = spec.config, spec.clock, spec.metrics
        self._application_id = spec.application_id
        self._clock = clock
        self._events = spec.events
        self._incarnations = incarnations
        self._tasks = tasks
        self._followers = followers
        self._global_task = global_task
        self._dead_letters = dead_letters
        self._search = incidents.search
        self._topics = topics
        self._interval_ms = config.integer("commit.interval.ms")
        self._first_ms = FIRST_RESULTS_MS if config.exactly_once else math.inf
        uncommitted_max = config.integer("statestore.uncommitted.max.bytes")
        self._uncommitted_max = math.inf if uncommitted_max < 0 else spec.identity.share(uncommitted_max)
        metrics.gauge("uncommitted-bytes-limit", STATE).set(-1 if uncommitted_max < 0 else self._uncommitted_max)
        self._checkpoints = CheckpointInterval(config.integer("statestore.checkpoint.interval.ms"), clock.monotonic_ms())
        timeout_ms = int(str(config.producer_properties()["transaction.timeout.ms"])) if config.exactly_once else math.inf
        self.pace = Pace(timeout_ms, throttling, clock)
        self._latency = metrics.latency("commit-latency", THREAD)
        self._count = metrics.counter("commit-total", THREAD)
        self._moved = 0
        """Number of commits that advanced the input: shows whether a worker makes progress after a rollback."""
        self.written = 0
        """Number of records that all its commits have written to output and repartition topics."""
        self._written = metrics.counter("records-produced-total", THREAD)
        self.committed_at_ms = clock.monotonic_ms()
        """Time of the last commit on the monotonic clock."""

    def commit(self, extra: CompareAndSet | None = None) -> bool:
        """Commit all tasks, and pause those whose handler asked for it. Return False if there was nothing to commit.

        Before the first grant nothing can be committed, since the guard needs one: events wait. Raises TransactionAbortedError (then
        `Recovery.roll_back`) or TaskMigratedError (then `Recovery.begin_incarnation`).
        """
        incarnation, tasks = self._incarnations.current, self._tasks
        if not incarnation.granted:
            return False
        started = self._clock.monotonic_ms()
        pausing = tasks.pausing()
        for task in pausing:
            tasks.announce_pause(task)
        try:
            sent = 0 if self._dead_letters is None else self._dead_letters.send(incarnation.transport)
            done = incarnation.commit(tasks.in_state(TaskState.RUNNING), extra)
        except (TransactionAbortedError, TaskMigratedError):
            self.drop_untrue_events()
            raise
        if self._dead_letters is not None:
            self._dead_letters.committed(sent)
        for task in pausing:
            tasks.pause(task)
        self.committed_at_ms = self._clock.monotonic_ms()
        self.pace.committed(self.committed_at_ms - started)
        self._search.committed([partition for task in tasks.in_state(TaskState.RUNNING) for partition in task.inputs])
        if done:
            self._moved += incarnation.commit.moved
            self.written += incarnation.commit.written
            self._written.add(incarnation.commit.written)
            self._latency.record(self.committed_at_ms - started)
            self._count.add()
        return done

    def commit_if_due(self, now_ms: int) -> None:
        """Commit when the interval has passed, when too much is staged, when a processor asked for it, when a task that has moved here has
        its first results, which only a commit shows, or when a task is to be paused."""
        waited = now_ms - self.committed_at_ms
        tasks, search = self._tasks, self._search
        if (
            waited >= self._interval_ms
            or (waited >= EVENTS_WAIT_MS and self._events)
            or tasks.uncommitted_bytes > self._uncommitted_max
            or tasks.commit_requested
            or (waited >= self._first_ms and tasks.has_first_results)
            or (self.pace.room <= 0 and waited >= SPAN_MS)
            or tasks.pausing()
            or search.limit is not None
            or search.holds_punctuators_alone
        ):
            self.commit()
            self._checkpoint_if_due(now_ms)

    def failed(self) -> None:
        """Note that what was processed since the last commit will be processed again."""
        late_ms = self._clock.monotonic_ms() - self.committed_at_ms - self._interval_ms
        self.pace.failed(late_ms, in_flush=self._incarnations.current.commit.flushing)

    def punctuate(self, now_ms: int) -> None:
        """Run the punctuators that are due. They have commits of their own while a refused output may come from a punctuator, or from the
        record that is searched."""
        search = self._search
        separate = search.separates_punctuators and self._tasks.is_punctuation_due(now_ms)
        if separate or search.limit is not None:
            self.commit()
        if separate:
            self._incarnations.current.transport.watch()
        if self._tasks.punctuate(now_ms):
            search.note_punctuation()

    def wait_seconds(self, now_ms: int, longest: float) -> float:
        """Return how long a poll may wait: not beyond the next commit, if there is something to commit."""
        if not self._incarnations.current.transport.pending and not self._events:
            return longest
        left = (self.committed_at_ms + self._interval_ms - now_ms) / 1000
        return max(0.0, min(longest, left))

    @property
    def steps(self) -> int:
        """Count of progress: commits of input, and steps of a search, which roll back."""
        return self._moved + self._search.steps

    # -- checkpoints and events ------------------------------------------------------------------------------------------------

    def _checkpoint_if_due(self, now_ms: int) -> None:
        """Write checkpoints (KIP-116). Called when a commit is due, so the interval is a multiple of the commit interval. Tasks without a
        commit or restore since their last checkpoint are left out. Before the first grant nothing is committed, and a commit stays due:
        global stores are saved at most once per commit interval then."""
        if not self._checkpoints.is_due(now_ms, 0 if self._incarnations.current.granted else self._interval_ms):
            return
        for task in self._tasks.in_state(TaskState.RESTORING, TaskState.RUNNING, TaskState.PAUSED):
            if task.unsaved:
                offsets = task.checkpoint(self._clock.wall_ms())
                self._events.emit(EventKind.CHECKPOINT, {"stores": offsets}, task.id)
        for followed, offsets in self._followers.checkpoint().items():
            self._events.emit(EventKind.CHECKPOINT, {"stores": offsets}, followed)
        if self._global_task is not None:
            self._global_task.checkpoint()

    def drop_untrue_events(self) -> None:
        """Drop pause and skip events queued since the last commit; replay emits them again. (Those of a global store stay: it is not rolled
        back, and its records are not read again.)"""
        untrue = (EventKind.TASK_PAUSED, EventKind.RECORD_SKIPPED)
        true_events: list[Event] = [event for event in self._events.drain() if event.kind not in untrue or event.task is None]
        self._events.put_back(true_events)

    def publish_failure(self) -> None:
        """Publish the events of a failed worker, and nothing else that is uncommitted. Never raises: the broker may be the cause."""
        incarnation = self._incarnations.current
        if not incarnation.granted:
            return
        try:
            self.drop_untrue_events()
            incarnation.transport.abort()
            incarnation.commit([])
        except StreamsError as error:
            logger.info("the end of this worker could not be published: %s", error)

    # -- offsets of idle and paused partitions ---------------------------------------------------------------------------------

    def recommit(self) -> None:
        """Commit the offsets of idle and paused partitions again, before they expire (rules.md, 20)."""
        held = self._tasks.offsets_to_recommit()
        self.commit(self.compare_and_set(held, held))

    def compare_and_set(self, wanted: Offsets, expected: Offsets) -> CompareAndSet:
        """Return offsets for the next commit, each committed only if the group still holds the expected one."""
        return CompareAndSet(wanted, expected, self._last_committed)

    def _last_committed(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """Read committed offsets in the middle of a transaction; an error leaves only a rollback."""
        try:
            return self._topics.last_committed(self._application_id, partitions)
        except StreamsError as error:
            raise TransactionAbortedError(f"the committed offsets cannot be compared: {error}") from error
