"""Global tables: a full copy of a topic in every worker, rebuilt when the topic is truncated, cleaned up or recreated (KIP-406).

Kafka Streams reads global tables on a thread of their own, which dies when their offset is no longer on the log; the user has to restart.
Here the worker's own loop reads them, one batch per round. Between two rounds no reader is in the middle of a record, so a store can be
wiped without a lock, and no record is joined with half a table (rules.md, 27). Tasks that do not read the store never wait, neither for
the first build: the worker joins before it.

A store is rebuilt from the start of the log when reading on cannot bring it up to date:
- its offset is not on the log (truncated, or the topic is shorter than before), at the start or later;
- the topic was deleted and created again, of whatever length: its id, polled every second, shows it;
- the store was away from the end for longer than `delete.retention.ms`: deletions may have been cleaned up unseen;
- its files are damaged, as found at the start, by the table's own writes, or by a task that reads it (`rebuild`).

Each rebuild publishes `GLOBAL_RECOVERY_STARTED`, sets RESTORING, wipes the store, reads from the start, publishes the end and sets RUNNING.
Consecutive recoveries wait longer each time, and report it. While a deleted topic is absent its table stays as it is: the last known state
is better than none, and a deletion cannot be distinguished from a re-creation that is under way.

What the worker knows of the topic has a time: "at `asked_ms` the ends were …" becomes "everything was read at `asked_ms`" once the
positions have passed those ends. So both a topic with endless traffic and one that is idle for days are known to be up to date.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, cast

from penstock.runtime.changelog.checkpoint import measure_checkpoint
from penstock.runtime.changelog.listeners import StateRestoreListener
from penstock.runtime.changelog.progress import UPDATE_MS, GlobalStoreName, TaskRestore
from penstock.runtime.changelog.staleness import Changelog, mark_at_end, stale_reason
from penstock.runtime.changelog.store_metadata import COMPLETE_MS, stored_complete_ms, stored_topic_id
from penstock.runtime.kafka.clients import ClientProperties
from penstock.runtime.kafka.connection import Connection
from penstock.runtime.kafka.log_reader import LogReader, Poll
from penstock.runtime.kafka.topic_admin import create_commands
from penstock.runtime.kafka.topic_watch import Observation, TopicFacts, TopicWatcher
from penstock.runtime.model.clock import Clock
from penstock.runtime.model.errors import (
    MissingSourceTopicError,
    ProcessingError,
    SchemaRegistryUnavailableError,
    StreamsConfigError,
    StreamsError,
    TaskCorruptedError,
)
from penstock.runtime.model.events import EventKind, EventSink
from penstock.runtime.model.ids import NextOffset, TaskId, TopicPartition
from penstock.runtime.model.metrics import TASK, Metrics
from penstock.runtime.stores.base import EngineStore
from penstock.runtime.tasks.global_state import GlobalProgress, GlobalState, GlobalStore, Phase

if TYPE_CHECKING:
    from penstock.runtime.input.deserialization import RawMessage
    from penstock.runtime.kafka.messages import Message

log = logging.getLogger(__name__)

_SHORTEST_GAP_MS = 5_000


class CompactionCheck(Enum):
    """`global.topic.compaction.check`: what to do about a global topic that is not compacted (rules.md, 3)."""

    WARN = "warn"
    ERROR = "error"
    OFF = "off"


class GlobalTask:
    """All global stores of a worker. Used by the worker's thread only. Never paused: a handler's PAUSE fails (KIP-990)."""

    def __init__(
        self,
        stores: Sequence[GlobalStore],
        *,
        open_store: Callable[[EngineStore], None],
        describe: Callable[[Collection[str]], Mapping[str, TopicFacts]],
        write_checkpoint: Callable[[Mapping[TopicPartition, NextOffset]], None],
        properties: ClientProperties,
        compaction_check: CompactionCheck,
        clock: Clock,
        watcher: TopicWatcher,
        events: EventSink,
        metrics: Metrics,
        listeners: Iterable[StateRestoreListener] = (),
        worker: int = 1,
    ) -> None:
        """`open_store` opens a store in the task's directory. `describe` describes topics at the brokers, and leaves out those that do not
        exist. `write_checkpoint` writes `global/.checkpoint`. `worker`: number of the worker whose copies these are. Use
        `build_global_task`."""
        self._states: dict[str, GlobalState] = {}
        self._stores = tuple(stores)
        self._open_store = open_store
        self._describe = describe
        self._write_checkpoint = write_checkpoint
        self._compaction_check = compaction_check
        self._clock = clock
        self._events = events
        self._metrics = metrics
        self._recoveries = {
            spec.topic: metrics.counter("global-recovery-total", TASK, task_id="global", store=spec.store.name) for spec in self._stores
        }
        self._listeners = tuple(listeners)
        self._connection = Connection.of({name: value for name, value in properties.items() if isinstance(value, str | int | float)})
        self._reader = LogReader(properties, "global")
        self._watch = watcher.watch(lambda: self._describe([spec.topic for spec in self._stores]), "global")
        self._readers: dict[str, set[TaskId]] = {}
        self._worker = worker
        self._found: tuple[int, Mapping[str, TopicFacts]] | None = None
        """The answer of `check`."""
        self._updated_ms = 0
        self._last_checkpoint: dict[TopicPartition, NextOffset] | None = None
        self._checkpoint_ms: int | None = None

    # --- life -------------------------------------------------------------------------------------------------------------------

    def check(self) -> tuple[int, Mapping[str, TopicFacts]]:
        """Check the topics, before the worker joins: it does not join if it cannot start. Return their descriptions, and the wall-clock
        time at which they were requested.

        Raises MissingSourceTopicError, StreamsConfigError (a topic is not compacted and the check is `error`), BrokerUnavailableError.
        """
        asked_ms = self._clock.wall_ms()
        found = self._describe([spec.topic for spec in self._stores])
        missing = sorted(spec.topic for spec in self._stores if spec.topic not in found)
        if missing:
            commands = create_commands(self._connection, dict.fromkeys(missing, 1), " --config cleanup.policy=compact")
            raise MissingSourceTopicError(f"global topics do not exist: {', '.join(missing)}; create them before the start:{commands}")
        tables = {spec.topic: spec.store.name for spec in self._stores if not spec.own_processor}
        refuse_not_compacted(
            tables, {topic: facts.cleanup_policy for topic, facts in found.items()}, self._compaction_check, self._connection
        )
        self._found = asked_ms, found
        return self._found

    def start(self) -> None:
        """Open the stores and begin to read; `step` reads on. Raises as `check`, which is called first if it was not."""
        asked_ms, found = self._found or self.check()
        for spec in self._stores:
            if not found[spec.topic].compacted:
                self._warn_not_compacted(spec, found[spec.topic])
        for spec in self._stores:
            state = self._states[spec.topic] = GlobalState(spec, found[spec.topic], asked_ms)
            reason = self._opened(state)
            if reason is None:
                self._begin(state, asked_ms)
            else:
                self._rebuild(state, reason, lost=self._deleted_unread(state.stored_positions))
        self._watch.start()

    def _opened(self, state: GlobalState) -> str | None:
        """Open the store. Return why its data cannot be used, None if it can."""
        try:
            store = state.spec.store
            self._open_store(store)
            state.complete_ms = stored_complete_ms(store)
            if stored_topic_id(store.get_meta) == state.facts.topic_id:
                state.stored_positions = {partition: store.committed_offset(partition) for partition in state.facts.ends}
                if state.complete_ms is not None:  # so that it had all partitions of that time
                    self._report_added(state, state.stored_positions)
            return self._stale(state)
        except TaskCorruptedError as error:
            return _damage(error)

    def _warn_not_compacted(self, spec: GlobalStore, facts: TopicFacts) -> None:
        if self._compaction_check is not CompactionCheck.OFF:
            log.warning("%s", _not_compacted(spec.topic, spec.store.name, facts.cleanup_policy, self._connection))
            self._events.emit(EventKind.GLOBAL_TOPIC_NOT_COMPACTED, {"topic": spec.topic, "cleanup_policy": facts.cleanup_policy})

    def _stale(self, state: GlobalState) -> str | None:
        store, facts = state.spec.store, state.facts
        logs = (Changelog(partition, end, facts.topic_id, facts.delete_retention_ms) for partition, end in facts.ends.items())
        now_ms = self._clock.wall_ms()
        return next((reason for changelog in logs if (reason := stale_reason(store, changelog, now_ms)) is not None), None)

    def close_processors(self) -> None:
        """Close the user's processors, all of them even if one raises. Nothing is applied afterwards. Raises ProcessingError for the first
        error."""
        failed: list[ProcessingError] = []
        for state in self._states.values():
            try:
                state.spec.applier.close()
            except ProcessingError as error:
                failed.append(error)
        if failed:
            raise failed[0]

    def close(self) -> None:
        """Write a last checkpoint and close reader, watch and stores."""
        self._watch.close()
        self._reader.close()
        if self._states:
            self.checkpoint()
        for state in self._states.values():
            self._suspend(state)
            state.spec.applier.close()
            state.spec.store.close()
        self._states.clear()

    # --- reading ----------------------------------------------------------------------------------------------------------------

    def step(self, timeout: float) -> bool:
        """Read and apply one batch, waiting at most `timeout` seconds. Return True if something was applied. Recoveries begin and end here.

        Raises DeserializationError or ProcessingError where a handler returns FAIL (or PAUSE), and StreamsError if a topic may not be read.
        """
        if (observation := self._watch.take()) is not None:
            for state in self._states.values():
                self._take_observation(state, observation)
        poll = self._reader.poll(timeout)
        for topic in {partition.topic for partition in poll.out_of_range}:
            positions = {partition: offset for partition, offset in poll.out_of_range.items() if partition.topic == topic}
            partition, offset = next(iter(positions.items()))
            reason = f"offset {offset} of {partition} is no longer there"
            self._rebuild(self._states[topic], reason, partition, self._deleted_unread(positions))
        self._take_poll(poll)
        for state in self._states.values():
            try:
                self._settle(state)
                if state.phase is not Phase.GONE:
                    state.spec.applier.punctuate(self._clock.wall_ms())
            except TaskCorruptedError as error:
                self._rebuild(state, _damage(error))
        self._update_progress()
        return bool(poll.runs)

    def _update_progress(self) -> None:
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._updated_ms < UPDATE_MS:
            return
        self._updated_ms = now_ms
        for state in self._states.values():
            if state.restore is not None:
                state.restore.update(sum(state.restored.values()), state.remaining)

    def _take_poll(self, poll: Poll) -> None:
        for partition, messages in poll.runs.items():
            state = self._states[partition.topic]
            # The store was rebuilt in this round: these records were polled before that.
            if partition not in state.positions or partition in poll.out_of_range:
                continue
            if (reason := self._gap(state)) is not None:
                self._rebuild(state, reason, partition, self._deleted_unread(state.positions))
                continue
            self._apply(state, partition, messages)
        for partition, offset in poll.ends.items():
            state = self._states[partition.topic]
            if partition in state.positions:
                state.positions[partition] = max(state.positions[partition], offset)

    def _apply(self, state: GlobalState, partition: TopicPartition, messages: Sequence[Message]) -> None:
        last = messages[-1].offset()
        assert last is not None
        next_offset = NextOffset(last + 1)
        try:
            state.spec.applier.apply(partition, cast("Sequence[RawMessage]", messages), next_offset)
        except TaskCorruptedError as error:
            self._rebuild(state, _damage(error), partition)
            return
        except SchemaRegistryUnavailableError as error:
            log.warning("global store %s: %s; trying again", state.spec.store.name, error)
            self._reader.assign(partition, state.positions[partition])
            return
        state.positions[partition] = next_offset
        if state.phase is Phase.RESTORING and partition in state.restored:
            state.restored[partition] += len(messages)
            self._metrics.counter("restore-total", TASK, task_id="global", store=state.spec.store.name).add(len(messages))
            for listener in self._listeners:
                listener.on_batch_restored(partition, state.spec.store.name, next_offset, len(messages))

    def _take_observation(self, state: GlobalState, observation: Observation[Mapping[str, TopicFacts]]) -> None:
        facts = observation.facts.get(state.spec.topic)
        if facts is None or observation.asked_ms < state.looked_ms:
            return
        if state.phase is Phase.GONE:
            if self._clock.monotonic_ms() >= state.not_before_ms:
                state.facts, state.looked_ms = facts, observation.asked_ms
                self._begin(state, observation.asked_ms)
        elif facts.topic_id != state.facts.topic_id:
            ids = f"its id is {facts.topic_id} and was {state.facts.topic_id}"
            self._rebuild(state, f"topic {state.spec.topic} was deleted and created again: {ids}")
        else:
            state.observation = observation
            if state.facts.compacted and not facts.compacted:  # too late to fail the start, whatever the check says
                self._warn_not_compacted(state.spec, facts)
            policy = facts.compacted, facts.cleanup_policy, facts.delete_retention_ms
            state.facts = replace(state.facts, compacted=policy[0], cleanup_policy=policy[1], delete_retention_ms=policy[2])
            positions = {partition: state.positions.get(partition) for partition in facts.ends}
            self._report_added(state, positions)
            for partition in facts.ends.keys() - state.positions.keys():
                state.positions[partition] = NextOffset(0)
                self._reader.assign(partition, None)

    def _report_added(self, state: GlobalState, positions: Mapping[TopicPartition, int | None]) -> None:
        """Report partitions that were added to a topic with records: those without a position. They are read, but a key that has moved to
        another partition has a record in both, and a rebuild reads partitions in any order."""
        read, partitions = sum(position is not None for position in positions.values()), len(positions)
        if read == partitions or not any(positions.values()):
            return
        topic, store = state.spec.topic, state.spec.store.name
        reason = f"keys move to other partitions, so that a rebuild of store {store} may find their old values last"
        log.warning(
            "global topic %s has %d partitions, and had %d: the new ones are read, but %s. Create it again, with its rows: "
            "`penstock alerts` shows how",
            *(topic, partitions, read, reason),
        )
        payload = {"topic": topic, "read": read, "partitions": partitions, "subtopologies": [], "store": store, "reason": reason}
        self._events.emit(EventKind.INPUT_PARTITIONS_ADDED, payload, coordinates=f"{topic}@{partitions}")

    def _settle(self, state: GlobalState) -> None:
        if state.phase is Phase.RESTORING and state.reached(state.facts.ends):
            self._finish(state)
        if state.observation is not None and state.reached(state.observation.facts[state.spec.topic].ends):
            state.at_end_ms = state.observation.asked_ms
            state.observation = None

    def _gap(self, state: GlobalState) -> str | None:
        """Return why reading on is no longer safe although the offset is on the log: the rule of `stale_reason`, for a running task. The
        end is polled every second or two, so a `delete.retention.ms` of a few seconds cannot be enforced."""
        retention_ms = state.facts.delete_retention_ms
        if state.phase is not Phase.RUNNING or retention_ms is None or state.at_end_ms is None:
            return None
        away_ms = self._clock.wall_ms() - state.at_end_ms
        if away_ms <= max(retention_ms, _SHORTEST_GAP_MS):
            return None
        return f"it was last at the end {away_ms} ms ago, longer than the topic's delete.retention.ms of {retention_ms}"

    # --- building and rebuilding ------------------------------------------------------------------------------------------------

    def _begin(self, state: GlobalState, asked_ms: int) -> None:
        """Read on from the store's position up to the ends seen at `asked_ms`; RUNNING at once if the store is there already."""
        store = state.spec.store
        state.phase = Phase.RESTORING
        state.positions.clear()
        state.restored = dict.fromkeys(state.facts.ends, 0)
        state.at_end_ms = asked_ms
        state.observation = None
        starts = {partition: store.committed_offset(partition) for partition in state.facts.ends}
        if all(start is None for start in starts.values()):
            # Until the end is reached, the store is as current as the moment at which reading began.
            mark_at_end(store, state.facts.topic_id, asked_ms)
            store.commit({})
        state.spec.applier.begin()
        for partition, start in starts.items():
            first = (self._reader.log_start(partition) or NextOffset(0)) if start is None else start
            state.positions[partition] = first
            self._reader.assign(partition, start)
            for listener in self._listeners:
                listener.on_restore_start(partition, store.name, first, state.facts.ends[partition])
        remaining, name = state.remaining, self._name(state)
        self._metrics.counter("restore-total", TASK, task_id="global", store=store.name)
        restore = TaskRestore(name, remaining, self._clock, self._metrics, self._events)
        if remaining:
            state.restore = restore
            self._events.emit(EventKind.RESTORE_STARTED, {**name.payload, "remaining": remaining})
        self._settle(state)

    def _name(self, state: GlobalState) -> GlobalStoreName:
        return GlobalStoreName(state.spec.store.name, state.spec.topic, self._worker)

    def _finish(self, state: GlobalState) -> None:
        store = state.spec.store
        self._commit_complete(state)
        state.phase = Phase.RUNNING
        for partition, count in state.restored.items():
            for listener in self._listeners:
                listener.on_restore_end(partition, store.name, count)
        records = sum(state.restored.values())
        if state.restore is not None:
            state.restore.done = records
            state.restore.end()
            state.restore = None
        if state.recovery_since_ms is not None:
            seconds = (self._clock.monotonic_ms() - state.recovery_since_ms) / 1000
            state.recovery_since_ms = state.reason = None
            log.info("global store %s is rebuilt: %d records in %.1f s", store.name, records, seconds)
            payload = {**self._name(state).payload, "records": records, "seconds": seconds}
            self._events.emit(EventKind.GLOBAL_RECOVERY_ENDED, payload)

    def _commit_complete(self, state: GlobalState) -> None:
        """Commit the positions of a store that has everything up to `at_end_ms`."""
        store, state.complete_ms = state.spec.store, state.at_end_ms or 0
        mark_at_end(store, state.facts.topic_id, state.complete_ms)
        store.set_meta(COMPLETE_MS, b"%d" % state.complete_ms)
        store.commit(dict(state.positions))

    def _deleted_unread(self, positions: Mapping[TopicPartition, int | None]) -> dict[str, dict[str, int]]:
        """Return, by partition, the range of offsets from a position that is no longer on the log to the log's start."""
        starts = {partition: self._reader.log_start(partition) for partition in positions}
        return {
            str(partition): {"from": offset, "to": start}
            for partition, offset in positions.items()
            if offset is not None and (start := starts[partition]) is not None and offset < start
        }

    def _rebuild(
        self, state: GlobalState, reason: str, partition: TopicPartition | None = None, lost: Mapping[str, Mapping[str, int]] | None = None
    ) -> None:
        """Start a recovery (KIP-406). The caller is between two rounds of the worker's loop, and so is every reader of the store. `lost`:
        offsets that were deleted before they were read."""
        store = state.spec.store
        now_ms = self._clock.monotonic_ms()
        wait_s = state.count_attempt(now_ms) / 1000
        again = "" if state.attempt == 1 else f" (recovery {state.attempt} in a row, which waits {wait_s:.0f} s)"
        log.warning("global store %s is wiped and rebuilt from topic %s%s: %s", store.name, state.spec.topic, again, reason)
        payload: dict[str, object] = {
            **self._name(state).payload,
            "partition": partition.partition if partition else None,
            "reason": reason,
            "attempt": state.attempt,
            "wait_seconds": wait_s,
            "lost": lost or {},
            "current_ms": state.at_end_ms if state.phase is Phase.RUNNING else state.complete_ms,
        }
        self._events.emit(EventKind.GLOBAL_RECOVERY_STARTED, payload, coordinates=state.spec.topic)
        self._recoveries[state.spec.topic].add()
        if state.recovery_since_ms is None:
            state.recovery_since_ms = now_ms
        state.reason = reason
        self._suspend(state)
        state.phase = Phase.GONE
        for each in state.positions:
            self._reader.unassign(each)
        state.positions.clear()
        store.wipe()
        state.complete_ms = None
        asked_ms = state.looked_ms = self._clock.wall_ms()
        if wait_s:
            return  # the topic's description, renewed every second, starts the recovery
        try:
            facts = self._describe([state.spec.topic]).get(state.spec.topic)
        except StreamsError as error:
            log.warning("global store %s waits for its topic: %s", store.name, error)
            return
        if facts is not None:
            state.facts = facts
            self._begin(state, asked_ms)

    def _suspend(self, state: GlobalState) -> None:
        """Report a restore that will not finish: its store is wiped once more, or closed."""
        if state.phase is Phase.RESTORING:
            for partition, count in state.restored.items():
                for listener in self._listeners:
                    listener.on_restore_suspended(partition, state.spec.store.name, count)
            state.restored = {}
            if state.restore is not None:
                state.restore.suspend()
                state.restore = None

    def rebuild(self, store: str, reason: str) -> None:
        """Wipe and rebuild a store on request, between two rounds of the worker's loop. Raises ValueError."""
        state = self._states[self.topic_of(store)]
        state.attempt = 0  # a request does not wait for earlier attempts
        self._rebuild(state, reason)

    def damaged(self, error: TaskCorruptedError) -> bool:
        """Wipe and rebuild a global store whose files a task found damaged. The caller rolls back the tasks that read it. Return False if
        the error is not about a global store."""
        state = self._state_of(error)
        if state is not None:
            self._rebuild(state, _damage(error))
        return state is not None

    def rebuilt_since(self, error: TaskCorruptedError, found_ms: int) -> bool:
        """Return True if the global store of this error was wiped after the error was found, at a monotonic time in ms."""
        state = self._state_of(error)
        return state is not None and state.attempt > 0 and state.attempted_ms >= found_ms

    def _state_of(self, error: TaskCorruptedError) -> GlobalState | None:
        if error.tasks:
            return None
        return next((state for state in self._states.values() if state.spec.store.name == error.store), None)

    def topic_of(self, store: str) -> str:
        """Return the topic of a global store. Raises ValueError, with the names of all global stores, if there is none."""
        topics = {state.spec.store.name: topic for topic, state in self._states.items()}
        if store not in topics:
            raise ValueError(f"there is no global store {store!r}: known are {', '.join(sorted(topics)) or 'none'}")
        return topics[store]

    # --- what the worker asks ---------------------------------------------------------------------------------------------------

    @property
    def restoring(self) -> bool:
        """True while a global store is built or rebuilt: the client's state is RESTORING (rules.md, 1)."""
        return any(state.phase is not Phase.RUNNING for state in self._states.values())

    def complete(self, stores: frozenset[str] | None) -> bool:
        """Return True if none of these stores is built or rebuilt; None: of all."""
        return all(state.phase is Phase.RUNNING for state in self._states.values() if stores is None or state.spec.store.name in stores)

    @property
    def catching_up(self) -> bool:
        """True while the topic of a store is read up to its end. False if all that are not RUNNING wait, for their topic or their delay."""
        return any(state.phase is Phase.RESTORING for state in self._states.values())

    def progress(self) -> list[GlobalProgress]:
        """Return the state of every store. Makes no request: ends come with each fetch."""
        return [self._progress(state) for state in self._states.values()]

    def _progress(self, state: GlobalState) -> GlobalProgress:
        positions, ends = state.positions, dict(state.facts.ends)
        for partition, position in positions.items():
            ends[partition] = max(ends.get(partition, position), self._reader.known_end(partition), position)
        restore = None if state.restore is None else state.restore.progress
        return GlobalProgress(
            store=state.spec.store.name,
            topic=state.spec.topic,
            phase=state.phase,
            position=sum(positions.values()),
            end=sum(ends.values()),
            checkpoint_ms=self._checkpoint_ms,
            restore=restore,
            reason=state.reason,
            attempt=0 if state.reason is None else state.attempt,
        )

    def phase(self, store: str) -> Phase:
        """Return the phase of a store; safe from any thread. Queries of a store that is not RUNNING are refused."""
        return next((state.phase for state in tuple(self._states.values()) if state.spec.store.name == store), Phase.GONE)

    def report(self, store: str) -> dict[str, object]:
        """Return a store's topic and phase, whether it is a `copy` of the topic (no processor of the user fills it), and its `positions`: a
        list of partitions with their next offsets. Raises ValueError, as `topic_of`."""
        topic = self.topic_of(store)
        state = self._states[topic]
        positions = [[str(partition), offset] for partition, offset in state.positions.items()]
        return {"topic": topic, "phase": state.phase.value, "copy": not state.spec.own_processor, "positions": positions}

    def store(self, name: str) -> EngineStore | None:
        """Return the global store of this name, None if there is none."""
        return next((spec.store for spec in self._stores if spec.store.name == name), None)

    def register_reader(self, store: str, task: TaskId) -> None:
        """Note that a processor of `task` asked for the store in `init` (rules.md, 27)."""
        self._readers.setdefault(store, set()).add(task)

    def unregister_reader(self, task: TaskId) -> None:
        """Drop the registrations of a task that was closed."""
        for tasks in self._readers.values():
            tasks.discard(task)

    def may_process(self, task: TaskId) -> bool:
        """Return False while a global store that the task reads is being rebuilt."""
        for state in self._states.values():
            if state.phase is not Phase.RUNNING and task in self._readers.get(state.spec.store.name, ()):
                return False
        return True

    def commit_if_complete(self) -> dict[EngineStore, str] | None:
        """Commit every store with its positions. Return the topic of each; None while one of them is being rebuilt."""
        if self.restoring:
            return None
        for state in self._states.values():
            state.spec.store.commit(dict(state.positions))
        return {state.spec.store: topic for topic, state in self._states.items()}

    # --- checkpoints ------------------------------------------------------------------------------------------------------------

    def checkpoint(self) -> None:
        """Flush the stores and write `global/.checkpoint` (KIP-116), at the worker's checkpoint interval; also of stores that are being
        built, which continue there after a restart."""
        began_ms = self._clock.monotonic_ms()
        offsets: dict[TopicPartition, NextOffset] = {}
        for state in self._states.values():
            store = state.spec.store
            if state.phase is Phase.RUNNING:
                self._commit_complete(state)
            store.flush()
            if store.persistent:
                offsets.update({each: offset for each in state.facts.ends if (offset := store.committed_offset(each)) is not None})
        self._write_checkpoint(offsets)
        measure_checkpoint(self._metrics, self._clock, "global", began_ms)
        self._checkpoint_ms = self._clock.wall_ms()
        if offsets == self._last_checkpoint:
            return  # an idle topic changes nothing
        self._last_checkpoint = offsets
        stores: dict[str, dict[str, int]] = {}
        for topic, state in self._states.items():
            stores[state.spec.store.name] = {str(each): offset for each, offset in offsets.items() if each.topic == topic}
        self._events.emit(EventKind.CHECKPOINT, {"stores": stores, "worker": self._worker})


