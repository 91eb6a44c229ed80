"""`TopologyTestDriver`: a topology run record by record, without a broker (Kafka Streams' class of the same name).

It runs the engine's own tasks, with their queues, handlers, stores and commit; only the log, the clock and the loop are the driver's.
Topics have one partition. After each record the task commits, so caches hold nothing back; what was written to a topic that the topology
reads (repartition, an output that is an input elsewhere, a global table's) is processed before `pipe_input` returns. State lives in a
folder of its own that `close` removes.

If a handler returns PAUSE, the task is PAUSED as in a worker (KIP-990): the records before are committed, `pipe_input` returns, and further
records of its inputs wait on their topics. `paused_local_tasks`, `shift_offset` and `resume` repair it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import cast

from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.model.clock import Duration, to_ms
from penstock.runtime.model.errors import InvalidStateStoreError
from penstock.runtime.model.ids import TaskId, TopicPartition
from penstock.runtime.model.metrics import MetricName, Metrics
from penstock.runtime.model.offsets import OffsetAndMetadata
from penstock.runtime.model.record import Headers
from penstock.runtime.model.states import TaskState
from penstock.runtime.model.type_variables import K, V
from penstock.runtime.serdes.serde import Serde
from penstock.runtime.stage.environment import Environment
from penstock.runtime.stage.global_stores import LocalGlobalStores
from penstock.runtime.stores.base import EngineStore
from penstock.runtime.stores.interfaces import KeyValueStore, SessionStore, VersionedKeyValueStore, WindowStore
from penstock.runtime.testing.clock import ManualClock
from penstock.runtime.testing.log import LogRecord, MemoryLog
from penstock.runtime.testing.stores import key_value_facade, session_facade, window_facade
from penstock.runtime.testing.tasks import NO_WAIT, DriverTask
from penstock.runtime.testing.topics import TestInputTopic, TestOutputTopic
from penstock.runtime.topology.checks import check_serde_pair
from penstock.runtime.topology.factory import checked_topology, warn_of_no_effect
from penstock.runtime.topology.topology import Topology
from penstock.runtime.worker.metadata import TaskMetadata, task_metadata
from penstock.runtime.worker.view import task_info


class TopologyTestDriver:
    """Runs a topology synchronously. A context manager; not safe for several threads.

    `config` may be left out; an application id and bootstrap servers are filled in. `initial_wall_clock_time` is in ms since the epoch,
    or a datetime with a zone; default now. The clock moves by `advance_wall_clock_time` only.
    """

    __test__ = False  # not a test, whatever its name says to pytest

    def __init__(
        self, topology: Topology, config: Mapping[str, object] | None = None, initial_wall_clock_time: int | datetime | None = None
    ) -> None:
        """Raises TopologyError, StreamsConfigError, and ProcessingError where a processor of the user's fails to start."""
        settings = StreamsConfig({"application.id": "topology-test", "bootstrap.servers": "localhost:9092", **(config or {})})
        resolved = checked_topology(topology).resolved(settings)
        warn_of_no_effect(resolved)
        self._application_id, self._patterns = settings.application_id, resolved.patterns
        self._clock = ManualClock(_wall_ms(initial_wall_clock_time))
        self._metrics = Metrics()
        self._waiting: deque[LogRecord] = deque()
        self._log = MemoryLog(self._written)
        self._folder = TemporaryDirectory(prefix="topology-test-")
        self._around = Environment(
            settings,
            resolved,
            self._clock,
            self._metrics,
            self._log,
            Path(self._folder.name),
            instance="topology-test",
            partitions=lambda topic: 1,
            max_task_idle_ms=NO_WAIT,
        )
        self._globals = LocalGlobalStores(resolved.global_stores(), self._around)
        self._tasks = [DriverTask(part, self._around, self._log, self._globals) for part in resolved.sub_topologies()]
        self._readers = {topic: task for task in self._tasks for topic in task.topics}
        for task in self._tasks:
            task.start()

    # -- records ---------------------------------------------------------------------------------------------------------------

    def create_input_topic(
        self,
        name: str,
        key_serde: Serde[K],
        value_serde: Serde[V],
        start_timestamp: int | datetime | None = None,
        auto_advance: Duration = 0,
    ) -> TestInputTopic[K, V]:
        """Create a topic to pipe records into. Records without a timestamp get `start_timestamp` (ms or datetime; default: the driver's
        clock), and `auto_advance` more for each record after the first."""
        check_serde_pair(f"input topic {name}", key_serde, value_serde)
        start = self._clock.wall_ms() if start_timestamp is None else _wall_ms(start_timestamp)

        def pipe(key: bytes | None, value: bytes | None, timestamp: int, headers: Headers) -> None:
            self._pipe(name, key, value, timestamp, headers)

        return TestInputTopic(name, key_serde, value_serde, pipe, start, to_ms(auto_advance))

    def create_output_topic(self, name: str, key_serde: Serde[K], value_serde: Serde[V]) -> TestOutputTopic[K, V]:
        """Create a topic to read from: what the topology writes to it, also before this call. Internal topics go by their full names."""
        check_serde_pair(f"output topic {name}", key_serde, value_serde)
        return TestOutputTopic(name, key_serde, value_serde, self._log.unread(name))

    def produced_topic_names(self) -> set[str]:
        """Return every topic that the topology has written to, internal ones included."""
        return self._log.written()

    def _pipe(self, topic: str, key: bytes | None, value: bytes | None, timestamp: int, headers: Headers) -> None:
        if not self._reads(topic):
            known = ", ".join(sorted({*self._readers, *self._globals.topics, *(pattern.pattern for pattern in self._patterns)}))
            raise ValueError(f"the topology does not read topic {topic!r} (it reads: {known})")
        self._waiting.append(self._log.append(topic, key, value, timestamp, headers))
        self._run()

    def _written(self, record: LogRecord) -> None:
        """A task wrote to a topic: if the topology reads it, the record waits for its turn."""
        if self._reads(record.topic_name):
            self._waiting.append(record)

    def _reads(self, topic: str) -> bool:
        if topic in self._readers or topic in self._globals.topics:
            return True
        if topic.startswith(f"{self._application_id}-"):
            return False  # of the application's own, which no pattern matches
        for task in self._tasks:
            if task.read_also(topic):
                self._readers[topic] = task
                return True
        return False

    def _run(self) -> None:
        waiting = self._waiting
        while waiting:
            record = waiting.popleft()
            try:
                if record.topic_name in self._globals.topics:
                    self._globals.process(TopicPartition(record.topic_name, 0), [record])
                if record.topic_name in self._readers:
                    self._readers[record.topic_name].pipe(record)
            except BaseException:
                # What waited behind a record that failed is not to surprise the next call.
                waiting.clear()
                raise

    # -- paused tasks ----------------------------------------------------------------------------------------------------------

    def paused_local_tasks(self) -> set[TaskMetadata]:
        """Return the tasks that are PAUSED, as `KafkaStreams.paused_local_tasks` returns them."""
        return {task_metadata(task_info(task, self._log)) for task in self._tasks if task.state is TaskState.PAUSED}

    def resume(self, task_id: TaskId) -> bool:
        """Continue a paused task at its committed offsets, with the records that have arrived meanwhile. True once it has left PAUSED (the
        next bad record may pause it again), False if it was not paused. Raises what `pipe_input` raises."""
        task = next((task for task in self._tasks if task.id == task_id), None)
        if task is None or task.state is not TaskState.PAUSED:
            return False
        try:
            task.resume_at_committed()
        except BaseException:
            self._waiting.clear()
            raise
        self._run()
        return True

    def committed_offset(self, topic: str) -> int | None:
        """Return the committed offset of an input topic: that of the next record to process. None before the first commit."""
        committed = self._around.transport.committed.get(TopicPartition(topic, 0))
        return None if committed is None else committed.offset

    def shift_offset(self, topic: str, by: int = 1) -> int:
        """Move the committed offset of an input of a paused task, as `kafka-consumer-groups --reset-offsets --shift-by` does; 1 skips the
        record before which the task is paused. `resume` continues there. Returns the new offset. Raises ValueError if no paused task reads
        the topic, or the offset is not on it."""
        task = self._readers.get(topic)
        if task is None or task.state is not TaskState.PAUSED:
            raise ValueError(f"no task that is PAUSED reads topic {topic!r}")
        offset = (self.committed_offset(topic) or 0) + by
        if not 0 <= offset <= self._log.end(topic):
            raise ValueError(f"topic {topic} has the offsets 0 to {self._log.end(topic)}, not {offset}")
        self._around.transport.committed[TopicPartition(topic, 0)] = OffsetAndMetadata(offset, "")  # Kafka's tool writes no metadata either
        return offset

    # -- time ------------------------------------------------------------------------------------------------------------------

    def advance_wall_clock_time(self, duration: Duration) -> None:
        """Move the clock and run the wall-clock punctuators that are then due, once each, as the real runtime does."""
        self._clock.advance(to_ms(duration))
        self._globals.punctuate(self._clock.wall_ms())
        for task in self._tasks:
            task.punctuate(self._clock.wall_ms())
        self._run()

    # -- state -----------------------------------------------------------------------------------------------------------------

    def get_all_state_stores(self) -> dict[str, object]:
        """Return all stores by name, the global ones included, as processors see them."""
        return {name: store.user_store for name, store in self._stores().items()}

    def get_state_store(self, name: str) -> object:
        """Return the store as processors see it: a timestamped one gives ValueAndTimestamp, one with headers ValueTimestampHeaders or
        AggregationWithHeaders. Raises InvalidStateStoreError if there is none."""
        return self._named(name).user_store

    def _stores(self) -> dict[str, EngineStore]:
        found = dict(self._globals.stores)
        for task in self._tasks:
            found.update(task.stores)
        return found

    def _named(self, name: str) -> EngineStore:
        stores = self._stores()
        if name not in stores:
            raise InvalidStateStoreError(f"the topology has no store {name!r} (its stores: {', '.join(sorted(stores)) or 'none'})")
        return stores[name]

    def _store(self, name: str, kind: str) -> EngineStore:
        store = self._named(name)
        if store.layout.kind != kind:
            raise InvalidStateStoreError(f"store {name!r} is a {store.layout.kind} store, not a {kind} store")
        return store

    def _with_headers(self, name: str, kind: str) -> EngineStore:
        store = self._store(name, kind)
        if not store.layout.headers:
            raise InvalidStateStoreError(f"store {name!r} keeps no headers")
        return store

    def get_key_value_store(self, name: str) -> KeyValueStore:
        """Return a key-value store with plain values. Raises InvalidStateStoreError if there is none of that name and kind."""
        store = self._store(name, "key_value")
        return key_value_facade(store, store.layout, timestamped=False)

    def get_timestamped_key_value_store(self, name: str) -> KeyValueStore:
        """Return a key-value store with values as ValueAndTimestamp. Raises InvalidStateStoreError if there is none of that name and
        kind."""
        store = self._store(name, "key_value")
        if not store.layout.timestamped:
            raise InvalidStateStoreError(f"store {name!r} keeps no timestamps")
        return key_value_facade(store, store.layout, timestamped=True)

    def get_timestamped_key_value_store_with_headers(self, name: str) -> KeyValueStore:
        """Return a key-value store with values as ValueTimestampHeaders. Raises InvalidStateStoreError if there is none of that name and
        kind."""
        return cast(KeyValueStore, self._with_headers(name, "key_value"))

    def get_window_store(self, name: str) -> WindowStore:
        """Return a window store with plain values. Raises InvalidStateStoreError if there is none of that name and kind."""
        store = self._store(name, "window")
        return window_facade(store, store.layout, timestamped=False)

    def get_timestamped_window_store(self, name: str) -> WindowStore:
        """Return a window store with values as ValueAndTimestamp. Raises InvalidStateStoreError if there is none of that name and kind."""
        store = self._store(name, "window")
        if not store.layout.timestamped:
            raise InvalidStateStoreError(f"store {name!r} keeps no timestamps")
        return window_facade(store, store.layout, timestamped=True)

    def get_timestamped_window_store_with_headers(self, name: str) -> WindowStore:
        """Return a window store with values as ValueTimestampHeaders. Raises InvalidStateStoreError if there is none of that name and
        kind."""
        return cast(WindowStore, self._with_headers(name, "window"))

    def get_session_store(self, name: str) -> SessionStore:
        """Return a session store with plain values. Raises InvalidStateStoreError if there is none of that name and kind."""
        store = self._store(name, "session")
        return session_facade(store, store.layout)

    def get_session_store_with_headers(self, name: str) -> SessionStore:
        """Return a session store with values as AggregationWithHeaders. Raises InvalidStateStoreError if there is none of that name and
        kind."""
        return cast(SessionStore, self._with_headers(name, "session"))

    def get_versioned_key_value_store(self, name: str) -> VersionedKeyValueStore:
        """Return a versioned key-value store. Raises InvalidStateStoreError if there is none of that name and kind."""
        return cast(VersionedKeyValueStore, self._store(name, "versioned"))

    def metrics(self) -> dict[MetricName, float]:
        """Return all metrics now, as `KafkaStreams.metrics()`."""
        return self._metrics.values()

    # -- end -------------------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close processors and stores and remove the state. Raises ProcessingError if a processor fails to close."""
        try:
            for task in self._tasks:
                task.close(clean=True)
        finally:
            self._globals.close()
            self._folder.cleanup()

    def __enter__(self) -> TopologyTestDriver:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()


def _wall_ms(moment: int | datetime | None) -> int:
    if moment is None:
        return time.time_ns() // 1_000_000
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise ValueError(f"{moment!r} has no time zone: give one, or ms since the epoch")
        return round(moment.timestamp() * 1000)
    return moment
