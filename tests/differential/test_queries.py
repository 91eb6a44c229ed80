"""Queries of stores (KIP-796), as java/Queries.java has them: each record is put into a store, which then answers queries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from penstock import (
    KeyQuery,
    KeyValueStore,
    MultiVersionedKeyQuery,
    Processor,
    ProcessorContext,
    Query,
    RangeQuery,
    Record,
    SessionStore,
    SessionWindow,
    Stores,
    StreamsBuilder,
    TimestampedKeyQuery,
    TimestampedRangeQuery,
    ValueAndTimestamp,
    VersionedKeyQuery,
    VersionedKeyValueStore,
    VersionedRecord,
    Windowed,
    WindowKeyQuery,
    WindowRangeQuery,
    WindowStore,
    serdes,
)
from penstock.runtime.stores import EngineStore, StoreBuilder
from tests.differential.family import Family, as_java

R = TypeVar("R")
T = TypeVar("T")


class Asking(Processor[str | None, str | None, str | None, str]):
    """`context.get_state_store` gives the engine's own store; it is queried as `KafkaStreams.query` does under READ_UNCOMMITTED."""

    def init(self, context: ProcessorContext[str | None, str]) -> None:
        self.context = context
        self.engine: EngineStore = context.get_state_store("s")
        self.start(context)

    def start(self, context: ProcessorContext[str | None, str]) -> None:
        raise NotImplementedError

    def put(self, key: str, value: str | None, time: int) -> None:
        raise NotImplementedError

    def ask(self, key: str, time: int) -> None:
        raise NotImplementedError

    def process(self, record: Record[str | None, str | None]) -> None:
        if record.key is None:
            return
        self.answers: list[str] = []
        self.put(record.key, record.value, record.timestamp)
        self.ask(record.key, record.timestamp)
        self.context.forward(record.with_value(" | ".join(self.answers)))

    def one(self, query: Query[R], text: Callable[[R], str]) -> None:
        read = query.read(self.engine.layout)
        if read is None:
            self.answers.append("UNKNOWN_QUERY_TYPE")
            return
        view = self.engine.query_view(timestamped=read.timestamped, uncommitted=True)
        found = getattr(view, read.method)(*read.arguments)
        self.answers.append("null" if found is None else text(found))

    def several(self, query: Query[Iterator[T]], text: Callable[[T], str]) -> None:
        self.one(query, lambda rows: f"[{','.join(map(text, rows))}]")


def plain(value: object) -> str:
    return str(value)


def timed(value: object) -> str:
    assert isinstance(value, ValueAndTimestamp)
    return f"{value.value}@{value.timestamp}"


def row(found: tuple[object, object]) -> str:
    return f"{found[0]}={found[1]}"


def timed_row(found: tuple[object, object]) -> str:
    return f"{found[0]}={timed(found[1])}"


def windowed(key: Windowed) -> str:
    return f"{key.key}/{key.window.start}-{key.window.end}"


def version(found: VersionedRecord) -> str:
    return f"{found.value}@{found.timestamp}-{'' if found.valid_to is None else found.valid_to}"


class KeyValues(Asking):
    def start(self, context: ProcessorContext[str | None, str]) -> None:
        self.store: KeyValueStore[str, ValueAndTimestamp[str]] = context.get_state_store("s")

    def put(self, key: str, value: str | None, time: int) -> None:
        self.store.put(key, None if value is None else ValueAndTimestamp(value, time))

    def ask(self, key: str, time: int) -> None:
        self.one(KeyQuery.with_key(key), plain)
        self.one(TimestampedKeyQuery.with_key(key), timed)
        self.several(RangeQuery.with_range("a", "b"), row)
        self.several(RangeQuery.with_lower_bound(key).with_descending_keys(), row)
        self.several(TimestampedRangeQuery.with_upper_bound(key).with_ascending_keys(), timed_row)
        self.one(VersionedKeyQuery.with_key(key), version)


class Windows(Asking):
    def start(self, context: ProcessorContext[str | None, str]) -> None:
        self.store: WindowStore[str, ValueAndTimestamp[str]] = context.get_state_store("s")

    def put(self, key: str, value: str | None, time: int) -> None:
        self.store.put(key, None if value is None else ValueAndTimestamp(value, time), time // 5 * 5)

    def ask(self, key: str, time: int) -> None:
        first, last = max(0, time - 20), time + 5
        self.several(WindowKeyQuery.with_key_and_window_start_range(key, first, last), timed_row)
        self.several(WindowRangeQuery.with_window_start_range(first, last), lambda found: f"{windowed(found[0])}={timed(found[1])}")
        self.several(WindowRangeQuery.with_key(key), lambda found: f"{windowed(found[0])}={found[1]}")
        self.one(KeyQuery.with_key(key), plain)


class Sessions(Asking):
    def start(self, context: ProcessorContext[str | None, str]) -> None:
        self.store: SessionStore[str, str] = context.get_state_store("s")

    def put(self, key: str, value: str | None, time: int) -> None:
        self.store.put(Windowed(key, SessionWindow(time // 10 * 10, time // 10 * 10 + 5)), value)

    def ask(self, key: str, time: int) -> None:
        self.several(WindowRangeQuery.with_key(key), lambda found: f"{windowed(found[0])}={found[1]}")
        self.several(WindowRangeQuery.with_window_start_range(0, time), lambda found: f"{windowed(found[0])}={found[1]}")


class Versions(Asking):
    def start(self, context: ProcessorContext[str | None, str]) -> None:
        self.store: VersionedKeyValueStore[str, str] = context.get_state_store("s")

    def put(self, key: str, value: str | None, time: int) -> None:
        self.store.put(key, value, time)

    def ask(self, key: str, time: int) -> None:
        versions, first, last = MultiVersionedKeyQuery.with_key(key), max(0, time - 10), time + 3
        self.one(VersionedKeyQuery.with_key(key), version)
        self.one(VersionedKeyQuery.with_key(key).as_of(first), version)
        self.several(versions, version)
        self.several(versions.with_ascending_timestamps(), version)
        self.several(versions.from_time(first).to_time(last), version)
        self.several(versions.from_time(first).to_time(first).with_ascending_timestamps(), version)
        self.several(versions.from_time(last).with_descending_timestamps(), version)
        self.one(TimestampedKeyQuery.with_key(key), timed)


def asked(builder: StreamsBuilder, store: StoreBuilder[EngineStore], processor: type[Asking]) -> None:
    builder.add_state_store(store)
    builder.stream("in").process(processor, "s").to("out")


def key_values(builder: StreamsBuilder) -> None:
    supplier = Stores.persistent_key_value_store("s")
    asked(builder, Stores.timestamped_key_value_store_builder(supplier, serdes.STRING, serdes.STRING), KeyValues)


def windows(builder: StreamsBuilder) -> None:
    supplier = Stores.persistent_window_store("s", 120_000, 5)
    asked(builder, Stores.timestamped_window_store_builder(supplier, serdes.STRING, serdes.STRING), Windows)


def sessions(builder: StreamsBuilder) -> None:
    asked(builder, Stores.session_store_builder(Stores.persistent_session_store("s", 120_000), serdes.STRING, serdes.STRING), Sessions)


def versions(builder: StreamsBuilder) -> None:
    supplier = Stores.persistent_versioned_key_value_store("s", 10_000)
    asked(builder, Stores.versioned_key_value_store_builder(supplier, serdes.STRING, serdes.STRING), Versions)


test_as_java = as_java([Family("Queries", build) for build in (key_values, windows, sessions, versions)])
