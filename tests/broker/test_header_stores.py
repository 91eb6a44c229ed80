"""Stores with headers on a real broker: an application that begins to keep them, and its state from the changelog alone."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from penstock import (
    Consumed,
    KeyValueStore,
    Materialized,
    Processor,
    ProcessorContext,
    QueryableStoreTypes,
    Record,
    Stores,
    StreamsBuilder,
    ValueAndTimestamp,
    ValueTimestampHeaders,
    serdes,
)
from penstock.runtime.client.kafka_streams import KafkaStreams
from penstock.runtime.model.states import State
from penstock.runtime.topology.topology import Topology
from penstock.runtime.worker.queries import StoreQueryParameters
from tests.support import Kafka, wait_until
from tests.support.engine import client, running

S = serdes.STRING
STRINGS = Consumed(S, value=S)
WITH_HEADERS = QueryableStoreTypes.timestamped_key_value_store_with_headers()


class Keeps(Processor[str, str, None, None]):
    """Puts each record into its store, as that keeps it."""

    def __init__(self, headers: bool) -> None:
        self.headers = headers

    def init(self, context: ProcessorContext[None, None]) -> None:
        self.rows: KeyValueStore[str, object] = context.get_state_store("kept")

    def process(self, record: Record[str, str]) -> None:
        value, at = record.value, record.timestamp
        self.rows.put(record.key, ValueTimestampHeaders(value, at, record.headers) if self.headers else ValueAndTimestamp(value, at))


def topology(source: str, rows: str, *, headers: bool) -> Topology:
    builder = StreamsBuilder()
    of = Stores.timestamped_key_value_store_with_headers_builder if headers else Stores.timestamped_key_value_store_builder
    builder.add_state_store(of(Stores.persistent_key_value_store("kept"), S, S))
    builder.stream(source, STRINGS).process(lambda: Keeps(headers), "kept")
    builder.stream(source, STRINGS).group_by_key().count(Materialized("counts"))
    builder.global_table(rows, STRINGS, Materialized("rows"))
    return builder.build()


def of_workers() -> Topology:
    """Return the topology that keeps headers; worker processes build it by this function's name."""
    return topology(os.environ["TEST_SOURCE"], os.environ["TEST_ROWS"], headers=True)


def content(streams: KafkaStreams, store: str) -> Mapping[object, object]:
    return dict(streams.store(StoreQueryParameters.from_name_and_type(store, WITH_HEADERS)).all())


def test_an_application_begins_to_keep_headers_and_has_them_from_its_changelog_alone(
    broker: Kafka, topic: Callable[..., str], application_id: str, tmp_path: Path
) -> None:
    source, rows = topic("source"), topic("rows", config={"cleanup.policy": "compact"})
    broker.produce(source, [("a", "1"), ("b", "1")], timestamps=[1, 2], headers=[("trace", b"old")])
    broker.produce(rows, [("r", "row")], timestamps=[7], headers=[("of", b"topic")])
    fast, headers = {"commit.interval.ms": 100}, {"commit.interval.ms": 100, "dsl.store.format": "headers"}
    with running(broker, topology(source, rows, headers=False), application_id, tmp_path, **fast) as streams:
        wait_until(lambda: dict(streams.store("kept").all()) == {"a": "1", "b": "1"}, 60, "both records")
    trace = [("trace", b"new"), ("trace", b"")]
    wanted = {
        "kept": {"a": ValueTimestampHeaders("1", 1, []), "b": ValueTimestampHeaders("2", 9, trace)},
        "counts": {"a": ValueTimestampHeaders(1, 1, []), "b": ValueTimestampHeaders(2, 9, [])},
        "rows": {"r": ValueTimestampHeaders("row", 7, [("of", b"topic")])},
    }
    with running(broker, topology(source, rows, headers=True), application_id, tmp_path, **headers) as streams:
        broker.produce(source, [("b", "2")], timestamps=[9], headers=[*trace])
        wait_until(lambda: {store: content(streams, store) for store in wanted} == wanted, 60, "the record with its headers")
        assert dict(streams.store("kept").all()) == {"a": "1", "b": "2"}
    logged = {record.key: (record.value, [*record.headers]) for record in broker.consume(f"{application_id}-kept-changelog")}
    assert logged == {b"a": (b"1", []), b"b": (b"2", trace)}
    shutil.rmtree(tmp_path)
    with running(broker, topology(source, rows, headers=True), application_id, tmp_path, **headers) as streams:
        assert {store: content(streams, store) for store in wanted} == wanted


def test_queries_over_two_worker_processes_give_the_headers(
    broker: Kafka, topic: Callable[..., str], application_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, rows = topic("source", partitions=2), topic("rows", config={"cleanup.policy": "compact"})
    monkeypatch.setenv("TEST_SOURCE", source)
    monkeypatch.setenv("TEST_ROWS", rows)
    trace = [("trace", b"\xff"), ("trace", b"")]
    for partition in (0, 1):
        broker.produce(source, [(f"k{partition}", "v")], partition=partition, timestamps=[5], headers=[*trace])
    broker.produce(rows, [("r", "row")], timestamps=[7], headers=[("of", b"topic")])
    settings = {"num.stream.threads": 2, "commit.interval.ms": 100, "dsl.store.format": "headers"}
    wanted = {
        "kept": {key: ValueTimestampHeaders("v", 5, trace) for key in ("k0", "k1")},
        "rows": {"r": ValueTimestampHeaders("row", 7, [("of", b"topic")])},
    }

    def has_a_task_each(streams: KafkaStreams) -> bool:
        threads = streams.metadata_for_local_threads() if streams.state is State.RUNNING else set()
        return len(threads) == 2 and all(thread.active_tasks for thread in threads)

    def read(streams: KafkaStreams) -> dict[str, Mapping[object, object]]:
        return {store: content(streams, store) for store in wanted} if streams.state is State.RUNNING else {}

    with client(broker, "tests.broker.test_header_stores:of_workers", application_id, tmp_path, **settings) as streams:
        streams.start()
        wait_until(
            lambda: len({thread.thread_name for thread in streams.metadata_for_local_threads() if thread.active_tasks}) == 2,
            60,
            "tasks on both",
        )
        wait_until(lambda: read(streams) == wanted, 60, "the headers of both workers' rows")
