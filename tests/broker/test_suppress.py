"""`suppress` on a real broker: buffered records are on its changelog in Kafka Streams' format, and are emitted after a restart
elsewhere."""

from __future__ import annotations

import time
from pathlib import Path

from penstock import Consumed, EmitStrategy, Materialized, Produced, StreamsBuilder, Suppressed, TimeWindows, Topology, serdes
from penstock.runtime.stores.buffer import BufferValue
from tests.support import Kafka, unique, wait_until
from tests.support.engine import running

NOON = time.time_ns() // 60_000_000_000 * 60_000 - 600_000
"""A full minute, ten minutes ago: brokers delete much older records."""


def waiting(source: str, output: str) -> Topology:
    builder = StreamsBuilder()
    table = builder.table(source, Consumed(serdes.STRING, value=serdes.STRING), Materialized("rows"))
    limit = Suppressed.until_time_limit(60_000, Suppressed.BufferConfig.unbounded())
    table.suppress(limit.with_name("few")).to_stream().to(output, Produced(serdes.STRING, value=serdes.STRING))
    return builder.build()


def on_close(source: str, output: str) -> Topology:
    builder = StreamsBuilder()
    grouped = builder.stream(source, Consumed(serdes.STRING, value=serdes.STRING)).group_by_key()
    windowed = grouped.windowed_by(TimeWindows.of_size_with_no_grace(60_000)).emit_strategy(EmitStrategy.on_window_close())
    windowed.count(Materialized("minutes")).to_stream(lambda key, _: key.key).to(output, Produced(serdes.STRING, value=serdes.LONG))
    return builder.build()


def test_what_waits_is_restored_from_its_changelog(broker: Kafka, tmp_path: Path) -> None:
    source, output, application = broker.create_topic("rows"), broker.create_topic("out"), unique("suppress")
    broker.produce(source, [(b"a", b"1"), (b"a", b"2")], timestamps=[NOON, NOON + 1])
    with running(broker, waiting(source, output), application, tmp_path / "one"):
        changelog = f"{application}-few-store-changelog"
        wait_until(lambda: changelog in broker.topics() and bool(broker.consume(changelog)), 30, "what waits on the changelog")
        last = broker.consume(changelog)[-1]
    assert last.value is not None and last.headers == (("v", b"\x03"),)
    value = BufferValue.from_bytes(last.value)
    assert (value.new, value.timestamp, value.time, value.origin.topic) == (b"2", NOON + 1, NOON + 1, source)  # the cache combines them
    assert broker.consume(output) == []
    broker.produce(source, [(b"b", b"1")], timestamps=[NOON + 60_001])
    with running(broker, waiting(source, output), application, tmp_path / "two"):
        wait_until(lambda: bool(broker.consume(output)), 30, "what had waited")
    assert [(record.key, record.value) for record in broker.consume(output)] == [(b"a", b"2")]


def test_a_result_on_close_is_not_emitted_again_from_a_restored_store(broker: Kafka, tmp_path: Path) -> None:
    source, output, application = broker.create_topic("clicks"), broker.create_topic("out"), unique("close")
    broker.produce(source, [(b"a", b"x"), (b"b", b"x")], timestamps=[NOON, NOON + 60_000])
    with running(broker, on_close(source, output), application, tmp_path / "one"):
        wait_until(lambda: len(broker.consume(output)) == 1, 30, "the first minute")
    broker.produce(source, [(b"c", b"x")], timestamps=[NOON + 120_000])
    with running(broker, on_close(source, output), application, tmp_path / "two"):
        wait_until(lambda: len(broker.consume(output)) > 1, 30, "the second minute")
    assert [record.key for record in broker.consume(output)] == [b"a", b"b"]
