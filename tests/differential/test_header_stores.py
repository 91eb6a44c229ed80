"""Stores with headers (KIP-1271) and tables in them (KIP-1285), as java/HeaderStores.java has them; and the operators of the other files
with `dsl.store.format`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import cast

from penstock import (
    AggregationWithHeaders,
    KeyValueStore,
    Materialized,
    Processor,
    ProcessorContext,
    ProcessorSupplier,
    Produced,
    Record,
    SessionStore,
    SessionWindow,
    SessionWindows,
    StoreBuilder,
    Stores,
    StreamsBuilder,
    TimeWindows,
    ValueTimestampHeaders,
    Windowed,
    WindowStore,
    serdes,
)
from penstock.runtime.stores import EngineStore
from penstock.runtime.stores.headers import PackedSerde, stored_rows
from tests.differential import test_aggregations, test_processors, test_suppressions, test_table_joins, test_tables, test_windows
from tests.differential.family import Family, as_java

DAY = 86_400_000
LAST = 2**63 - 1
S = serdes.STRING
HEADERS = {"dsl.store.format": "HEADERS"}
Row = ValueTimestampHeaders[str]
Session = AggregationWithHeaders[str]


def shown(row: ValueTimestampHeaders | AggregationWithHeaders | None) -> str:
    if row is None:
        return "none"
    value = row.aggregation if isinstance(row, AggregationWithHeaders) else f"{row.value}@{row.timestamp}"
    return f"{value}[{','.join(f'{name}={data.decode()}' for name, data in row.headers)}]"


def row_of(record: Record[str, str | None]) -> Row | None:
    return None if record.value is None else ValueTimestampHeaders(record.value, record.timestamp, record.headers)


class Reporting(Processor[str, str | None, str, str]):
    """Forwards what its store had, and has."""

    def init(self, context: ProcessorContext[str, str]) -> None:
        self.context = context
        self.rows = context.get_state_store("rows")

    def process(self, record: Record[str, str | None]) -> None:
        self.context.forward(record.with_value("none" if record.key is None else self.reported(record)))

    def reported(self, record: Record[str, str | None]) -> str:
        raise NotImplementedError


class OfKeyValues(Reporting):
    rows: KeyValueStore[str, Row]

    def reported(self, record: Record[str, str | None]) -> str:
        row = row_of(record)
        if record.value == "2":
            return f"absent {shown(self.rows.put_if_absent(record.key, row))}"
        if record.value == "3":
            return f"deleted {shown(self.rows.delete(record.key))}"
        if record.value == "4":
            return "".join(f"{key}={shown(value)} " for key, value in self.rows.all())
        before = shown(self.rows.get(record.key))
        self.rows.put(record.key, row)
        return f"{before} {shown(self.rows.get(record.key))}"


class OfWindows(Reporting):
    rows: WindowStore[str, Row]

    def reported(self, record: Record[str, str | None]) -> str:
        start = record.timestamp // 20 * 20
        before = shown(self.rows.fetch(record.key, start))
        self.rows.put(record.key, row_of(record), start)
        return f"{before}: " + "".join(f"{at}={shown(row)} " for at, row in self.rows.fetch(record.key, 0, LAST))


class OfSessions(Reporting):
    rows: SessionStore[str, Session]

    def reported(self, record: Record[str, str | None]) -> str:
        end = record.timestamp // 20 * 20
        before = shown(self.rows.fetch_session(record.key, 0, end))
        row = None if record.value is None else AggregationWithHeaders(record.value, record.headers)
        self.rows.put(Windowed(record.key, SessionWindow(0, end)), row)
        return f"{before}: " + "".join(f"{key.window.end}={shown(row)} " for key, row in self.rows.find_sessions(record.key, 0, LAST))


class ReportingSupplier(ProcessorSupplier[str, str | None, str, str]):
    def __init__(self, processor: type[Reporting], store: StoreBuilder[EngineStore]) -> None:
        self.processor, self.store = processor, store

    def get(self) -> Reporting:
        return self.processor()

    def stores(self) -> Iterable[StoreBuilder[EngineStore]]:
        return [self.store]


def reported(builder: StreamsBuilder, processor: type[Reporting], store: StoreBuilder[EngineStore]) -> None:
    builder.stream("in").process(ReportingSupplier(processor, store)).to("out")


def key_values(builder: StreamsBuilder) -> None:
    supplier = Stores.persistent_timestamped_key_value_store_with_headers("rows")
    reported(builder, OfKeyValues, Stores.timestamped_key_value_store_with_headers_builder(supplier, S, S))


def key_values_in_memory(builder: StreamsBuilder) -> None:
    store = Stores.timestamped_key_value_store_with_headers_builder(Stores.in_memory_key_value_store("rows"), S, S)
    reported(builder, OfKeyValues, store.with_caching_enabled())


def windows(builder: StreamsBuilder) -> None:
    supplier = Stores.persistent_timestamped_window_store_with_headers("rows", DAY, 20)
    reported(builder, OfWindows, Stores.timestamped_window_store_with_headers_builder(supplier, S, S))


def sessions(builder: StreamsBuilder) -> None:
    supplier = Stores.persistent_session_store_with_headers("rows", DAY)
    reported(builder, OfSessions, Stores.session_store_with_headers_builder(supplier, S, S))


class OfTables(Processor[str, str, str, str]):
    """Shows the stores of tables."""

    def init(self, context: ProcessorContext[str, str]) -> None:
        self.context = context
        self.table: KeyValueStore[str, Row] = context.get_state_store("table")
        self.windows: WindowStore[str, Row] = context.get_state_store("windows")
        self.sessions: SessionStore[str, Session] = context.get_state_store("sessions")

    def process(self, record: Record[str, str]) -> None:
        if record.key is not None:
            found = f"{shown(self.table.get(record.key))}; "
            found += "".join(f"{at}={shown(row)} " for at, row in self.windows.fetch(record.key, 0, LAST))
            found += "".join(f"{key.window.end}={shown(row)} " for key, row in self.sessions.fetch(record.key))
            self.context.forward(record.with_value(found))


def tables(builder: StreamsBuilder) -> None:
    builder.table("rows", materialized="table")
    events = builder.stream("events").group_by_key()
    events.windowed_by(TimeWindows.of_size_and_grace(20, DAY)).count(Materialized("windows"))
    events = builder.stream("events").group_by_key()
    events.windowed_by(SessionWindows.of_inactivity_gap_and_grace(20, DAY)).count(Materialized("sessions"))
    builder.stream("in").process(OfTables, "table", "windows", "sessions").to("out")


class Bytes(Processor[str, str | None, str, bytes]):
    def init(self, context: ProcessorContext[str, bytes]) -> None:
        self.context = context
        self.write = PackedSerde(S).serializer("t")

    def process(self, record: Record[str, str | None]) -> None:
        if record.value is not None:
            more = [] if record.value else [("ü" * 70, bytes(9_000)), ("null", cast(bytes, None))]
            packed = cast(bytes, self.write(AggregationWithHeaders(record.value, [*record.headers, *more])))
            ((_, stored),) = stored_rows([(b"", packed, record.timestamp)])
            self.context.forward(record.with_value(cast(bytes, stored)))
            self.context.forward(record.with_value(packed))


def stored_bytes(builder: StreamsBuilder) -> None:
    builder.stream("in").process(Bytes).to("out", Produced(S, value=serdes.BYTES))


OTHERS = {
    "stream_aggregate", "grouped_table", "fixed_keys", "session_count", "session_aggregate", "tumbling_count", "sliding_count",
    "session_closes", "inner_tables", "global_table",
}  # fmt: skip
FAMILIES = [
    Family("HeaderStores", key_values),
    Family("HeaderStores", key_values_in_memory),
    Family("HeaderStores", windows),
    Family("HeaderStores", sessions),
    Family("HeaderStores", tables, topics=("in", "rows", "events"), null_values=False, config=HEADERS),
    Family("HeaderStores", stored_bytes, values=("1", "2", "", "ü" * 200), serdes={"out": (S, serdes.BYTES)}),
    *(
        replace(family, config={**family.config, "dsl.store.format": "headers"}, name=f"{family.build.__name__}-headers")
        for file in (test_aggregations, test_processors, test_suppressions, test_table_joins, test_tables, test_windows)
        for family in file.FAMILIES
        if family.build.__name__ in OTHERS
    ),
]
test_as_java = as_java(FAMILIES)
