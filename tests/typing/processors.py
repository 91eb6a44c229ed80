"""Types of the Processor API and of stores: read by mypy and pyright (`make types`), never run."""

from __future__ import annotations

from typing import assert_type

from penstock import (
    Consumed,
    ContextualProcessor,
    FixedKeyProcessor,
    FixedKeyProcessorContext,
    FixedKeyRecord,
    KeyValueStore,
    KStream,
    Processor,
    ProcessorContext,
    ProcessorSupplier,
    Record,
    StreamsBuilder,
    ValueAndTimestamp,
    VersionedRecord,
    Windowed,
    WindowStore,
    serdes,
)

words = StreamsBuilder().stream("words", Consumed(serdes.STRING, value=serdes.STRING))


class Lengths(Processor[str, str, str, int]):
    def init(self, context: ProcessorContext[str, int]) -> None:
        self.context = context
        self.seen: KeyValueStore[str, int] = context.get_state_store("seen")

    def process(self, record: Record[str, str]) -> None:
        assert_type(self.seen.get(record.key), int | None)
        self.seen.put(record.key, len(record.value))
        self.context.forward(record.with_value(len(record.value)))
        self.context.forward(record)  # type: ignore[arg-type]


class Anything(Processor[object, object, str, float]):
    """Takes whatever comes."""


class Upper(FixedKeyProcessor[str, str, bytes]):
    def init(self, context: FixedKeyProcessorContext[str, bytes]) -> None:
        self.context = context

    def process(self, record: FixedKeyRecord[str, str]) -> None:
        self.context.forward(record.with_value(record.value.encode()))
        record.with_key("other")  # type: ignore[attr-defined]


class MakesLengths(ProcessorSupplier[str, str, str, int]):
    def get(self) -> Lengths:
        return Lengths()


class Shouting(ContextualProcessor[str, str, str, bytes]):
    def process(self, record: Record[str, str]) -> None:
        self.context.forward(record.with_value(record.value.encode()))
        self.context.forward(record)  # type: ignore[arg-type]


def processors() -> None:
    assert_type(words.process(Shouting), KStream[str, bytes])
    assert_type(words.process(Lengths, "seen"), KStream[str, int])
    assert_type(words.process(lambda: Lengths(), "seen"), KStream[str, int])
    assert_type(words.process(MakesLengths()), KStream[str, int])
    assert_type(words.process(Anything), KStream[str, float])
    assert_type(words.process_values(Upper), KStream[str, bytes])
    words.select_key(lambda key, value: 1).process(Lengths, "seen")  # type: ignore[arg-type]


def records(record: Record[str, int]) -> None:
    assert_type(record.with_key(1), Record[int, int])
    assert_type(record.with_value("x"), Record[str, str])
    assert_type(record.with_timestamp(1).headers, list[tuple[str, bytes]])
    anything: Record[object, object] = record
    print(anything)


def stores(
    rows: KeyValueStore[str, ValueAndTimestamp[float]], hours: WindowStore[str, int], version: VersionedRecord[str], key: Windowed[str]
) -> None:
    row = rows.get("a")
    assert_type(row, ValueAndTimestamp[float] | None)
    assert_type([value.value for _, value in rows.all()], list[float])
    assert_type([(window.key, count) for window, count in hours.fetch_all(0, 1)], list[tuple[str, int]])
    assert_type(version.value, str)
    assert_type(key.key, str)
    rows.put(1, None)  # type: ignore[arg-type]
