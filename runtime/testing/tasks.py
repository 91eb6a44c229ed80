"""The test driver's tasks: tasks of a stage that process and commit one record at a time."""

from __future__ import annotations

from penstock.runtime.input.queues import PartitionQueue, TaskQueues
from penstock.runtime.model.ids import NextOffset, TopicPartition
from penstock.runtime.model.states import TaskState
from penstock.runtime.operators.context import GlobalStores
from penstock.runtime.stage.environment import Environment
from penstock.runtime.stage.task import OfflineTask
from penstock.runtime.testing.log import LogRecord, MemoryLog
from penstock.runtime.topology.nodes import SubTopology

NO_WAIT = -1
"""`max.task.idle.ms` of a driver: a record is processed when it is piped, whatever other topics may bring."""


class DriverTask(OfflineTask):
    """The task of a sub-topology, with partition 0 of everything. It commits after each record."""

    records_per_commit = 1
    """More in tests of operators that compute several results at once."""

    def __init__(self, part: SubTopology, around: Environment, log: MemoryLog, global_stores: GlobalStores) -> None:
        self._log = log
        super().__init__(part, 0, {topic: source for source in part.sources for topic in source.topics}, around, global_stores)

    @property
    def topics(self) -> list[str]:
        """The topics that this task reads."""
        return list(self._sources)

    def read_also(self, topic: str) -> bool:
        """Return True if a pattern of this task matches a topic; it is read from now on."""
        for source in self.plan.subtopology.sources:
            if source.pattern is not None and source.pattern.fullmatch(topic):
                self._sources[topic] = source
                self.inputs = self.plan.inputs
                if self.queues is not None and self._pipeline is not None:
                    queue = PartitionQueue(TopicPartition(topic, 0), self.plan.decoder(topic), NextOffset(0))
                    self.queues = TaskQueues([*self.queues.all, queue], NO_WAIT)
                    self._pipeline.read_also(topic, source.name)
                return True
        return False

    def _begin(self) -> None:
        super()._begin()
        assert self._pipeline is not None
        for topic, source in self._sources.items():
            if source.pattern is not None:
                self._pipeline.read_also(topic, source.name)

    def pipe(self, record: LogRecord) -> None:
        """Process one record, then commit; if the task is PAUSED, leave it on the log. Raises DeserializationError, ProcessingError and
        ProductionError where the handler returns FAIL."""
        if self.state is not TaskState.PAUSED:
            if self.uncommitted_bytes:
                self.commit()  # what a test has written is not rolled back with the record
            self._process({TopicPartition(record.topic_name, 0): [record]})

    def resume_at_committed(self) -> None:
        """Continue at the committed offsets, with what has arrived while the task was PAUSED. Raises what `pipe` raises."""
        committed, starts = self._positions()
        self.resume(committed, starts)
        self._process({partition: self._log.records(partition.topic, start) for partition, start in starts.items()})

    def _process(self, records: dict[TopicPartition, list[LogRecord]]) -> None:
        """Process records in the order of the task's queues, with a commit after each, until they are done or the task is PAUSED."""
        assert self.queues is not None
        for partition, of_topic in records.items():
            if of_topic:
                self.give(partition, of_topic)
        try:
            self.step(self.records_per_commit)
            while self.queues.buffered and self.state is TaskState.RUNNING:
                self.step(self.records_per_commit)
        except BaseException:
            for partition, of_topic in records.items():  # the next call is not to meet these records again
                if of_topic:
                    self.queues[partition].clear(NextOffset(of_topic[-1].position + 1))
            self.pause_wanted = self._stop_before = None
            self._around.transport.flush()
            raise
        finally:
            self._given = {}