def _damage(error: TaskCorruptedError) -> str:
    """Return the reason for a rebuild, and release the store's files so that it can be wiped."""
    error.clear_traceback()
    return f"its files are damaged: {error}"


def refuse_not_compacted(tables: Mapping[str, str], policies: Mapping[str, str], check: CompactionCheck, connection: Connection) -> None:
    """Check that the topics of global tables are compacted. `tables`: the store of each topic; `policies`: the cleanup.policy of each topic
    that exists. Raises StreamsConfigError if one is not, and the check is `error`."""
    for topic, store in tables.items() if check is CompactionCheck.ERROR else ():
        if "compact" not in policies.get(topic, "compact"):
            said = _not_compacted(topic, store, policies[topic], connection)
            raise StreamsConfigError(f"{said}; or set global.topic.compaction.check to warn")


def _not_compacted(topic: str, store: str, cleanup_policy: str, connection: Connection) -> str:
    """Describe the topic's fault, its consequence, and the command that repairs it."""
    return (
        f"global topic {topic} is not compacted (cleanup.policy={cleanup_policy}): keys that were not written lately will "
        f"be missing from store {store} after a rebuild. Set it with: {connection.tool('kafka-configs')} --alter --entity-type topics "
        f"--entity-name {topic} --add-config cleanup.policy=compact"
    )
