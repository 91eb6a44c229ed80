"""Stores with headers beside what every store does (tests/contracts): their bytes on the changelog, in files, in snapshots and seeds; which
builders and tables have them; and a store that begins or ceases to keep them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from penstock import (
    AggregationWithHeaders,
    Materialized,
    QueryableStoreTypes,
    SessionWindows,
    Stores,
    StreamJoined,
    StreamsBuilder,
    TimeWindows,
    ValueTimestampHeaders,
    Windowed,
    serdes,
)
from penstock.runtime.changelog.adoption import take_up
from penstock.runtime.changelog.folding import FoldedBatch
from penstock.runtime.changelog.writer import ChangelogWriter
from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.dsl.windows import JoinWindows
from penstock.runtime.kafka.messages import Message
from penstock.runtime.model.errors import InvalidStateStoreError, StateUnreadableError, StoreChangedError, TopologyError
from penstock.runtime.model.ids import NextOffset, TaskId, TopicPartition
from penstock.runtime.model.record import Headers, SessionWindow
from penstock.runtime.seeds.entries import changelog_records, with_headers
from penstock.runtime.seeds.plan import store_misfits
from penstock.runtime.serdes.serde import Serde
from penstock.runtime.snapshots.local import store_manifest
from penstock.runtime.stores.base import EngineStore, StoreContext
from penstock.runtime.stores.headers import PackedSerde, encode_headers, headers_of, without_headers
from penstock.runtime.stores.rows import read_store
from penstock.runtime.stores.suppliers import Builder
from penstock.runtime.topology.shape import TopologyShape, accepted, conflicts, misfits, shape_of

TASK = TaskId(0, 3)
LOG = TopicPartition("app-s-changelog", 3)
HOUR = 3_600_000
S, L = serdes.STRING, serdes.LONG
SOME: Headers = [("trace", b"1"), ("trace", b"")]
KEY_VALUES = Stores.timestamped_key_value_store_with_headers_builder(Stores.persistent_timestamped_key_value_store_with_headers("s"), S, L)
WINDOWS = Stores.timestamped_window_store_with_headers_builder(
    Stores.persistent_timestamped_window_store_with_headers("s", 2 * HOUR, HOUR), S, L
)
SESSIONS = Stores.session_store_with_headers_builder(Stores.persistent_session_store_with_headers("s", 2 * HOUR), S, L)
WITHOUT: dict[str, Builder[Any]] = {
    "key_value": Stores.timestamped_key_value_store_builder(Stores.persistent_key_value_store("s"), S, L),
    "window": Stores.timestamped_window_store_builder(Stores.persistent_window_store("s", 2 * HOUR, HOUR), S, L),
    "session": Stores.session_store_builder(Stores.persistent_session_store("s", 2 * HOUR), S, L),
}
BUILDERS: list[Builder[Any]] = [KEY_VALUES, WINDOWS, SESSIONS]
of_all = pytest.mark.parametrize("builder", BUILDERS, ids=lambda builder: builder.settings.kind)


def opened(folder: Path, builder: Builder[Any], *, logged: bool = True) -> Any:  # noqa: ANN401 (of any kind)
    """The store as a task opens it."""
    store = builder.build()
    store.open(folder, StoreContext("app", folder, TASK, LOG if logged else None))
    take_up(folder, store, (lambda partition: partition == LOG) if logged else None, "")
    return store


def put(store: Any, key: str, number: int, headers: Headers | None) -> None:  # noqa: ANN401
    """Put a value at 5 ms; without headers as an operator does."""
    kind, kept = store.layout.kind, headers or []
    if kind == "session":
        store.put(Windowed(key, SessionWindow(1, 5)), AggregationWithHeaders(number, kept))
    else:
        store.put(key, ValueTimestampHeaders(number, 5, kept), *([0] if kind == "window" else []))


def rows_of(store: EngineStore) -> list[object]:
    return [value for _, value in cast(Any, store).all()]


@of_all
def test_headers_are_those_of_the_changelogs_records_and_come_back_from_there(builder: Builder[Any], tmp_path: Path) -> None:
    store = opened(tmp_path / "one", builder)
    for number, key in enumerate("abcd"):
        put(store, key, number, SOME if number % 2 else None)
    put(store, "e", 4, [("other", b"")])
    sent = list(ChangelogWriter("app", TASK, [store], rolls_back=True).pending())
    found = {key[:1]: (value, headers) for _, rows, headers in sent for key, value, _ in rows}
    assert found == {
        **{key: (number.to_bytes(8, "big"), SOME if number % 2 else None) for number, key in enumerate((b"a", b"b", b"c", b"d"))},
        b"e": ((4).to_bytes(8, "big"), [("other", b"")]),
    }
    store.commit({LOG: NextOffset(5)})
    batch = FoldedBatch(store.folded_by_key, store.keeps_headers)
    batch.add(
        [
            Message(topic="t", partition=0, offset=0, key=key, value=value, timestamp=(1, at), headers=cast("Any", headers))
            for _, rows, headers in sent
            for key, value, at in rows
        ],
        0,
    )
    again = opened(tmp_path / "two", builder)
    again.restore(batch.take(), {LOG: NextOffset(5)})
    assert rows_of(again) == rows_of(store) and len(rows_of(store)) == 5
    assert [cast(Any, row).headers for row in rows_of(store)] == [[], SOME, [], SOME, [("other", b"")]]


@of_all
def test_a_store_that_begins_or_ceases_to_keep_headers_is_restored(builder: Builder[Any], tmp_path: Path) -> None:
    plain = WITHOUT[builder.settings.kind]
    for before, now in ((plain, builder), (builder, plain), (plain, builder)):
        store = opened(tmp_path, before)
        (record,) = [(key, b"\0" * store.keeps_headers + (1).to_bytes(8, "big"), 5) for key in [_key_of(store)]]
        store.restore([record], {LOG: NextOffset(3)})
        store.close()
        changed = opened(tmp_path, now)
        assert not changed.has_entries() and changed.committed_offset(LOG) is None, "its bytes would be misread"
        assert rows_of(changed) == []
        changed.close()


def _key_of(store: EngineStore) -> bytes:
    return b"k" + bytes({"key_value": 0, "window": 12, "session": 16}[store.layout.kind])


@of_all
def test_without_a_changelog_it_is_refused(builder: Builder[Any], tmp_path: Path) -> None:
    store = opened(tmp_path, WITHOUT[builder.settings.kind].with_logging_disabled(), logged=False)
    store.restore([(_key_of(store), (1).to_bytes(8, "big"), 5)], {TopicPartition("in", 3): NextOffset(3)})
    store.close()
    with pytest.raises(StoreChangedError, match=r"it keeps headers in one of the two versions.*it has no changelog to make them from"):
        opened(tmp_path, builder.with_logging_disabled(), logged=False)


@of_all
def test_readers_of_files_leave_headers_out_and_seeds_write_them_to_the_changelog(builder: Builder[Any], tmp_path: Path) -> None:
    store = opened(tmp_path / "task", builder)
    for number, key in enumerate("abc"):
        put(store, key, number, SOME if number == 1 else None)
    store.commit({})
    store.checkpoint(tmp_path / "copy")
    layout = store_manifest(store, "s", None).layout
    assert layout.headers
    (rows,) = read_store(tmp_path / "copy", layout)
    assert rows.values.to_pylist() == [number.to_bytes(8, "big") for number in range(3)] and rows.broken is None
    if layout.timestamped:
        assert rows.timestamps is not None and rows.timestamps.to_pylist() == [5, 5, 5]
    sent = [row for batch in changelog_records(tmp_path / "copy", layout, 0) for row in with_headers(layout, batch)]
    assert [(headers, [(key[:1], value, at) for key, value, at in group]) for headers, group in sent] == [
        (None, [(b"a", (0).to_bytes(8, "big"), 5), (b"c", (2).to_bytes(8, "big"), 5)]),
        (SOME, [(b"b", (1).to_bytes(8, "big"), 5)]),
    ]


def test_a_seed_in_the_other_format_is_refused() -> None:
    seeded = KEY_VALUES.build()
    assert store_misfits(WITHOUT["key_value"].build(), store_manifest(seeded, "s", None), seeded.format) == [
        "it has headers, and in the topology no headers: its files have another form (dsl.store.format)"
    ]


@pytest.mark.parametrize("damaged", [b"", b"\x08\x02", b"\xff\xff\xff\xff\xff\xff", b"\x03", b"\x04\x02\x00\x00", b"\x00\x00"])
def test_damaged_bytes_are_named(damaged: bytes, tmp_path: Path) -> None:
    store = opened(tmp_path / "task", KEY_VALUES)
    put(store, "a", 1, SOME)
    store.commit({LOG: NextOffset(1)})
    store._opened().write([(b"b", damaged)], {}, {})
    store.close()
    store = opened(tmp_path / "task", KEY_VALUES)
    for read in (lambda: store.get("b"), lambda: list(store.all()), lambda: store.query_view().get("b")):
        with pytest.raises(StateUnreadableError, match=r"store s: the value of key 'b' cannot be read by its serde LONG"):
            read()
    store.checkpoint(tmp_path / "copy")
    (rows,) = read_store(tmp_path / "copy", store.layout)
    assert rows.broken is not None and len(rows.broken.reasons) == 1 and len(rows) == 1


def test_the_serde_gets_the_headers_of_its_value() -> None:
    def write(topic: str, headers: Headers | None, text: str) -> bytes:
        return f"{text}{len(headers or [])}".encode()

    def read(topic: str, headers: Headers | None, data: bytes) -> str:
        return f"{data.decode()}{len(headers or [])}"

    packed = PackedSerde(Serde(write, read))
    data = cast(bytes, packed.serializer("t")(AggregationWithHeaders("v", SOME)))
    assert without_headers(data) == b"v2" and headers_of(data) == SOME
    assert packed.deserializer("t")(data) == "v22"
    assert packed.deserializer("t")(cast(bytes, packed.serializer("t")("v"))) == "v00"
    assert packed.serializer("t")(AggregationWithHeaders(None, SOME)) is None


def test_suppliers_belong_to_their_builders() -> None:
    supplier = Stores.persistent_timestamped_key_value_store_with_headers("s")
    for build in (Stores.key_value_store_builder, Stores.timestamped_key_value_store_builder):
        with pytest.raises(TypeError, match="use a builder whose name ends in with_headers_builder"):
            build(supplier, S, S)
    with pytest.raises(ValueError, match="has no time to live"):
        Stores.timestamped_key_value_store_with_headers_builder(Stores.persistent_key_value_store("s", ttl=5), S, S)
    with pytest.raises(TopologyError, match="has no ttl"):
        StreamsBuilder().table("t", materialized=Materialized(supplier, ttl=5))
    window = Stores.persistent_timestamped_window_store_with_headers("w", 20, 20, True)
    left = StreamsBuilder().stream("l")
    with pytest.raises(TopologyError, match="the stores of a join keep no headers"):
        left.join(left, lambda one, other: one, JoinWindows.of_time_difference_with_no_grace(10), StreamJoined(this_store=window))


def config(**more: str) -> StreamsConfig:
    keys = {"application.id": "app", "bootstrap.servers": "x:9092", "default.key.serde": S, "default.value.serde": S}
    return StreamsConfig({**keys, **{name.replace("_", "."): value for name, value in more.items()}})


def shape(settings: StreamsConfig, define: Callable[[StreamsBuilder], object]) -> TopologyShape:
    builder = StreamsBuilder()
    define(builder)
    return shape_of(builder.build(settings).resolved(settings), "app")


def tables(builder: StreamsBuilder) -> None:
    stream = builder.stream("in").group_by_key()
    stream.count(Materialized("counts"))
    stream.count(Materialized("memory", store_type="in_memory"))
    stream.count(Materialized("expiring", ttl=5))
    stream.count(Materialized(Stores.persistent_key_value_store("given")))
    stream.count(Materialized(Stores.persistent_timestamped_key_value_store_with_headers("asked")))
    stream.count(Materialized(Stores.persistent_versioned_key_value_store("versions", 5)))
    stream.windowed_by(TimeWindows.of_size_with_no_grace(5)).count(Materialized("windows"))
    stream.windowed_by(SessionWindows.of_inactivity_gap_with_no_grace(5)).count(Materialized("sessions"))


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("DEFAULT", {"asked"}),
        ("HEADERS", {"counts", "asked", "windows", "sessions"}),
        ("headers", {"counts", "asked", "windows", "sessions"}),
    ],
)
def test_dsl_store_format_decides_for_stores_in_rocksdb(form: str, expected: set[str]) -> None:
    stores = shape(config(dsl_store_format=form), tables).stores
    assert {store.name for store in stores if store.format is not None and store.format.headers} == expected
    assert len(stores) == 8


def test_a_change_of_the_format_fits_but_not_side_by_side() -> None:
    def counted(builder: StreamsBuilder) -> None:
        builder.stream("in").group_by_key().count(Materialized("counts"))

    def unlogged(builder: StreamsBuilder) -> None:
        builder.stream("in").group_by_key().count(Materialized("counts", logging=False))

    plain, headers = shape(config(), counted), shape(config(dsl_store_format="HEADERS"), counted)
    for before, now, warnings in ((plain, headers, 0), (headers, plain, 1)):
        assert misfits(before, now, ["counts"], {}) == [] and len(accepted(before, now, ["counts"])) == warnings
        assert conflicts((before, {}), (now, {})) or now is plain
    (reason,) = misfits(shape(config(), unlogged), shape(config(dsl_store_format="HEADERS"), unlogged), ["counts"], {})
    assert "it keeps headers in one of the two versions" in reason and "no changelog" in reason


def test_queries_for_headers_refuse_other_stores(tmp_path: Path) -> None:
    wanted = QueryableStoreTypes.timestamped_key_value_store_with_headers()
    wanted.check(opened(tmp_path / "with", KEY_VALUES))
    with pytest.raises(InvalidStateStoreError, match="is a key-value store, not a key-value store with headers"):
        wanted.check(opened(tmp_path / "without", WITHOUT["key_value"]))


def test_null_headers_and_text_as_clients_give_them() -> None:
    given = cast(Headers, [("null", None), ("text", "ü")])
    assert headers_of(encode_headers(given)) == [("null", None), ("text", "ü".encode())]
