"""Stores with headers on a real broker: an application that begins to keep them, and its state from the changelog alone."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

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
from penstock.runtime.topology.topology import Topology
from penstock.runtime.worker.queries import StoreQueryParameters
from tests.support import Kafka, wait_until
from tests.support.engine import running

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
