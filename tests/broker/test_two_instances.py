"""Two instances share the tasks; if one dies or leaves, the other takes over, and no record is counted twice or lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from penstock.runtime.client.kafka_streams import KafkaStreams
from penstock.runtime.model.states import State
from tests.support import Kafka, wait_until
from tests.support.engine import client, count_topology, counts_become, reaches

Topic = Callable[..., str]


def tasks(streams: KafkaStreams) -> set[str]:
    """Return the ids of the tasks that a client runs."""
    return {str(task.task_id) for thread in streams.metadata_for_local_threads() for task in thread.active_tasks}


def test_tasks_are_shared_handed_over_and_taken_back(broker: Kafka, topic: Topic, application_id: str, tmp_path: Path) -> None:
    source, output = topic("in", partitions=4), topic("out", partitions=4)
    broker.produce(source, [(f"k{n % 8}", "v") for n in range(80)])
    topology = count_topology(source, output)
    first = client(broker, topology, application_id, tmp_path / "1", **{"client.id": "one"})
    second = client(broker, topology, application_id, tmp_path / "2", **{"client.id": "two"})
    with first, second:
        first.start()
        reaches(first, State.RUNNING)
        assert len(tasks(first)) == 4
        counts_become(broker, output, {f"k{n}": 10 for n in range(8)})
        second.start()
        wait_until(lambda: len(tasks(first)) == 2 and len(tasks(second)) == 2, what="two tasks each")
        assert not tasks(first) & tasks(second)
        reaches(second, State.RUNNING)
        broker.produce(source, [(f"k{n % 8}", "v") for n in range(80)])
        counts_become(broker, output, {f"k{n}": 20 for n in range(8)})
        assert first.close(20_000)
        wait_until(lambda: len(tasks(second)) == 4, what="all tasks at the one that is left")
        broker.produce(source, [(f"k{n % 8}", "v") for n in range(80)])
        counts_become(broker, output, {f"k{n}": 30 for n in range(8)})


def test_rule_4_tasks_of_an_instance_that_returns_are_kept_for_it(broker: Kafka, topic: Topic, application_id: str, tmp_path: Path) -> None:
    source, output = topic("in", partitions=4), topic("out", partitions=4)
    topology = count_topology(source, output)
    with client(broker, topology, application_id, tmp_path / "1", **{"client.id": "one"}) as first:
        first.start()
        reaches(first, State.RUNNING)
        second = client(broker, topology, application_id, tmp_path / "2", **{"client.id": "two"})
        second.start()
        wait_until(lambda: len(tasks(first)) == 2 and len(tasks(second)) == 2, what="two tasks each")
        kept = tasks(second)
        second.close(20_000, leave_group=False)
        broker.produce(source, [(f"k{n}", "v") for n in range(8)])
        with client(broker, topology, application_id, tmp_path / "2", **{"client.id": "two"}) as again:
            again.start()
            wait_until(lambda: tasks(again) == kept, what="the same tasks")
            assert len(tasks(first)) == 2
            counts_become(broker, output, {f"k{n}": 1 for n in range(8)})
