"""Applications for the engine's tests: a count per key, run in this process."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, TopicPartition

from penstock import serdes
from penstock.runtime.client.kafka_streams import KafkaStreams
from penstock.runtime.dsl.builder import StreamsBuilder
from penstock.runtime.dsl.options import Consumed, Materialized, Produced
from penstock.runtime.model.errors import StreamsError
from penstock.runtime.model.events import Event, EventKind, events_topic
from penstock.runtime.model.states import State, TaskState
from penstock.runtime.topology.topology import Topology
from penstock.runtime.worker.loop import Worker
from penstock.runtime.worker.supervisor.thread_worker import ThreadWorker
from tests.support import Kafka, wait_until

PAUSE = "penstock.LogAndPauseExceptionHandler"
BAD = b"\xff\xfe"
"""A key or value that is not UTF-8."""


def count_topology(source: str, output: str, *, caching: bool = True) -> Topology:
    """Count the records of each key; the value must be text."""
    builder = StreamsBuilder()
    (
        builder.stream(source, Consumed(serdes.STRING, value=serdes.STRING))
        .group_by_key()
        .count(Materialized("counts", caching=caching))
        .to_stream()
        .to(output, Produced(serdes.STRING, value=serdes.LONG))
    )
    return builder.build()


def airport_names(flights: str, airports: str, output: str) -> Topology:
    """Join flights with the name of their airport, from a global table; None if the table lacks it."""
    text = Consumed(serdes.STRING, value=serdes.STRING)
    builder = StreamsBuilder()
    table = builder.global_table(airports, text, Materialized("airports"))
    joined = builder.stream(flights, text).left_join(table, lambda _, airport: airport, lambda airport, name: f"{airport}={name}")
    joined.to(output, Produced(serdes.STRING, value=serdes.STRING))
    return builder.build()


def client(broker: Kafka, topology: Topology | str, application_id: str, state_dir: Path, **settings: object) -> KafkaStreams:
    """Create a client without starting it."""
    config: dict[str, object] = {
        "application.id": application_id,
        "bootstrap.servers": broker.bootstrap_servers,
        "state.dir": str(state_dir),
        "session.timeout.ms": 6000,
        "heartbeat.interval.ms": 1000,
        "failure.detection.ms": 0,  # it tells of the ends of processes, and this one outlives its clients
        **settings,
    }
    return KafkaStreams(topology, config)


@contextmanager
def running(broker: Kafka, topology: Topology | str, application_id: str, state_dir: Path, **settings: object) -> Iterator[KafkaStreams]:
    """Yield a client that has reached RUNNING; close it at the end."""
    with client(broker, topology, application_id, state_dir, **settings) as streams:
        streams.start()
        reaches(streams, State.RUNNING)
        yield streams


def worker_of(streams: KafkaStreams) -> Worker:
    """Return the only worker of a client, for inspection."""
    [worker] = streams._supervisor.workers
    assert isinstance(worker, ThreadWorker)
    return worker.worker


def on_worker(worker: Worker, job: Callable[[], None]) -> None:
    """Run a job on the worker's thread, between two batches."""
    done = threading.Event()
    worker._inbox.put(job)
    worker._inbox.put(done.set)
    assert done.wait(30)


def reaches(streams: KafkaStreams, state: State, seconds: int = 40) -> None:
    """Wait for a state; fail with the client's error if the client failed."""
    if not streams.wait_for(state, seconds * 1000):
        raise AssertionError(f"{state} did not come: {streams.state}, {streams.failure!r}")


def latest(broker: Kafka, topic: str) -> dict[str | None, int | None]:
    """Return the last committed value of each key of a topic of counts."""
    return {
        None if record.key is None else record.key.decode(): None if record.value is None else struct.unpack(">q", record.value)[0]
        for record in broker.consume(topic)
    }


def counts_become(broker: Kafka, topic: str, wanted: dict[str, int], seconds: float = 40) -> None:
    """Wait until an output topic has these counts."""
    wait_until(lambda: latest(broker, topic) == wanted, seconds, f"{wanted} on {topic}")


def texts(broker: Kafka, topic: str) -> list[str]:
    """Return the committed values of a topic of text."""
    return [(record.value or b"").decode() for record in broker.consume(topic)]


def texts_become(broker: Kafka, topic: str, wanted: list[str]) -> None:
    """Wait until a topic has these values."""
    wait_until(lambda: texts(broker, topic) == wanted, 40, f"{wanted}")


def active_tasks(streams: KafkaStreams) -> set[str]:
    """Return the ids of the tasks that a client runs."""
    threads = streams.metadata_for_local_threads()
    return {str(task.task_id) for thread in threads for task in thread.active_tasks if task.state is TaskState.RUNNING}


def paused(streams: KafkaStreams) -> set[str]:
    """Return the ids of the client's paused tasks."""
    try:
        return {str(task.task_id) for task in streams.paused_local_tasks()}
    except StreamsError:
        return set()


def events(broker: Kafka, application_id: str) -> list[Event]:
    """Return all committed events of an application."""
    return [Event.from_json(record.value or b"") for record in broker.consume(events_topic(application_id))]


_NO_COORDINATOR_YET = (KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.COORDINATOR_NOT_AVAILABLE)


def set_offset(broker: Kafka, group: str, topic: str, offset: int, partition: int = 0) -> None:
    """Move a committed offset through Kafka's Admin interface, as an operator would."""
    admin = broker.admin  # the client must outlive its requests
    wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, partition, offset)])

    def answered() -> bool:
        """A broker that has just started may not coordinate the group yet."""
        [answer] = admin.alter_consumer_group_offsets([wanted])[group].result(30).topic_partitions
        assert answer.error is None or answer.error.code() in _NO_COORDINATOR_YET, answer.error
        return answer.error is None

    wait_until(answered, 30, "the group's coordinator")


def events_of_kind(broker: Kafka, application_id: str, kind: EventKind) -> list[Event]:
    """Return the committed events of one kind."""
    return [event for event in events(broker, application_id) if event.kind is kind]


def events_of_the_start_are_committed(broker: Kafka, application_id: str) -> None:
    """Wait for the commit caused by the events of the start. After it, none is due before `commit.interval.ms`."""
    wait_until(
        lambda: any(
            event.payload["new"] == State.RUNNING.value for event in events_of_kind(broker, application_id, EventKind.INSTANCE_STATE)
        )
    )
