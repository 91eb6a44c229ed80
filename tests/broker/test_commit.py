"""Commits on a real broker: causes of early commits, files that they leave on disk, and the state after a rollback."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from penstock import serdes
from penstock.runtime.changelog.checkpoint import read_checkpoint
from penstock.runtime.commit.at_least_once import AtLeastOnce
from penstock.runtime.commit.exactly_once import ExactlyOnce
from penstock.runtime.coordination.commands import CommandClient
from penstock.runtime.dsl.builder import StreamsBuilder
from penstock.runtime.dsl.options import Consumed, Produced
from penstock.runtime.kafka import transactions
from penstock.runtime.kafka.transactions import CallThread
from penstock.runtime.model.errors import TaskMigratedError, TransactionAbortedError
from penstock.runtime.model.events import EventKind
from penstock.runtime.model.handlers import ErrorHandlerContext, ProcessingExceptionHandler, ProcessingHandlerResponse
from penstock.runtime.model.ids import NextOffset, TopicPartition
from penstock.runtime.model.offsets import OffsetAndMetadata
from penstock.runtime.model.states import State
from penstock.runtime.model.timestamps import ConsumerRecord
from penstock.runtime.snapshots.manifest import read_manifest
from penstock.runtime.snapshots.retention import LEFTOVER_MS
from penstock.runtime.worker import committer
from tests.support import Kafka, wait_until
from tests.support.engine import (
    BAD,
    PAUSE,
    count_topology,
    counts_become,
    events,
    events_of_the_start_are_committed,
    latest,
    paused,
    running,
)

Topic = Callable[..., str]
Offsets = Mapping[TopicPartition, OffsetAndMetadata]


def fail_some_commits(
    monkeypatch: pytest.MonkeyPatch, transport: type[ExactlyOnce] | type[AtLeastOnce], error: Exception, every: int
) -> None:
    """Make every n-th commit that carries offsets fail as if the broker had refused it."""
    real = transport.commit
    seen = {"commits": 0}

    def commit(self: ExactlyOnce, offsets: Offsets, *others: object) -> Mapping[TopicPartition, NextOffset]:
        if offsets:
            seen["commits"] += 1
            if seen["commits"] % every == 0:
                raise error
        return real(self, offsets, *others)  # type: ignore[arg-type]  # both transports have the same method

    monkeypatch.setattr(transport, "commit", commit)


@pytest.mark.parametrize("error", [TransactionAbortedError("ILLEGAL_GENERATION"), TaskMigratedError("fenced")])
@pytest.mark.parametrize("caching", [True, False])
def test_rule_10_after_a_rollback_the_counts_are_right(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, caching: bool
) -> None:
    fail_some_commits(monkeypatch, ExactlyOnce, error, every=3)
    source, output = topic("in", partitions=2), topic("out", partitions=2)
    with running(broker, count_topology(source, output, caching=caching), application_id, state_dir) as streams:
        for _ in range(6):
            broker.produce(source, [(f"k{n % 7}", "v") for n in range(70)])
            time.sleep(0.15)
        counts_become(broker, output, {f"k{n}": 60 for n in range(7)})
        wait_until(lambda: sum(broker.committed_offsets(application_id, source).values()) == 420, what="the last commit")
        assert streams.store("counts").get("k0") == 60
        assert streams.failure is None
        if not caching:
            produced = sum(value for name, value in streams.metrics().items() if name.name == "records-produced-total")
            assert produced == 420, "as with the outputs, those of rolled-back transactions do not count"
            with CommandClient(application_id, broker.connection, "test") as client:
                wait_until(lambda: 420 in [member.written for member in client.members()], 15, "a report of what it has written")
    if not caching:
        assert len(broker.consume(output)) == 420  # each update once: records of rolled-back transactions are not visible


def test_a_call_of_the_client_library_that_never_returns_costs_a_new_incarnation_and_nothing_else(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "HUNG_SECONDS", 1.0)
    hang, over = threading.Event(), threading.Event()
    real = CallThread.call

    def call(self: CallThread, function: Callable[[], object], seconds: float) -> object:
        if hang.is_set():
            hang.clear()
            return real(self, lambda: over.wait(60), seconds)
        return real(self, function, seconds)

    monkeypatch.setattr(CallThread, "call", call)
    source, output = topic("in"), topic("out")
    broker.produce(source, [("a", "v")] * 5)
    with running(broker, count_topology(source, output), application_id, state_dir) as streams:
        counts_become(broker, output, {"a": 5})
        hang.set()
        broker.produce(source, [("a", "v")] * 5)
        counts_become(broker, output, {"a": 10})
        assert not hang.is_set()
        assert streams.failure is None
    over.set()


def test_the_first_results_of_a_task_that_continues_do_not_wait_for_the_interval(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever reads the output has waited since the task's last owner."""
    source, output = topic("in"), topic("out")
    broker.produce(source, [("a", "v")])
    with running(broker, count_topology(source, output), application_id, state_dir):
        counts_become(broker, output, {"a": 1})
    broker.produce(source, [("a", "v")])
    monkeypatch.setattr(committer, "EVENTS_WAIT_MS", 3_600_000)  # the events of the start would commit the records too
    settings: dict[str, object] = {"commit.interval.ms": 600_000}
    with running(broker, count_topology(source, output), application_id, state_dir, **settings):
        counts_become(broker, output, {"a": 2}, 20)


