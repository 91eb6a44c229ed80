"""Events during a restore: kills, rebalances, a truncated log, other tasks that want to process."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer

from penstock.runtime.changelog.staleness import Changelog
from penstock.runtime.kafka import clients, log_reader
from penstock.runtime.kafka.logins import FollowedConsumer
from penstock.runtime.model.errors import TaskCorruptedError
from penstock.runtime.model.ids import NextOffset, TaskId, TopicPartition
from penstock.runtime.model.states import State, TaskState
from tests.broker.restoring import open_store
from tests.broker.test_restore import Bench, content, finish
from tests.broker.test_two_instances import tasks
from tests.support import ROOT, Kafka, wait_until
from tests.support.engine import client, count_topology, counts_become, reaches
from tests.support.logs import cut, open_transaction

Topic = Callable[..., str]
TASK = TaskId(0, 0)
SLOW: dict[str, int] = {
    "max.partition.fetch.bytes": 20_000,
    "queued.min.messages": 1,
    "queued.max.messages.kbytes": 1,
    "fetch.queue.backoff.ms": 20,
}
"""Settings of a consumer that polls about a thousand records at a time."""
DELETABLE = {"cleanup.policy": "compact,delete"}


@pytest.fixture
def bench(broker: Kafka, tmp_path: Path, topic: Topic) -> Bench:
    return Bench(broker, tmp_path / "0_0", topic("changelog", config=DELETABLE))


# --- kill -9 ------------------------------------------------------------------------------------------------------------------------


def restore_once(
    broker: Kafka, topic: str, folder: Path, batches: int | None, wait_ms: int = 0
) -> tuple[dict[int, int], dict[int, int], bool]:
    """Run a restore, let it write some batches, and kill it `wait_ms` after it was allowed to continue. Return its start offsets, the next
    offsets after the last batch that it reported (both by partition), and whether it finished."""
    command = [sys.executable, "-m", "tests.broker.restoring", broker.bootstrap_servers, topic, str(folder)]
    starts: dict[int, int] = {}
    written: dict[int, int] = {}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None and process.stdin is not None
        for line in process.stdout:
            what, *numbers = line.split()
            if what == "start":
                starts[int(numbers[0])] = int(numbers[1])
                continue
            written[int(numbers[0])] = int(numbers[1]) + 1
            process.stdin.write("\n")
            process.stdin.flush()
            batches = None if batches is None else batches - 1
            if batches == 0:
                time.sleep(wait_ms / 1000)  # anywhere between this write and the next one
                os.kill(process.pid, signal.SIGKILL)
                break
        rest = process.stdout.read().split()
        if rest:  # it reported the next batch before the kill
            written[int(rest[1])] = int(rest[2]) + 1
    return starts, written, process.returncode == 0


def test_after_each_kill_it_continues_from_what_it_had_written(broker: Kafka, topic: Topic, tmp_path: Path) -> None:
    name = topic("changelog", partitions=2, config={"cleanup.policy": "compact"})
    for partition in range(2):
        broker.produce(name, [(f"k{n % 15_000}", str(n)) for n in range(30_000)], partition=partition)
    choice = random.Random(11)
    reached: dict[int, int] = {}
    for _ in range(5):
        starts, written, complete = restore_once(broker, name, tmp_path, choice.randint(1, 5), choice.randint(0, 30))
        assert not complete
        # The last batch may have been written but not reported: the offset is never lower, and never the start again.
        assert all(starts[partition] >= offset for partition, offset in reached.items())
        reached |= written
    starts, _, complete = restore_once(broker, name, tmp_path, None)
    assert complete and all(starts[partition] >= offset for partition, offset in reached.items())
    assert 0 < sum(starts.values()) < 60_000
    for partition in range(2):
        store = open_store(tmp_path, TopicPartition(name, partition))
        assert content(store) == {f"k{n % 15_000}": str(n) for n in range(15_000, 30_000)}
        assert store.committed_offset(TopicPartition(name, partition)) == 30_000
        store.close()


# --- changes of the log during the read ---------------------------------------------------------------------------------------------


def test_a_log_truncated_past_the_reader_is_read_from_its_start(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.kafka.produce(bench.topic, [(f"k{n}", "v" * 100) for n in range(20_000)], partition=0)
    monkeypatch.setattr(log_reader, "_MOST_PER_POLL", 100)
    monkeypatch.setattr("penstock.runtime.changelog.restore._STEP_MS", 0)
    store, restorer = bench.open(), bench.restorer(**SLOW)
    restorer.add(TASK, [(store, bench.changelog())])
    wait_until(lambda: restorer.step(0.1) or restorer.progress()[0].position > 0, what="the first records")
    assert restorer.progress()[0].position < 15_000
    cut(bench.kafka, bench.topic, 15_000)

    def step() -> bool:
        restorer.step(0.1)
        return not restorer.restoring

    with pytest.raises(TaskCorruptedError, match="no longer there"):
        wait_until(step, what="the error")
    store.wipe()
    restorer.add(TASK, [(store, bench.changelog())])
    finish(restorer)
    assert content(store).keys() == {f"k{n}" for n in range(15_000, 20_000)}
    restorer.close()
    store.close()


def test_a_start_that_moves_behind_the_reader_is_nothing_to_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.kafka.produce(bench.topic, [(f"k{n}", "v") for n in range(5_000)], partition=0)
    monkeypatch.setattr(log_reader, "_MOST_PER_POLL", 1_000)
    monkeypatch.setattr("penstock.runtime.changelog.restore._STEP_MS", 0)
    store, restorer = bench.open(), bench.restorer()
    restorer.add(TASK, [(store, bench.changelog())])
    wait_until(lambda: restorer.step(0.1) or restorer.progress()[0].position >= 1_000, what="the first records")
    cut(bench.kafka, bench.topic, 500)
    finish(restorer)
    assert len(content(store)) == 5_000
    restorer.close()
    store.close()


# --- other tasks --------------------------------------------------------------------------------------------------------------------


def restored_later(broker: Kafka, application_id: str, state_dir: Path, partitions: list[int]) -> list[Producer]:
    """Delete the state, and delay the restore of these partitions until the caller aborts the returned transactions."""
    shutil.rmtree(state_dir / application_id)
    return [open_transaction(broker, f"{application_id}-counts-changelog", [("held", bytes(8))], partition=each) for each in partitions]


def test_a_task_that_is_restored_processes_while_another_restores(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path
) -> None:
    source, output = topic("in", partitions=2), topic("out")
    topology = count_topology(source, output)
    broker.produce(source, [("large", "1")], partition=0)
    broker.produce(source, [("small", "1")], partition=1)
    with client(broker, topology, application_id, state_dir) as streams:
        streams.start()
        counts_become(broker, output, {"large": 1, "small": 1})
    (held,) = restored_later(broker, application_id, state_dir, [0])
    broker.produce(source, [("large", "2")], partition=0)
    broker.produce(source, [("small", "2")], partition=1)
    with client(broker, topology, application_id, state_dir) as streams:
        streams.start()
        counts_become(broker, output, {"large": 1, "small": 2})
        states = {str(task.task_id): task.state for thread in streams.metadata_for_local_threads() for task in thread.active_tasks}
        assert states == {"0_0": TaskState.RESTORING, "0_1": TaskState.RUNNING}
        assert streams.state is State.RESTORING
        held.abort_transaction(30)
        counts_become(broker, output, {"large": 2, "small": 2})
        reaches(streams, State.RUNNING)


def test_a_rebalance_in_the_middle_of_a_restore(broker: Kafka, topic: Topic, application_id: str, tmp_path: Path) -> None:
    source, output = topic("in", partitions=4), topic("out", partitions=4)
    topology = count_topology(source, output)
    broker.produce(source, [(f"k{n % 16}", "v") for n in range(160)])
    with client(broker, topology, application_id, tmp_path / "1") as first:
        first.start()
        counts_become(broker, output, {f"k{n}": 10 for n in range(16)})
    held = restored_later(broker, application_id, tmp_path / "1", [0, 1, 2, 3])
    first = client(broker, topology, application_id, tmp_path / "1", **{"client.id": "one"})
    second = client(broker, topology, application_id, tmp_path / "2", **{"client.id": "two"})
    with first, second:
        first.start()
        wait_until(lambda: len(tasks(first)) == 4, what="all tasks at the first")
        second.start()
        wait_until(lambda: len(tasks(first)) == 2 and len(tasks(second)) == 2, what="two tasks each")
        assert first.state is second.state is State.RESTORING
        for producer in held:
            producer.abort_transaction(30)
        reaches(first, State.RUNNING)
        reaches(second, State.RUNNING)
        broker.produce(source, [(f"k{n % 16}", "v") for n in range(160)])
        counts_become(broker, output, {f"k{n}": 20 for n in range(16)})


def test_many_tasks_are_restored_side_by_side(bench: Bench) -> None:
    bench.topic = bench.kafka.create_topic("changelog", partitions=8, config={"cleanup.policy": "compact"})
    sizes = [20_000, 1, 200, 1, 5_000, 10, 1, 3]
    for number, size in enumerate(sizes):
        bench.kafka.produce(bench.topic, [(f"k{n}", str(number)) for n in range(size)], partition=number)
    partitions = [TopicPartition(bench.topic, number) for number in range(8)]
    stores = [open_store(bench.folder, partition) for partition in partitions]
    restorer = bench.restorer()
    for store, partition, size in zip(stores, partitions, sizes, strict=True):
        restorer.add(TaskId(0, partition.partition), [(store, Changelog(partition, NextOffset(size), "id", None))])
    done: list[TaskId] = []

    def stepped() -> bool:
        done.extend(restorer.step(0.1))
        return not restorer.restoring

    wait_until(stepped, what="the end of all restores")
    assert sorted(done) == [TaskId(0, number) for number in range(8)]
    assert [len(content(store)) for store in stores] == sizes
    restorer.close()
    for store in stores:
        store.close()


# --- settings -----------------------------------------------------------------------------------------------------------------------


def test_settings_of_the_restore_consumer_reach_it_and_no_other(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[dict[str, object]] = []

    def spy(properties: dict[str, object], **more: object) -> FollowedConsumer:
        made.append(properties)
        return FollowedConsumer(properties, **more)

    source, output = topic("in"), topic("out")
    broker.produce(source, [("a", "1")])
    with client(broker, count_topology(source, output), application_id, state_dir) as streams:
        streams.start()
        counts_become(broker, output, {"a": 1})
    shutil.rmtree(state_dir / application_id)
    monkeypatch.setattr(clients, "FollowedConsumer", spy)
    settings = {"consumer.fetch.wait.max.ms": 77, "restore.consumer.fetch.wait.max.ms": 33}
    with client(broker, count_topology(source, output), application_id, state_dir, **settings) as streams:
        streams.start()
        reaches(streams, State.RUNNING)
    (restoring,) = (properties for properties in made if properties.get("client.id") == "restore")
    assert restoring["fetch.wait.max.ms"] == 33
