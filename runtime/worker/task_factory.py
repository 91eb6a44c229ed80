"""Factory of tasks: their input, outputs and stores, and what the brokers know about their changelogs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from penstock.runtime.changelog.staleness import Changelog
from penstock.runtime.commit.collector import WorkerCollector
from penstock.runtime.commit.order import Transport
from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.coordination.topics import TopicLayout, prepare_topics
from penstock.runtime.input.deserialization import Decoder
from penstock.runtime.kafka.clients import ClientProperties
from penstock.runtime.kafka.connection import Connection
from penstock.runtime.kafka.topic_admin import TopicAdmin
from penstock.runtime.model.clock import Clock
from penstock.runtime.model.errors import BrokerUnavailableError, by_reset
from penstock.runtime.model.handlers import LogAndContinueProcessingExceptionHandler, LogAndFailProcessingExceptionHandler
from penstock.runtime.model.ids import NextOffset, TaskId, TopicPartition
from penstock.runtime.model.metrics import Metrics
from penstock.runtime.model.offsets import AutoOffsetReset
from penstock.runtime.model.states import TaskKind
from penstock.runtime.operators.context import GlobalStores
from penstock.runtime.stores.budget import StoreMemory
from penstock.runtime.stores.directory import StateDirectory
from penstock.runtime.tasks.active import ActiveTask
from penstock.runtime.tasks.follower import FollowerTask
from penstock.runtime.tasks.incidents import Incidents
from penstock.runtime.tasks.plan import TaskPlan
from penstock.runtime.topology.nodes import SourceNode
from penstock.runtime.topology.topology import Topology

TOPIC_PROPAGATION_MS = 30_000
"""librdkafka's default of `topic.metadata.propagation.max.ms`."""


