"""Transactions that really fail: fenced, timed out in a suspended process, refused repeatedly, interrupted by the end of a broker."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ClientPartition

from penstock.orchestration.embedded.kafka import EmbeddedBroker
from penstock.runtime.commit.exactly_once import ExactlyOnce
from penstock.runtime.coordination.records import Member
from penstock.runtime.model.errors import StreamsConfigError, TransactionAbortedError
from penstock.runtime.model.ids import NextOffset, TopicPartition
from penstock.runtime.model.offsets import OffsetAndMetadata
from penstock.runtime.model.states import State
from tests.support import Kafka, wait_until
from tests.support.engine import client, count_topology, counts_become, running, worker_of
from tests.support.instances import application, coordination_log

Topic = Callable[..., str]


def incarnations(broker: Kafka, application_id: str) -> dict[int, str]:
    """Return the transactional id of each incarnation that was ever announced."""
    members = [record for _, record in coordination_log(broker, application_id) if isinstance(record, Member)]
    return {member.incarnation: member.transactional_id for member in members}


def is_open(broker: Kafka, topic: str) -> bool:
    """Return True while an open transaction blocks consumers of committed records: then the last stable offset is not the end."""
    ends = []
    for level in ("read_committed", "read_uncommitted"):
        settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "looks-only", "isolation.level": level}
        with closing(Consumer(settings)) as consumer:
            ends.append(consumer.get_watermark_offsets(ClientPartition(topic, 0), timeout=10)[1])
    return ends[0] < ends[1]


def produce_until_open(broker: Kafka, source: str, output: str) -> int:
    """Write a record now and then until the output has uncommitted records. Return the number of records."""
    written = 0
    deadline = time.monotonic() + 30
    while not is_open(broker, output):
        assert time.monotonic() < deadline, "no transaction was seen open"
        broker.produce(source, [("a", "v")])
        written += 1
    return written


@pytest.mark.parametrize("transaction", ["open", "none"])
def test_a_worker_whose_transactional_id_is_taken_restarts_and_counts_nothing_twice(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, transaction: str
) -> None:
    source, output = topic("in"), topic("out")
    settings = {"commit.interval.ms": 2_000, "transaction.timeout.ms": 30_000}
    broker.produce(source, [("a", "v")] * 10)
    with running(broker, count_topology(source, output, caching=False), application_id, state_dir, **settings) as streams:
        counts_become(broker, output, {"a": 10})
        records = 10
        [(incarnation, transactional_id)] = incarnations(broker, application_id).items()
        if transaction == "open":
            records += produce_until_open(broker, source, output)
        other = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": transactional_id})
        other.init_transactions(30)
        broker.produce(source, [("a", "v")] * 10)
        counts_become(broker, output, {"a": records + 10})
        assert streams.failure is None
        assert set(incarnations(broker, application_id)) - {incarnation}, "it continued under the name that was taken from it"
    values = [int.from_bytes(record.value or b"", "big") for record in broker.consume(output)]
    assert values == list(range(1, len(values) + 1))


def test_a_frozen_worker_whose_transaction_timed_out_restarts_and_counts_nothing_twice(
    broker: Kafka, application_id: str, tmp_path: Path
) -> None:
    settings: dict[str, object] = {"session.timeout.ms": 60_000, "commit.interval.ms": 2_000, "transaction.timeout.ms": 3_000}
    with application(broker, application_id, tmp_path, partitions=1, **settings) as app:
        app.start("one")
        app.produce(200)
        app.each_update_came_once(200)
        records = 200
        while True:
            records += produce_until_open(broker, app.source, app.output)
            app.freeze("one")
            if is_open(broker, app.output):
                break
            app.thaw("one")
        # The broker checks for expired transactions every ten seconds.
        wait_until(lambda: not is_open(broker, app.output), 40, "the end of the transaction")
        app.thaw("one")
        counts_become(broker, app.output, {f"k{n}": 10 for n in range(20)} | {"a": records - 200})
        assert len(broker.consume(app.output)) == records
        assert "fenced, or its transaction timed out" in app.log("one")


def test_commits_that_fail_again_and_again_are_counted_so_that_the_pauses_grow(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[object] = []
    refusing = [True]
    real = ExactlyOnce.commit

    def commit(
        self: ExactlyOnce, offsets: Mapping[TopicPartition, OffsetAndMetadata], *others: object
    ) -> Mapping[TopicPartition, NextOffset]:
        if refusing[0] and offsets:
            attempts.append(offsets)
            raise TransactionAbortedError("refused")
        return real(self, offsets, *others)  # type: ignore[arg-type]  # passed on unchanged

    monkeypatch.setattr(ExactlyOnce, "commit", commit)
    source, output = topic("in"), topic("out")
    broker.produce(source, [("a", "v")] * 5)
    with running(broker, count_topology(source, output, caching=False), application_id, state_dir) as streams:
        wait_until(lambda: len(attempts) >= 6, what="six attempts")
        assert worker_of(streams)._failures >= 5  # iterations and commits of events in between do not reset the count
        refusing[0] = False
        counts_become(broker, output, {"a": 5})
        assert streams.failure is None
    assert len(broker.consume(output)) == 5


def test_a_broker_that_is_killed_in_the_middle_of_a_transaction_and_comes_back(
    own_broker: EmbeddedBroker, application_id: str, state_dir: Path
) -> None:
    broker = Kafka(own_broker.bootstrap_servers)
    source, output = broker.create_topic("in"), broker.create_topic("out")
    settings = {"commit.interval.ms": 2_000, "transaction.timeout.ms": 30_000}
    broker.produce(source, [("a", "v")] * 10)
    with running(broker, count_topology(source, output, caching=False), application_id, state_dir, **settings) as streams:
        counts_become(broker, output, {"a": 10})
        records = 10 + produce_until_open(broker, source, output)
        status = own_broker.status()
        assert status is not None
        os.kill(status.pid, signal.SIGKILL)
        wait_until(lambda: own_broker.status() is None, what="the end of the broker")
        own_broker.start()
        broker.produce(source, [("a", "v")] * 10)
        counts_become(broker, output, {"a": records + 10}, seconds=90)
        assert streams.failure is None
    values = [int.from_bytes(record.value or b"", "big") for record in broker.consume(output)]
    assert values == list(range(1, records + 11))


def test_transactions_that_are_longer_than_the_brokers_allow_end_the_client_with_the_settings_to_change(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path
) -> None:
    settings: dict[str, object] = {"commit.interval.ms": 3_600_000}
    with client(broker, count_topology(topic("in"), topic("out")), application_id, state_dir, **settings) as streams:
        streams.start()
        wait_until(lambda: streams.state is State.ERROR, what="the end")
        assert isinstance(streams.failure, StreamsConfigError)
        assert "max.transaction.timeout.ms" in str(streams.failure)
