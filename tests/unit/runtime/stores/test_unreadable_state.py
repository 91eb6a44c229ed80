"""A stored entry that its serde cannot read: the error names store and key, and no handler is asked about the current record."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock import Consumed, Materialized, StreamsBuilder, serdes
from penstock.runtime.model.errors import StateUnreadableError
from penstock.runtime.model.ids import NextOffset, TaskId, TopicPartition
from penstock.runtime.model.record import SessionWindow, Windowed
from penstock.runtime.serdes.serde import Serde
from penstock.runtime.stores.base import EngineStore, StoreContext
from penstock.runtime.stores.key_value import StagedKeyValueStore
from penstock.runtime.stores.suppliers import Stores
from penstock.runtime.stores.versioned import StagedVersionedStore
from penstock.testing import TopologyTestDriver

LOG = TopicPartition("app-s-changelog", 0)


class Mutable(msgspec.Struct):
    n: int


class Frozen(msgspec.Struct, frozen=True):
    n: int


Read = Callable[[StagedKeyValueStore], object]


@pytest.mark.parametrize("kind", [Mutable, Frozen])
@pytest.mark.parametrize(
    "read",
    [
        lambda store: store.get("EWR"),
        lambda store: list(store.all()),
        lambda store: list(store.range("A", "Z")),
        lambda store: store.value_of(store.entry(b"EWR")),
        lambda store: store.query_view().get("EWR"),
        lambda store: list(store.query_view().all()),
    ],
    ids=["get", "all", "range", "entry", "view", "view of all"],
)
def test_every_way_of_reading_names_store_key_and_serde(tmp_path: Path, kind: type, read: Read) -> None:
    store = Stores.key_value_store_builder(Stores.persistent_key_value_store("totals"), serdes.STRING, serdes.json(kind)).build()
    opened(store, tmp_path)
    store.restore([(b"EWR", b'{"n":"many"}', 5)], {LOG: NextOffset(1)})
    with pytest.raises(
        StateUnreadableError, match=rf"store totals: the value of key 'EWR' cannot be read by its serde json\({kind.__name__}\)"
    ):
        read(store)
    store.close()


ROWS: dict[str, Callable[[Serde[str]], EngineStore]] = {
    "key_value": lambda key: Stores.key_value_store_builder(Stores.persistent_key_value_store("s"), key, serdes.STRING).build(),
    "window": lambda key: Stores.window_store_builder(Stores.persistent_window_store("s", 10_000, 5_000), key, serdes.STRING).build(),
    "session": lambda key: Stores.session_store_builder(Stores.persistent_session_store("s", 10_000), key, serdes.STRING).build(),
    "versioned": lambda key: Stores.versioned_key_value_store_builder(
        Stores.persistent_versioned_key_value_store("s", 1_000), key, serdes.STRING
    ).build(),
}


@pytest.mark.parametrize("error", [ValueError("not mine"), SystemExit("not mine")], ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("kind", ROWS)
def test_a_key_that_cannot_be_read_names_store_and_bytes(tmp_path: Path, kind: str, error: BaseException) -> None:
    def read(topic: str, headers: object, data: bytes) -> str:
        raise error

    store: Any = ROWS[kind](Serde(lambda topic, headers, key: key.encode(), read, name="names"))
    opened(store, tmp_path)
    match kind:
        case "key_value":
            store.put("EWR", "x")
        case "window":
            store.put("EWR", "x", 5)
        case "session":
            store.put(Windowed("EWR", SessionWindow(5, 6)), "x")
        case _:
            store.put("EWR", "x", 5)
    rows = store.find_sessions("A", "Z", 0, 10) if kind == "session" else store.query_view(uncommitted=True).all()
    with pytest.raises(
        StateUnreadableError, match=rf"store s: the key b'EWR' cannot be read by its serde names.*{type(error).__name__}: not"
    ):
        list(rows)
    store.close()


def test_an_unreadable_version_names_store_key_and_serde(tmp_path: Path) -> None:
    supplier = Stores.persistent_versioned_key_value_store("totals", 1000)
    store: StagedVersionedStore = Stores.versioned_key_value_store_builder(supplier, serdes.STRING, serdes.json(Mutable)).build()
    opened(store, tmp_path)
    store.restore([(b"EWR", b'{"n":"many"}', 5)], {LOG: NextOffset(1)})
    with pytest.raises(StateUnreadableError, match="store totals: the value of key 'EWR'"):
        store.get("EWR")
    store.close()


def opened(store: EngineStore, folder: Path) -> None:
    store.open(folder, StoreContext("app", folder, TaskId(0, 0), LOG))


@pytest.mark.parametrize("error", [kind("no number of mine") for kind in (ValueError, SystemExit, GeneratorExit)])
def test_no_handler_may_skip_the_record_that_is_processed(error: BaseException) -> None:
    written = [0]

    def counts(topic: str, headers: object, data: bytes) -> int:
        if written[0] > 1:
            raise error
        return int(data)

    def write(topic: str, headers: object, data: int) -> bytes:
        written[0] += 1
        return str(data).encode()

    builder = StreamsBuilder()
    how: Materialized[str, int] = Materialized("totals", key=serdes.STRING, value=Serde(write, counts, name="digits"), caching=False)
    builder.stream("in", Consumed(serdes.STRING, value=serdes.STRING)).group_by_key().aggregate(
        lambda: 0, lambda key, value, total: total + 1, how
    )
    config = {"processing.exception.handler": "penstock.LogAndContinueProcessingExceptionHandler"}
    with TopologyTestDriver(builder.build(), config) as driver:
        topic = driver.create_input_topic("in", serdes.STRING, serdes.STRING)
        topic.pipe_input("EWR", "v")
        topic.pipe_input("EWR", "v")
        line = rf"serde digits, at .*test_unreadable_state\.py:\d+ in .*counts: {type(error).__name__}: no number of mine"
        with pytest.raises(StateUnreadableError, match=rf"store totals: the value of key 'EWR' .* {line}"):
            topic.pipe_input("EWR", "v")
