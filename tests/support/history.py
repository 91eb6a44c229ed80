"""Topologies of several families, random records for them, and what the test driver makes of these: the stream that history is held
against.

The driver takes one record at a time, so the records of several topics are given to it in the engine's order, which is computed here in
another way than in the engine: by the largest timestamp so far in the partition, the topic's place and the offset.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

from penstock import (
    Consumed,
    Grouped,
    JoinWindows,
    KeyValueStore,
    KStream,
    KTable,
    Materialized,
    Processor,
    ProcessorContext,
    Produced,
    PunctuationType,
    Record,
    Repartitioned,
    SessionWindows,
    SlidingWindows,
    Stores,
    StreamsBuilder,
    StreamsConfig,
    Suppressed,
    TimeWindows,
    Topology,
    serdes,
)
from penstock.runtime.input.columns import RawColumns
from penstock.runtime.model.handlers import (
    LogAndContinueExceptionHandler,
    LogAndContinueProcessingExceptionHandler,
    LogAndPauseExceptionHandler,
    LogAndPauseProcessingExceptionHandler,
)
from penstock.runtime.model.record import Headers
from penstock.testing import TopologyTestDriver
from tests.support import wait_until
from tests.support.seeds import entries

APPLICATION = "history"
CONFIG: Mapping[str, object] = {
    "application.id": APPLICATION,
    "bootstrap.servers": "nowhere:9092",
    "default.key.serde": serdes.STRING,
    "default.value.serde": serdes.STRING,
    "statestore.cache.max.bytes": 0,
}
LONGS = Produced(serdes.STRING, value=serdes.LONG)
SECONDS = timedelta(seconds=1)
FIRST_MS = 1_790_000_000_000


@dataclass(frozen=True)
class Family:
    """`build`: also the factory that executors import, by its module and name."""

    build: Callable[[], Topology]
    topics: tuple[str, ...] = ("in",)
    global_topics: tuple[str, ...] = ()
    null_keys: bool = False
    one_partition: bool = False
    """Records go from one partition to another, and the test driver has only one."""
    config: Mapping[str, object] = field(default_factory=lambda: CONFIG)

    @property
    def factory(self) -> str:
        return f"{self.build.__module__}:{self.build.__name__}"

    def __str__(self) -> str:
        return self.build.__name__


@dataclass(frozen=True)
class Sent:
    """A record on a topic; its offset is its place in the list."""

    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Headers | None = None


@dataclass
class Made:
    """Results of the records: outputs by topic, in order, and entries of the stores by store and column family."""

    outputs: dict[str, list[Sent]] = field(default_factory=dict)
    stores: dict[str, dict[str, dict[bytes, bytes]]] = field(default_factory=dict)


def records(random: Random, count: int, *, null_keys: bool) -> list[Sent]:
    """Return random records: out of order, late, at equal times, with tombstones."""
    latest, found = FIRST_MS, list[Sent]()
    for _ in range(count):
        latest += random.choice((0, 0, 200, 900, 2_500))
        at = latest - random.choice((0, 0, 0, 400, 3_000, 15_000))
        key = None if null_keys and random.random() < 0.1 else random.choice((b"a", b"b", b"c", b"d"))
        value = None if random.random() < 0.15 else b"%d" % random.randrange(6)
        found.append(Sent(key, value, at, [("h", b"1")] if random.random() < 0.2 else None))
    return found


def in_order(inputs: Mapping[str, Sequence[Sent]]) -> Iterator[tuple[str, Sent]]:
    """Yield the records of one task in the engine's order."""
    rows = []
    for place, topic in enumerate(sorted(inputs)):
        latest = -1
        for offset, record in enumerate(inputs[topic]):
            latest = max(latest, record.timestamp)
            rows.append((latest, place, offset, topic, record))
    for *_, topic, record in sorted(rows, key=lambda row: row[:3]):
        yield topic, record


def by_driver(family: Family, inputs: Mapping[str, Sequence[Sent]], folder: Path) -> Made:
    """Run the records of one partition through the test driver."""
    made = Made()
    with TopologyTestDriver(family.build(), family.config, FIRST_MS) as driver:
        for topic in family.global_topics:
            for record in inputs[topic]:
                driver._pipe(topic, record.key, record.value, record.timestamp, record.headers or [])
        for topic, record in in_order({topic: inputs[topic] for topic in family.topics}):
            driver._pipe(topic, record.key, record.value, record.timestamp, record.headers or [])
        for topic in driver.produced_topic_names():
            if not topic.startswith(f"{family.config['application.id']}-"):
                found = driver._log.unread(topic)
                made.outputs[topic] = [Sent(each.raw_key, each.raw_value, each.time_ms, each.record_headers) for each in found]
        for task in driver._tasks:
            for name, store in task.stores.items():
                store.checkpoint(folder / name)
                made.stores[name] = entries(folder / name)
    return made