def test_uncommitted_bytes_bring_a_commit_forward(broker: Kafka, topic: Topic, application_id: str, state_dir: Path) -> None:
    source, output = topic("in"), topic("out")
    settings: dict[str, object] = {"commit.interval.ms": 60_000, "statestore.uncommitted.max.bytes": 2_000}
    with running(broker, count_topology(source, output), application_id, state_dir, **settings):
        events_of_the_start_are_committed(broker, application_id)
        broker.produce(source, [("a", "v")])
        time.sleep(0.5)
        assert latest(broker, output) == {}
        broker.produce(source, [(f"k{n}", "v") for n in range(200)])
        wait_until(lambda: len(latest(broker, output)) == 201, 10, "the commit")


def test_kip_116_a_checkpoint_is_written_when_its_interval_has_passed(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path
) -> None:
    source, output = topic("in"), topic("out")
    with running(broker, count_topology(source, output), application_id, state_dir, **{"statestore.checkpoint.interval.ms": 0}):
        broker.produce(source, [("a", "v")])
        changelog = TopicPartition(f"{application_id}-counts-changelog", 0)
        task = state_dir / application_id / "0_0"
        wait_until(lambda: (read_checkpoint(task).get(changelog) or 0) > 0, what="the checkpoint")
        [reported, *_] = wait_until(
            lambda: [event for event in events(broker, application_id) if event.kind is EventKind.CHECKPOINT], what="the event"
        )
        assert reported.task == "0_0"


def test_a_snapshot_is_taken_by_command(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It includes paused tasks. On an almost full disk, only the snapshot fails."""
    source, output = topic("in", partitions=2), topic("out")
    broker.produce(source, [(f"k{n}", "v") for n in range(20)])
    with (
        running(
            broker,
            count_topology(source, output),
            application_id,
            state_dir,
            **{"client.id": "one", "deserialization.exception.handler": PAUSE},
        ) as streams,
        CommandClient(application_id, broker.connection, "test") as client,
    ):
        wait_until(lambda: len(latest(broker, output)) == 20, what="the counts")
        broker.produce(source, [("bad", BAD)], partition=0)
        wait_until(lambda: paused(streams) == {"0_0"}, what="the pause")
        with monkeypatch.context() as patched:
            patched.setattr("penstock.runtime.worker.commands.LEAST_FREE_BYTES", 1 << 60)
            result = client.send("snapshot", instance="one", args={"snapshot_id": "full"})
        assert not result.ok and "MiB are free" in result.reason
        assert not (state_dir / application_id / "snapshots" / "full").exists()
        result = client.send("snapshot", instance="one", args={"snapshot_id": "first"})
        assert result.ok, result.reason
        assert result.data["tasks"] == result.data["expected"] == ["0_0", "0_1"]
        folder = Path(str(result.data["directory"]))
        manifests = [read_manifest(folder / task) for task in ("0_0", "0_1")]
        assert sum(at.next_offset for manifest in manifests for at in manifest.input_offsets) == 20
        assert {store.name for manifest in manifests for store in manifest.stores} == {"counts"}
        assert {manifest.instance for manifest in manifests} == {"one"}
        result = client.send("snapshot", instance="one", args={"snapshot_id": "of one", "tasks": ["0_1"]})
        assert result.data["tasks"] == ["0_1"]
        assert client.send("snapshot", instance="one", args={"snapshot_id": "second"}).ok
        long_ago = time.time() - LEFTOVER_MS / 1000 - 60
        os.utime(folder, (long_ago, long_ago))  # not reported as complete until now
        result = client.send(
            "keep-snapshots", instance="one", args={"complete": ["first", "second", "other"], "keep": 2, "unwanted": ["of one"]}
        )
        assert result.ok and sorted(path.name for path in folder.parent.iterdir()) == ["first", "second"]
        broker.produce(source, [("more", "v")], partition=1)
        wait_until(lambda: latest(broker, output).get("more") == 1, what="the processing, which continues")


class PauseAlways(ProcessingExceptionHandler):
    """Answers PAUSE for every record for which the user's code fails."""

    def handle(self, context: ErrorHandlerContext, record: ConsumerRecord, exception: Exception) -> ProcessingHandlerResponse:
        return ProcessingHandlerResponse.PAUSE


def test_rule_18_under_at_least_once_a_failed_records_outputs_are_not_sent(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path
) -> None:
    source, output = topic("in"), topic("out")
    builder = StreamsBuilder()
    stream = builder.stream(source, Consumed(serdes.STRING, value=serdes.STRING))
    stream.to(output, Produced(serdes.STRING, value=serdes.STRING))
    stream.foreach(lambda key, value: 1 // (value != "poison"))
    broker.produce(source, [("a", "1"), ("a", "poison"), ("a", "2")])
    settings: dict[str, object] = {"processing.guarantee": "at_least_once", "processing.exception.handler": PauseAlways}
    with running(broker, builder.build(), application_id, state_dir, **settings) as streams:
        wait_until(lambda: paused(streams) == {"0_0"}, what="the pause")
        assert broker.committed_offsets(application_id, source) == {0: 1}
        assert streams.state is State.RUNNING
    values = {record.value for record in broker.consume(output, committed=False)}
    assert values == {b"1"}