class TaskFactory:
    """Makes the tasks of a topology. Used by the worker's thread only."""

    def __init__(
        self,
        *,
        config: StreamsConfig,
        topology: Topology,
        layout: TopicLayout,
        directory: StateDirectory,
        topics: TopicAdmin,
        incidents: Incidents,
        memory: StoreMemory,
        global_stores: GlobalStores | None,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._config = config
        self._topology = topology
        self._layout = layout
        self._directory = directory
        self._topics = topics
        self._memory = memory
        self._global_stores = global_stores
        self._clock = clock
        self._metrics = metrics
        self._subtopologies = {subtopology.id: subtopology for subtopology in topology.sub_topologies()}
        self._sources = {
            source.topics[0]: source
            for part in self._subtopologies.values()
            for source in part.sources
            if set(source.topics) & set(part.source_changelogs.values())
        }
        """Source topics that serve as changelogs, and the source nodes that read them."""
        self._application_id = config.application_id
        self._collector: WorkerCollector | None = None
        self.incidents = incidents
        self.exactly_once = config.exactly_once

    def attach(self, transport: Transport) -> None:
        """Let tasks made from now on send their outputs to this transport."""
        known = (LogAndFailProcessingExceptionHandler, LogAndContinueProcessingExceptionHandler)
        # Under exactly-once, aborting the transaction removes a failed record's outputs; otherwise they are held until the record is
        # processed.
        self._hold = self._config["processing.guarantee"] == "at_least_once" and type(self.incidents.processing) not in known
        self._collector = WorkerCollector(
            transport, self._topics.partition_count, self.incidents, self._clock, hold=self._hold, patience_ms=self._patience_ms()
        )
        self.incidents.attach(transport)

    def _patience_ms(self) -> int:
        """Return the time that a new topic may take until all brokers know it, by librdkafka's own setting."""
        return int(str(self._config.producer_properties().get("topic.metadata.propagation.max.ms", TOPIC_PROPAGATION_MS)))

    def task(self, task_id: TaskId) -> ActiveTask:
        """Return a new active task, in state CREATED."""
        return ActiveTask(self._plan(task_id), self.incidents)

    def follower(self, task_id: TaskId, kind: TaskKind) -> FollowerTask:
        """Return a new standby or learner, in state CREATED."""
        return FollowerTask(self._plan(task_id), kind)

    def _plan(self, task_id: TaskId) -> TaskPlan:
        assert self._collector is not None
        subtopology = self._subtopologies[task_id.subtopology]
        sources = {
            topic: source
            for source in subtopology.sources
            for topic in source.topics
            # Merged topics may differ: the one with fewer partitions feeds the first tasks only.
            if task_id.partition < self._layout.partitions[topic]
        }
        config = self._config
        return TaskPlan(
            task_id=task_id,
            application_id=self._application_id,
            config=config,
            subtopology=subtopology,
            sources=sources,
            directory=self._directory.task_directory(task_id),
            lock=self._directory.task_lock(task_id),
            memory=self._memory,
            clock=self._clock,
            metrics=self._metrics,
            collector=self._collector,
            global_stores=self._global_stores,
            hold_outputs=self._hold,
            changelogs_roll_back=self.exactly_once,
            max_task_idle_ms=config.integer("max.task.idle.ms"),
            default_offset_reset=AutoOffsetReset.of(config.text("auto.offset.reset")),
            default_timestamp_extractor=config["default.timestamp.extractor"],
            topic_id=lambda topic: self.topic_ids([topic]).get(topic),
        )

    def changelogs(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Changelog]:
        """Describe changelogs as the brokers know them now: id, retention of deletions, and end. A missing one is created again. The end of
        a source topic that serves as changelog is the committed offset: records up to there were processed.

        Raises BrokerUnavailableError (also while one is being created: ask again), StreamsError.
        """
        if not partitions:
            return {}
        facts = self._topics.describe({partition.topic for partition in partitions})
        missing = sorted({partition.topic for partition in partitions} - set(facts))
        if missing:
            prepare_topics(self._topics, self._topology, self._config, had=missing)
            raise BrokerUnavailableError(f"changelog {', '.join(missing)} no longer existed, and is created again")
        # High watermarks, not last stable offsets: the last commit of the task's previous owner may still wait for its marker, and its
        # records must not be left out. The restore reads committed records up to this end, and so waits for the marker.
        ends = self._topics.high_watermarks(partitions)
        sources = [partition for partition in partitions if partition.topic in self._sources]
        committed = self._topics.last_committed(self._application_id, sources) if sources else {}
        found = {}
        for partition in partitions:
            end, about, source = ends[partition], facts[partition.topic], self._sources.get(partition.topic)
            if source is None:
                found[partition] = Changelog(partition, NextOffset(end), about.topic_id, about.delete_retention_ms)
            else:
                done = committed[partition].offset if partition in committed else 0
                found[partition] = Changelog(partition, NextOffset(min(end, done)), about.topic_id, None, self._reader_of(source))
        return found

    def _reader_of(self, source: SourceNode) -> Callable[[], Decoder]:
        """Return a factory of decoders for a source topic that serves as changelog."""
        (topic,), extractor = source.topics, source.timestamp_extractor or self._config["default.timestamp.extractor"]
        assert source.key_serde is not None and source.value_serde is not None  # a resolved topology has them
        key, value = source.key_serde, source.value_serde
        return lambda: Decoder(topic, key, value, extractor)

    def topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        """Return the ids of those of these topics that exist. Raises BrokerUnavailableError, StreamsError."""
        return {name: found.topic_id for name, found in self._topics.describe(topics).items()}

    def delete_retention_ms(self, topic: str) -> int | None:
        """Return how long deletions of a topic can be read; None where it is not compacted or does not exist. Raises
        BrokerUnavailableError, StreamsError."""
        found = self._topics.describe([topic]).get(topic)
        return None if found is None else found.delete_retention_ms

    def log_properties(self) -> ClientProperties:
        """Return the properties for a reader of logs."""
        return self._config.consumer_properties("restore")

    def state_lost_message(self, task: TaskId, lost: Mapping[TopicPartition, NextOffset]) -> str:
        """Return the message about lost state, with the command that helps (rules.md, 14). `lost` is empty where only the changelogs show
        that there is state."""
        groups, group = Connection.of(self._config.admin_properties()).tool("kafka-consumer-groups"), self._application_id
        tool = f"  {groups} --group {group} --reset-offsets --execute"
        commands = "\n".join(
            f"{tool} --topic {partition.topic}:{partition.partition} --to-offset {at}" for partition, at in sorted(lost.items())
        )
        go_on = f"To continue from where the state was built up to, set these offsets:\n{commands}\nOr build" if lost else "Build"
        where = ", ".join(map(str, sorted(lost))) or "its input"
        topics = " ".join(f"--topic {partition.topic}:{partition.partition}" for partition in sorted(lost))
        return (
            f"task {task} has state, but group {group} has no committed offset for {where}: they expired or were deleted, perhaps with the "
            f"topic. Going on would count records twice. {go_on} the state again: {by_reset(group)}\n"
            f"If the topic was deleted and created again while nothing ran, no record of the new one was counted: then begin at its first "
            f"record:\n{tool} {topics or '--topic TOPIC:PARTITION'} --to-earliest"
        )