def comparable(stores: Mapping[str, dict[str, dict[bytes, bytes]]], partition: int) -> dict[str, dict[str, dict[bytes, bytes]]]:
    """Return stores without the values of suppressions' buffers, unless of partition 0: they hold the record's partition, and the driver
    has only that one."""
    return {
        name: {family: dict.fromkeys(rows, b"") for family, rows in families.items()} if partition and "SUPPRESS" in name else families
        for name, families in stores.items()
    }


def columns(topic: str, partition: int, sent: Sequence[Sent]) -> RawColumns:
    """Return records as columns."""
    return RawColumns(
        topic,
        partition,
        range(len(sent)),
        [each.key for each in sent],
        [each.value for each in sent],
        [each.timestamp for each in sent],
        [each.headers for each in sent],
    )


# --- topologies ----------------------------------------------------------------------------------------------------------------------


def _built(builder: StreamsBuilder) -> Topology:
    return builder.build(StreamsConfig(CONFIG))


def stateless() -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream("in")
    stream.filter(lambda key, value: value != "3").map_values(lambda value: None if value is None else value * 2).to("doubled")
    stream.flat_map_values(lambda value: [] if value is None else ["x", value]).to("flat")
    return _built(builder)


@dataclass(frozen=True)
class Delay:
    """A value with a declared type."""

    delay: float
    carrier: str | None = None


def typed() -> Topology:
    """Copy records whose values have a declared type."""
    builder = StreamsBuilder()
    builder.stream("in", key=serdes.STRING, value=serdes.json(Delay)).to("out", value=serdes.json(Delay))
    return _built(builder)


def counts() -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream("in")
    stream.group_by_key().count(Materialized("counts", key=serdes.STRING, value=serdes.LONG)).to_stream().to("counted", LONGS)
    versions = Materialized(Stores.persistent_versioned_key_value_store("versions", 20 * SECONDS), key=serdes.STRING, value=serdes.STRING)
    stream.filter(lambda key, value: key is not None).to_table(versions)
    return _built(builder)


def windows() -> Topology:
    builder = StreamsBuilder()
    grouped = builder.stream("in").group_by_key()
    tumbling = TimeWindows.of_size_and_grace(5 * SECONDS, 4 * SECONDS)
    final = grouped.windowed_by(tumbling).count(Materialized("closed", key=serdes.STRING, value=serdes.LONG, retention=60 * SECONDS))
    final.suppress(Suppressed.until_window_closes(Suppressed.BufferConfig.unbounded())).to_stream(lambda key, value: key.key).to(
        "finals", LONGS
    )
    sliding = SlidingWindows.of_time_difference_and_grace(3 * SECONDS, 5 * SECONDS)
    grouped.windowed_by(sliding).count(Materialized("sliding", key=serdes.STRING, value=serdes.LONG, retention=60 * SECONDS))
    return _built(builder)


def sessions() -> Topology:
    builder = StreamsBuilder()
    gap = SessionWindows.of_inactivity_gap_and_grace(2 * SECONDS, 5 * SECONDS)
    counted = builder.stream("in").group_by_key().windowed_by(gap).count(Materialized("visits", key=serdes.STRING, value=serdes.LONG))
    counted.to_stream(lambda key, value: key.key).to("visited", LONGS)
    return _built(builder)


def joins() -> Topology:
    builder = StreamsBuilder()
    left: KTable = builder.table("left", Materialized("lefts", key=serdes.STRING, value=serdes.STRING))
    right: KTable = builder.table("right", Materialized("rights", key=serdes.STRING, value=serdes.STRING))
    left.outer_join(right, lambda one, other: f"{one}|{other}").to_stream().to("tables")
    stream = builder.stream("in")
    stream.left_join(left, lambda one, other: f"{one}&{other}").to("enriched")
    everyone = builder.global_table("everyone", Materialized("everyones", key=serdes.STRING, value=serdes.STRING))
    stream.left_join(everyone, lambda key, value: key, lambda one, other: f"{one}@{other}").to("located")
    return _built(builder)


def stream_joins() -> Topology:
    builder = StreamsBuilder()
    window = JoinWindows.of_time_difference_and_grace(3 * SECONDS, 6 * SECONDS)
    builder.stream("left").outer_join(builder.stream("right"), lambda one, other: f"{one}|{other}", window).to("joined")
    return _built(builder)


