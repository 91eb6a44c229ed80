"""Processors of the user's own, as java/Processors.java has them."""

from __future__ import annotations

from collections.abc import Iterable

from penstock import (
    Consumed,
    ConsumerRecord,
    FixedKeyProcessor,
    FixedKeyProcessorContext,
    FixedKeyRecord,
    KeyValueStore,
    Materialized,
    Processor,
    ProcessorContext,
    ProcessorSupplier,
    PunctuationType,
    Record,
    StoreBuilder,
    Stores,
    StreamsBuilder,
    Topology,
    ValueAndTimestamp,
    serdes,
)
from penstock.runtime.stores import EngineStore
from tests.differential.family import Family, as_java


def store(name: str) -> StoreBuilder[EngineStore]:
    return Stores.key_value_store_builder(Stores.in_memory_key_value_store(name), serdes.STRING, serdes.STRING)


def text(value: str | None) -> str:
    return "null" if value is None else value


class Punctuated(Processor[str | None, str | None, str | None, str | None]):
    def init(self, context: ProcessorContext[str | None, str | None]) -> None:
        self.context = context
        self.calls = 0
        self.seen: KeyValueStore[str, str] = context.get_state_store("seen")
        context.schedule(15, PunctuationType.STREAM_TIME, self.tell)
        context.schedule(
            20, PunctuationType.WALL_CLOCK_TIME, lambda now: context.forward(Record("wall", str(context.current_stream_time_ms()), now))
        )
        self.few_times = context.schedule(5, PunctuationType.STREAM_TIME, self.tell_few_times)
        context.schedule(10, PunctuationType.STREAM_TIME, lambda now: context.forward(Record("anchored", "x", now)), start_time=7)

    def tell(self, now: int) -> None:
        for key, value in self.seen.all():
            self.context.forward(Record(key, f"stream {value}", now))

    def tell_few_times(self, now: int) -> None:
        self.context.forward(Record("few", str(self.calls), now))
        self.calls += 1
        if self.calls == 3:
            self.few_times.cancel()

    def process(self, record: Record[str | None, str | None]) -> None:
        if record.key is not None:
            self.seen.put(record.key, record.value)
        self.context.forward(record.with_timestamp(record.timestamp + 1))


class Supplier(ProcessorSupplier[str | None, str | None, str | None, str | None]):
    def get(self) -> Punctuated:
        return Punctuated()

    def stores(self) -> Iterable[StoreBuilder[EngineStore]]:
        return [store("seen")]


def punctuated(builder: StreamsBuilder) -> None:
    builder.stream("in").process(Supplier()).to("out")


class Told(Processor[str, str, str, str]):
    def init(self, context: ProcessorContext[str, str]) -> None:
        self.context = context

    def process(self, record: Record[str, str]) -> None:
        at = self.context.record_metadata
        where = "nowhere" if at is None else f"{at.topic}-{at.partition}@{at.offset}"
        record.headers.append(("own", b"\x01"))
        self.context.forward(record.with_value(f"{where} {self.context.current_stream_time_ms()}"))


def reported(builder: StreamsBuilder) -> None:
    builder.stream("in").merge(builder.stream("other")).process(Told).to("out")


class Fixed(FixedKeyProcessor[str, str | None, str | None]):
    def init(self, context: FixedKeyProcessorContext[str, str | None]) -> None:
        self.context = context

    def process(self, record: FixedKeyRecord[str, str | None]) -> None:
        self.context.forward(record.with_value(text(record.value) + "!"))
        self.context.forward(record.with_value(None).with_timestamp(record.timestamp + 3))


def fixed_keys(builder: StreamsBuilder) -> None:
    builder.stream("in").process_values(Fixed).to_table(Materialized("rows")).to_stream().to("out")


class Router(Processor[str, str, str, str]):
    def init(self, context: ProcessorContext[str, str]) -> None:
        self.context = context

    def process(self, record: Record[str, str]) -> None:
        if record.value == "1":
            self.context.forward(record)
        else:
            self.context.forward(record, "left" if record.value == "2" else "right")


def children(topology: Topology) -> None:
    topology.add_source("source", "in")
    topology.add_processor("router", Router, "source")
    topology.add_sink("left", "left-out", "router")
    topology.add_processor("right", Told, "router")
    topology.add_sink("sink", "right-out", "right")


class Filling(Processor[str, str | None, None, None]):
    def init(self, context: ProcessorContext[None, None]) -> None:
        self.rows: KeyValueStore[str, str] = context.get_state_store("rows")

    def process(self, record: Record[str, str | None]) -> None:
        if record.key is not None:
            self.rows.put(record.key, None if record.value is None else f"{record.value}{record.timestamp}")


class Looking(Processor[str, str, str, str]):
    def init(self, context: ProcessorContext[str, str]) -> None:
        self.context = context
        self.rows: KeyValueStore[str, str] = context.get_state_store("rows")

    def process(self, record: Record[str, str]) -> None:
        self.context.forward(record.with_value("none" if record.key is None else text(self.rows.get(record.key))))


def global_store(builder: StreamsBuilder) -> None:
    builder.add_global_store(store("rows"), "global", Consumed(serdes.STRING, value=serdes.STRING), Filling)
    builder.stream("in").process(Looking).to("out")


class OfTable(Processor[str, str, str, str]):
    def init(self, context: ProcessorContext[str, str]) -> None:
        self.context = context
        self.rows: KeyValueStore[str, ValueAndTimestamp[str]] = context.get_state_store("table")

    def process(self, record: Record[str, str]) -> None:
        row = None if record.key is None else self.rows.get(record.key)
        self.context.forward(record.with_value("none" if row is None else f"{row.value}@{row.timestamp}"))


def store_of_a_table(builder: StreamsBuilder) -> None:
    builder.table("rows", materialized="table")
    builder.stream("in").process(OfTable, "table").to("out")


def time_of(record: ConsumerRecord, partition_time: int) -> int:
    return {"1": -1, "2": partition_time + 5}.get(str(record.value), record.timestamp)


def extracted(builder: StreamsBuilder) -> None:
    builder.stream("in", Consumed(timestamp_extractor=time_of)).process(Told).to("out")


FAMILIES = [
    Family("Processors", punctuated, wall=30),
    Family("Processors", reported, topics=("in", "other")),
    Family("Processors", fixed_keys),
    Family("Processors", children),
    Family("Processors", global_store, topics=("in", "global")),
    Family("Processors", store_of_a_table, topics=("in", "rows")),
    Family("Processors", extracted),
]
test_as_java = as_java(FAMILIES)