def repartitions() -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream("in", Consumed(serdes.STRING, value=serdes.STRING))
    by_value = stream.filter(lambda key, value: value is not None).group_by(lambda key, value: f"of {value}", Grouped(name="by-value"))
    by_value.count(Materialized("per-value", key=serdes.STRING, value=serdes.LONG)).to_stream().to("values", LONGS)
    stream.group_by_key().count(Materialized("per-key", key=serdes.STRING, value=serdes.LONG))
    return _built(builder)


def foreign_keys() -> Topology:
    """A foreign-key join, whose results are counted behind a repartition topic."""
    return _foreign_keys(_letter)


def _letter(value: str) -> str:
    return "abcdef"[int(value)]


def interrupted_foreign_keys() -> Topology:
    """The topology of `foreign_keys`; on an executor of `WAITS_IN`, a task waits at its 50th record until it may go on."""
    calls = 0

    def waiting(value: str) -> str:
        nonlocal calls
        calls += 1
        if calls == 50 and (folder := os.environ.get(WAITS_IN)):
            waits = Path(folder, f".{os.getpid()}")
            waits.write_text(str(os.getpid()))
            waits.replace(waits.with_name("waits"))  # complete for any reader
            wait_until(Path(folder, "goes-on").exists, 120, "leave to go on")
        return _letter(value)

    return _foreign_keys(waiting)


WAITS_IN = "PENSTOCK_TEST_WAITS_IN"
"""Variable with the folder of the files `waits`, with the id of the process, and `goes-on`."""


def _foreign_keys(foreign_key: Callable[[str], str]) -> Topology:
    builder = StreamsBuilder()
    strings = Consumed(serdes.STRING, value=serdes.STRING)
    left, right = builder.table("left", strings), builder.table("right", strings)
    joined = left.left_join(right, foreign_key, lambda one, other: f"{one}|{other}")
    joined.to_stream().to("joined")
    by_value = Grouped(serdes.STRING, value=serdes.STRING, name="by-value")
    kept = joined.to_stream().filter(lambda key, value: value is not None)
    counted = kept.group_by(lambda key, value: value, by_value).count(Materialized("per-pair", key=serdes.STRING, value=serdes.LONG))
    counted.to_stream().to("pairs", LONGS)
    return _built(builder)


def board() -> Topology:
    """Return counts of a topic by key, window and value, the last with a repartition topic; totals, and final results of windows, are
    written. Needs no default serdes."""
    topic = os.environ.get("PENSTOCK_TEST_HISTORY", "history-in")
    builder = StreamsBuilder()
    stream = builder.stream(topic, Consumed(serdes.STRING, value=serdes.STRING))
    grouped = stream.group_by_key(Grouped(serdes.STRING, value=serdes.STRING))
    grouped.count(Materialized("totals", key=serdes.STRING, value=serdes.LONG)).to_stream().to(f"{topic}-totals", LONGS)
    windowed = grouped.windowed_by(TimeWindows.of_size_and_grace(5 * SECONDS, 20 * SECONDS))
    final = windowed.count(Materialized("windows", key=serdes.STRING, value=serdes.LONG))
    closed = final.suppress(Suppressed.until_window_closes(Suppressed.BufferConfig.unbounded()))
    closed.to_stream(lambda key, value: key.key).to(f"{topic}-finals", LONGS)
    by_value = Grouped(serdes.STRING, value=serdes.STRING, name="by-value")
    values = stream.filter(lambda key, value: value is not None).group_by(lambda key, value: value, by_value)
    values.count(Materialized("per-value", key=serdes.STRING, value=serdes.LONG))
    return builder.build()


PAUSING: Mapping[str, object] = {
    **CONFIG,
    "deserialization.exception.handler": LogAndPauseExceptionHandler,
    "processing.exception.handler": LogAndPauseProcessingExceptionHandler,
}
"""Every record that cannot be read or processed pauses its task."""


def divided() -> Topology:
    """Return a count, with an output before a division that may fail. PENSTOCK_TEST_PREFIX: of the topics' names."""
    builder, prefix = StreamsBuilder(), os.environ.get("PENSTOCK_TEST_PREFIX", "")
    numbers = builder.stream(f"{prefix}in", Consumed(serdes.STRING, value=serdes.LONG))
    grouped = numbers.group_by_key(Grouped(serdes.STRING, value=serdes.LONG))
    grouped.count(Materialized("counts", key=serdes.STRING, value=serdes.LONG)).to_stream().to(f"{prefix}before", LONGS)
    numbers.map_values(lambda value: 12 // value).to(f"{prefix}out", LONGS)
    return _built(builder)


class Ticking(Processor[str, str | None, str, str]):
    """Sums what it gets, and writes the sums at every fourth second of stream time."""

    def init(self, context: ProcessorContext[str, str]) -> None:
        self._context = context
        self._store: KeyValueStore[str, int] = context.get_state_store("sums")
        context.schedule(4 * SECONDS, PunctuationType.STREAM_TIME, self._tick)

    def process(self, record: Record[str, str | None]) -> None:
        if record.value is not None:
            self._store.put(record.key, (self._store.get(record.key) or 0) + int(record.value))

    def _tick(self, timestamp: int) -> None:
        for key, total in list(self._store.all()):
            self._context.forward(Record(key, str(total), timestamp))


def processors() -> Topology:
    builder = StreamsBuilder()
    builder.add_state_store(Stores.key_value_store_builder(Stores.persistent_key_value_store("sums"), serdes.STRING, serdes.LONG))
    builder.stream("in").process(Ticking, "sums").to("sums")
    return _built(builder)


DEAD = "dead"
SKIPPING: Mapping[str, object] = {
    **CONFIG,
    "deserialization.exception.handler": LogAndContinueExceptionHandler,
    "processing.exception.handler": LogAndContinueProcessingExceptionHandler,
    "errors.dead.letter.queue.topic.name": DEAD,
}
"""Every record that cannot be read or processed is skipped, and is a dead letter."""


class Marked(Processor[Any, Any, Any, Any]):
    """Adds to the headers where the record came from, and how many headers it had."""

    def init(self, context: ProcessorContext[Any, Any]) -> None:
        self._context = context

    def process(self, record: Record[Any, Any]) -> None:
        metadata = self._context.record_metadata
        assert metadata is not None
        record.headers.append(("from", f"{metadata.topic} {len(record.headers)}".encode()))
        self._context.forward(record)


def dead_letters() -> Topology:
    """Three sub-topologies behind each other that add headers. Each cannot read or process some records."""
    builder = StreamsBuilder()
    longs = Repartitioned("by-half", key=serdes.STRING, value=serdes.LONG)
    numbers = builder.stream("in").process(Marked).map_values(lambda value: 12 // int(value)).select_key(lambda key, value: f"{value % 4}")
    halves = numbers.repartition(longs).process(Marked).map_values(lambda value: value // (value - 3) // 2)
    halves.to("halves", LONGS)
    by_rest = Repartitioned("by-rest", key=serdes.STRING, value=NOT_ONE)
    rests: KStream[str, int] = halves.select_key(lambda key, value: f"{value % 3}").repartition(by_rest).process(Marked)
    rests.group_by_key(Grouped(serdes.STRING, value=NOT_ONE)).count(
        Materialized("rests", key=serdes.STRING, value=serdes.LONG)
    ).to_stream().to("rests", LONGS)
    return _built(builder)


def _not_one(data: bytes) -> int:
    number = int.from_bytes(data, "big", signed=True)
    if number == 1:
        raise ValueError("1 cannot be read")
    return number


NOT_ONE = serdes.Serde(lambda topic, headers, number: number.to_bytes(8, "big", signed=True), lambda topic, headers, data: _not_one(data))
"""Numbers, of which 1 cannot be read."""


FAMILIES = (
    Family(stateless, null_keys=True),
    Family(counts, null_keys=True),
    Family(windows, null_keys=True),
    Family(sessions, null_keys=True),
    Family(joins, ("in", "left", "right"), ("everyone",)),
    Family(stream_joins, ("left", "right")),
    Family(processors),
    Family(repartitions, one_partition=True),
    Family(foreign_keys, ("left", "right"), one_partition=True),
)
SKIPS = Family(dead_letters, null_keys=True, one_partition=True, config=SKIPPING)


def with_unreadable(random: Random, count: int) -> list[Sent]:
    """Return random records for `SKIPS`; some have values that are no text."""
    return [replace(each, value=b"\xff") if random.random() < 0.1 else each for each in records(random, count, null_keys=True)]


def letters_apart(outputs: Mapping[str, Sequence[Sent]]) -> dict[str, list[Sent]]:
    """Return outputs with the dead letters of each sub-topology apart, by the topic of their records: the order between the tasks that
    write them is open."""
    found: dict[str, list[Sent]] = {}
    for topic, sent in outputs.items():
        for each in sent:
            source = dict(each.headers or ()).get("__streams.errors.topic") if topic.endswith(DEAD) else None
            found.setdefault(topic if source is None else f"{topic} of {source.decode()}", []).append(each)
    return found
