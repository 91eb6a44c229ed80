"""The HTTP endpoint over real stores, without Kafka: a client of two instances whose other half is elsewhere."""

from __future__ import annotations

import base64
import logging
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import cast
from urllib.parse import quote

import msgspec
import pytest

from penstock import (
    Processor,
    QueryableStoreTypes,
    SessionWindow,
    StateStore,
    StoreBuilder,
    StoreQueryParameters,
    Stores,
    StreamsConfig,
    TaskKind,
    TaskMetadata,
    TaskState,
    ThreadMetadata,
    TopicPartition,
    ValueAndTimestamp,
    Windowed,
    serdes,
)
from penstock.runtime.coordination.fleet import Fleet
from penstock.runtime.coordination.records import Assignment, Grant, Member, TaskReport
from penstock.runtime.coordination.streams_metadata import StreamsMetadataState
from penstock.runtime.endpoint import HttpEndpoint, Routes, metrics_server, server
from penstock.runtime.endpoint.answers import Answer
from penstock.runtime.model.errors import InvalidStateStoreError, StreamsError
from penstock.runtime.model.ids import HostInfo, TaskId
from penstock.runtime.model.metrics import TASK, MetricName, Metrics
from penstock.runtime.model.states import State
from penstock.runtime.serdes.murmur import partition_for
from penstock.runtime.stores import StoreContext
from penstock.runtime.stores.base import EngineStore
from penstock.runtime.stores.custom import build_store
from penstock.runtime.topology.topology import Topology
from penstock.runtime.worker.queries import StoreQuery
from penstock.serdes import Serde
from tests.support import wait_until
from tests.support.own_stores import OwnBuilder

PARTITIONS = 3
HERE = HostInfo("here", 8080)
THERE = HostInfo("there", 8080)
TOKEN = "s3cret"

COMPLEX = Serde(
    lambda topic, headers, data: msgspec.json.encode([data.real, data.imag]),
    lambda topic, headers, data: complex(*msgspec.json.decode(data)),
    name="COMPLEX",
)
"""Of objects that JSON cannot say."""


def topology() -> Topology:
    """A store of each kind that is filled from `in`, a store of ours, and a global one."""
    memory = Stores.in_memory_key_value_store
    builders: list[StoreBuilder[StateStore]] = [
        Stores.timestamped_key_value_store_builder(memory("counts"), serdes.STRING, serdes.LONG),
        Stores.key_value_store_builder(memory("numbers"), serdes.LONG, serdes.BYTES),
        Stores.key_value_store_builder(memory("objects"), serdes.JSON, COMPLEX),
        Stores.key_value_store_builder(memory("ids"), serdes.UUID, serdes.JSON),
        Stores.key_value_store_builder(memory("raw"), serdes.BYTES, serdes.STRING),
        Stores.timestamped_window_store_builder(Stores.in_memory_window_store("windows", 10_000, 10), serdes.STRING, serdes.LONG),
        Stores.session_store_builder(Stores.in_memory_session_store("sessions", 10_000), serdes.STRING, serdes.LONG),
        Stores.versioned_key_value_store_builder(
            Stores.in_memory_versioned_key_value_store("versions", 10_000), serdes.STRING, serdes.LONG
        ),
        OwnBuilder("own", "sqlite"),
    ]
    made = Topology().add_source("source", "in", key_serde=serdes.STRING, value_serde=serdes.STRING)
    made.add_processor("all", Processor, "source")
    for builder in builders:
        made.add_state_store(builder, "all")
    everywhere = Stores.key_value_store_builder(memory("everywhere"), serdes.STRING, serdes.STRING)
    return made.add_global_store(everywhere, "global", "places", "fill", Processor, key_serde=serdes.STRING, value_serde=serdes.STRING)


class Instance:
    """Client of the endpoint: partition 0 is processed here, of partition 1 there is a copy, 2 is elsewhere, where 1 is processed."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self.config = StreamsConfig(
            {"application.id": "app", "bootstrap.servers": "x:1", "application.server": str(HERE), "http.port": 1, **settings}
        )
        self.state = State.RUNNING
        self.ms_since_progress = 5
        self.topology = topology().resolved(self.config)
        self.restoring = False
        self.held = threading.Event()
        self.held.set()
        self.asked: list[StoreQueryParameters] = []
        self.kinds = {0: TaskKind.ACTIVE, 1: TaskKind.STANDBY}
        [part] = self.topology.sub_topologies()
        self.part = part.id
        self.parts = {number: self._opened(part.stores, folder / f"{self.part}_{number}") for number in self.kinds}
        [everywhere] = self.topology.global_stores()
        self.parts[-1] = self._opened([everywhere.store], folder / "global")
        self.fleet: Fleet | None = self.known(self._grant("there", ["1", "2"]))

    def _opened(self, builders: Iterable[StoreBuilder[StateStore]], folder: Path) -> dict[str, EngineStore]:
        folder.mkdir()
        stores = {builder.name: build_store(builder) for builder in builders}
        for store in stores.values():
            store.open(folder, StoreContext("app", folder))
        return stores

    def _grant(self, name: str, active: list[str], standby: list[str] | None = None) -> Grant:
        tasks = [f"{self.part}_{number}" for number in active]
        copies = [f"{self.part}_{number}" for number in standby or []]
        return Grant(member_id=name, incarnation=1, instance=name, active=tasks, standby=copies)

    def known(self, *grants: Grant) -> Fleet:
        report = TaskReport(kind=TaskKind.STANDBY, state=TaskState.RUNNING, offset_sum=0, end_sum=0, lag=17)
        active = TaskReport(kind=TaskKind.ACTIVE, state=TaskState.RUNNING, offset_sum=0, end_sum=0, lag=3)
        tasks = {"here": {f"{self.part}_0": active, f"{self.part}_1": report}, "there": {f"{self.part}_2": active}}
        members = tuple(
            Member(
                instance=name,
                incarnation=1,
                transactional_id="",
                host=name,
                pid=1,
                member_id=name,
                application_server=str(at),
                tasks=tasks[name],
            )
            for name, at in (("here", HERE), ("there", THERE))
        )
        own = self._grant("here", ["0"], ["1"])
        return Fleet(
            instance="here", members=members, assignment=Assignment(leader="x", grants=[own, *grants]), partitions={"in": PARTITIONS}
        )

    def metrics(self) -> Mapping[MetricName, float]:
        metrics = Metrics(client_id="here")
        metrics.counter("process-total", TASK, task_id="0_0").add(7)
        return metrics.values()

    def metadata_for_local_threads(self) -> set[ThreadMetadata]:
        if self.state is State.NOT_RUNNING:
            raise StreamsError("the client is not running")
        tasks = {kind: frozenset(self._task(number) for number, found in self.kinds.items() if found is kind) for kind in TaskKind}
        return {ThreadMetadata("t-1", "RUNNING", tasks[TaskKind.ACTIVE], tasks[TaskKind.STANDBY], tasks[TaskKind.LEARNER])}

    def _task(self, number: int) -> TaskMetadata:
        at = TopicPartition("in", number)
        offsets = {at: 12} if number == 0 else {}
        return TaskMetadata(TaskId(self.part, number), frozenset({at}), offsets, offsets, None, self.kinds[number], TaskState.RUNNING)

    def store(self, parameters: StoreQueryParameters) -> StoreQuery:
        self.asked.append(parameters)
        self.held.wait(20)
        if self.restoring and not parameters.stale_stores:
            raise InvalidStateStoreError(f"store {parameters.store_name!r} is still being restored (0_0)")
        number = -1 if parameters.partition is None else parameters.partition
        return StoreQuery(parameters, lambda: [self.parts[number][parameters.store_name]], lambda error: None)

    def put(self, number: int, name: str, *entries: tuple[object, ...]) -> None:
        store = self.parts[number][name]
        for entry in entries:
            store.put(*entry)  # type: ignore[attr-defined]
        store.commit({})


class Http:
    """An endpoint that is up, and requests to it."""

    def __init__(self, instance: Instance, token: str | None = None) -> None:
        places = StreamsMetadataState(instance.topology, HERE, lambda: instance.fleet)
        self.endpoint = HttpEndpoint(Routes(instance, places, lambda: instance.fleet), "127.0.0.1", 0, token)

    def get(
        self, path: str, headers: Mapping[str, str] | None = None, method: str = "GET"
    ) -> tuple[int, dict[str, object], dict[str, str]]:
        """Status, body and headers."""
        connection = HTTPConnection("127.0.0.1", self.endpoint.port, timeout=20)
        try:
            connection.request(method, path, headers=dict(headers or {}))
            answer = connection.getresponse()
            return answer.status, msgspec.json.decode(answer.read()), dict(answer.getheaders())
        finally:
            connection.close()

    def ok(self, path: str) -> dict[str, object]:
        status, body, _ = self.get(path)
        assert status == 200, body
        return body

    def error(self, path: str, status: int) -> str:
        found, body, _ = self.get(path)
        assert found == status, body
        return str(body["error"])


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[Instance]:
    made = Instance(tmp_path)
    yield made
    for stores in made.parts.values():
        for store in stores.values():
            store.close()


@contextmanager
def up(instance: Instance, token: str | None = None) -> Iterator[Http]:
    made = Http(instance, token)
    try:
        yield made
    finally:
        made.endpoint.close()


@pytest.fixture
def http(instance: Instance) -> Iterator[Http]:
    with up(instance) as made:
        yield made


def keys_of(partition: int, count: int = 1) -> list[str]:
    """Keys of a partition, in the order of their bytes."""
    found = [key for key in (f"k{n:04d}" for n in range(100 * PARTITIONS)) if partition_for(key.encode(), PARTITIONS) == partition]
    return found[:count]


[K0], [K1], [K2] = (keys_of(number) for number in range(PARTITIONS))


# -- one key ---------------------------------------------------------------------------------------------------------------------


def test_a_key_that_is_here_is_given_with_its_time_and_place(instance: Instance, http: Http) -> None:
    instance.put(0, "counts", (K0, ValueAndTimestamp(42, 5)))
    place = {"store": "counts", "partition": 0, "kind": "ACTIVE", "lag": 0}
    assert http.ok(f"/stores/counts/get?key={K0}") == {**place, "value": 42, "timestamp": 5}
    absent = next(key for key in keys_of(0, 2) if key != K0)
    assert http.ok(f"/stores/counts/get?key={absent}") == {**place, "value": None}
    assert instance.asked[-1] == StoreQueryParameters("counts", 0, False, QueryableStoreTypes.timestamped_key_value_store())


def test_a_key_that_is_elsewhere_is_a_redirect_to_its_owner(instance: Instance, http: Http) -> None:
    for key, number in ((K1, 1), (K2, 2)):
        status, body, headers = http.get(f"/stores/counts/get?key={key}&format=text")
        assert (status, headers["Location"]) == (307, f"//there:8080/stores/counts/get?key={key}&format=text")
        assert (body["owner"], body["partition"]) == ("there:8080", number) and "ask there:8080" in str(body["error"])
    assert instance.asked == []


def test_a_copy_answers_if_it_is_asked_to_and_says_how_far_it_is_behind(instance: Instance, http: Http) -> None:
    instance.put(1, "counts", (K1, ValueAndTimestamp(9, 5)))
    assert http.ok(f"/stores/counts/get?key={K1}&stale=true") == {
        "store": "counts", "partition": 1, "kind": "STANDBY", "lag": 17, "value": 9, "timestamp": 5,
    }  # fmt: skip
    assert instance.asked[-1].stale_stores
    assert http.get(f"/stores/counts/get?key={K2}&stale=true")[0] == 307
    assert http.get(f"/stores/counts/get?key={K1}&stale=false")[0] == 307


def test_a_key_without_an_owner_at_the_moment_is_to_be_requested_again(instance: Instance, http: Http) -> None:
    for fleet in (instance.known(), None):
        instance.fleet = fleet
        status, body, headers = http.get(f"/stores/counts/get?key={K2}")
        assert (status, headers["Retry-After"]) == (503, "1") and "ask again" in str(body["error"])


def test_a_copy_that_is_elsewhere_stands_in_for_an_owner_that_is_gone(instance: Instance, http: Http) -> None:
    instance.fleet = instance.known(instance._grant("there", [], ["2"]))
    status, body, _ = http.get(f"/stores/counts/get?key={K2}")
    assert (status, body["standbys"]) == (503, ["there:8080"])
    assert http.get(f"/stores/counts/get?key={K2}&stale=true")[2]["Location"].startswith("//there:8080/")


def test_a_task_that_is_about_to_open_here_is_no_reason_to_go_elsewhere(instance: Instance, http: Http) -> None:
    instance.kinds = {}
    assert "is moving to this instance" in http.error(f"/stores/counts/get?key={K0}", 503)


def test_a_store_that_is_restored_is_refused_unless_it_may_be_stale(instance: Instance, http: Http) -> None:
    instance.put(0, "counts", (K0, ValueAndTimestamp(42, 5)))
    instance.restoring = True
    status, body, headers = http.get(f"/stores/counts/get?key={K0}")
    assert (status, headers["Retry-After"]) == (503, "1") and "still being restored" in str(body["error"])
    assert "still being restored" in http.error("/stores/counts/range", 503)
    assert http.ok(f"/stores/counts/get?key={K0}&stale=true")["value"] == 42


def test_the_owner_of_a_key_is_returned_without_reading_it(instance: Instance, http: Http) -> None:
    assert http.ok(f"/stores/counts/owner?key={K2}") == {"store": "counts", "partition": 2, "active": "there:8080", "standbys": []}
    assert http.ok("/stores/counts/owner?partition=0") == {"store": "counts", "partition": 0, "active": "here:8080", "standbys": []}
    assert http.ok("/stores/counts/owner?partition=1")["standbys"] == ["here:8080"]
    assert "key and partition" in http.error("/stores/counts/owner", 400)
    assert "has partitions 0 to 2: there is no 3" in http.error("/stores/counts/owner?partition=3", 400)
    assert "has no partitions" in http.error("/stores/everywhere/owner?partition=0", 400)
    assert instance.asked == []


# -- keys and values as text -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("store", "key", "texts"),
    [
        ("numbers", 7, [("text", "7"), ("json", "7"), ("base64", "AAAAAAAAAAc=")]),
        ("objects", {"a": 1}, [("json", '{"a":1}'), ("json", ' {"a" : 1}'), ("base64", "eyJhIjoxfQ")]),
        ("objects", "EWR", [("text", "EWR"), ("json", '"EWR"')]),
        ("ids", "00000000-0000-0000-0000-000000000001", [("text", "00000000-0000-0000-0000-000000000001")]),
        ("raw", b"\xff\xfe", [("base64", "//4="), ("base64", "__4=")]),
        ("raw", b"abc", [("text", "abc")]),
        ("counts", "7", [("text", "7"), ("json", '"7"'), ("base64", "Nw==")]),
        ("counts", "a/b é&=+", [("text", "a/b é&=+")]),
    ],
)
def test_a_key_is_text_json_or_base64(http: Http, store: str, key: object, texts: list[tuple[str, str]]) -> None:
    serde = {"numbers": serdes.LONG, "objects": serdes.JSON, "raw": serdes.BYTES}.get(store, serdes.STRING)
    wanted = partition_for(serde.serializer("")(key) or b"", PARTITIONS)
    for form, text in texts:
        assert http.ok(f"/stores/{store}/owner?key={quote(text, safe='')}&format={form}")["partition"] == wanted, (form, text)


@pytest.mark.parametrize(
    ("store", "query", "said"),
    [
        ("numbers", "key=seven", "'seven' .text. is not a key that serde LONG can write"),
        ("numbers", "key=%7B%7D&format=json", "not a key that serde LONG can write"),
        ("numbers", "key=7+&format=json&key=8", "given twice"),
        ("numbers", "key=%7B&format=json", "is not JSON"),
        ("numbers", "key=a&format=base64", "is not base64"),
        ("numbers", "key=AAAA&format=base64", "not a key that serde LONG can read"),
        ("objects", f"key={'[' * 9_000}&format=json", "is not JSON"),
        ("objects", "key=null&format=json", "must not be null"),
        ("counts", "key=x&format=xml", "format = 'xml' must be one of text, json, base64"),
        ("counts", "key=%FF", "cannot be read"),
        ("counts", "", "key is missing"),
        ("counts", "key=x&stale=maybe", "stale = 'maybe' must be true or false"),
        ("counts", "key=x&as_of=5", "keeps no versions"),
        ("counts", "key=x&limit=5", "unknown parameter limit: known here are key, format, stale, isolation, as_of"),
        ("counts", "key=x&isolation=dirty", "isolation = 'dirty' must be read_committed or read_uncommitted"),
        ("versions", "key=x&as_of=soon", "as_of = 'soon' must be a whole number"),
    ],
)
def test_bad_input_is_refused_with_the_valid_values(http: Http, store: str, query: str, said: str) -> None:
    status, body, _ = http.get(f"/stores/{store}/get?{query}")
    assert status == 400
    assert re.search(said, str(body["error"])), body


def test_values_that_json_cannot_say_are_base64(instance: Instance, http: Http) -> None:
    number = next(n for n in range(50) if partition_for(serdes.LONG.serializer("")(n) or b"", PARTITIONS) == 0)
    key = next(f"o{n}" for n in range(50) if partition_for(f'"o{n}"'.encode(), PARTITIONS) == 0)
    instance.put(0, "numbers", (number, b"\xff\x00"))
    instance.put(0, "objects", (key, complex(1, 2)))
    assert http.ok(f"/stores/numbers/get?key={number}")["value"] == {"base64": "/wA="}
    written = cast(dict[str, str], http.ok(f"/stores/objects/get?key={key}")["value"])["base64"]
    assert msgspec.json.decode(base64.b64decode(written)) == [1.0, 2.0]


# -- rows ------------------------------------------------------------------------------------------------------------------------


def rows(found: dict[str, object]) -> list[dict[str, object]]:
    return cast(list[dict[str, object]], found["rows"])


def pages(http: Http, path: str, between: Callable[[], None] = lambda: None) -> list[list[object]]:
    """The keys of each page."""
    found: list[list[object]] = []
    following = ""
    while True:
        answer = http.ok(f"{path}{following}")
        found.append([row["key"] for row in rows(answer)])
        if answer["next"] is None:
            return found
        following = f"&page={quote(str(answer['next']))}"
        between()


def test_rows_come_in_pages_with_the_partitions_that_are_elsewhere(instance: Instance, http: Http) -> None:
    keys = keys_of(0, 5)
    instance.put(0, "counts", *((key, ValueAndTimestamp(n, 5)) for n, key in enumerate(keys)))
    whole = http.ok("/stores/counts/range")
    assert rows(whole)[1] == {"key": keys[1], "value": 1, "timestamp": 5}
    assert whole["parts"] == [{"partition": 0, "kind": "ACTIVE", "lag": 0}] and whole["next"] is None
    assert whole["elsewhere"] == [{"partition": 1, "owner": "there:8080"}, {"partition": 2, "owner": "there:8080"}]
    assert pages(http, "/stores/counts/range?limit=2") == [keys[:2], keys[2:4], keys[4:]]
    assert pages(http, "/stores/counts/range?limit=5") == [keys]
    assert pages(http, f"/stores/counts/range?limit=2&from={keys[1]}&to={keys[3]}") == [keys[1:3], keys[3:4]]
    assert pages(http, "/stores/counts/range?limit=2&reverse=true") == [keys[:2:-1], keys[2:0:-1], keys[:1]]
    assert pages(http, "/stores/counts/range?limit=1&prefix=k000") == [[key] for key in keys if key.startswith("k000")]
    assert [row["key"] for row in rows(http.ok("/stores/counts/range?prefix=azAwMA&format=base64"))] == [
        key for key in keys if key.startswith("k000")
    ]


def test_pages_neither_double_nor_hide_rows_that_stay_while_others_come_and_go(instance: Instance, http: Http) -> None:
    keys = keys_of(0, 6)
    instance.put(0, "counts", *((key, ValueAndTimestamp(1, 5)) for key in keys))

    def change() -> None:
        instance.put(0, "counts", ("a", ValueAndTimestamp(1, 5)), (keys[1], None))

    assert pages(http, "/stores/counts/range?limit=2", change) == [keys[:2], keys[2:4], keys[4:]]


def test_the_parts_of_several_partitions_come_one_after_the_other(instance: Instance, http: Http) -> None:
    first, second = keys_of(0, 3), keys_of(1, 3)
    for number, keys in enumerate((first, second)):
        instance.put(number, "counts", *((key, ValueAndTimestamp(1, 5)) for key in keys))
    assert pages(http, "/stores/counts/range?limit=2&stale=true") == [first[:2], [first[2], second[0]], second[1:]]
    assert pages(http, "/stores/counts/range?partition=1&stale=true") == [second]
    assert http.get("/stores/counts/range?partition=1")[2]["Location"] == "//there:8080/stores/counts/range?partition=1"
    assert "has partitions 0 to 2: there is no 3" in http.error("/stores/counts/range?partition=3", 400)


def test_a_page_whose_partition_has_moved_away_starts_over(instance: Instance, http: Http) -> None:
    instance.put(0, "counts", *((key, ValueAndTimestamp(1, 5)) for key in keys_of(0, 3)))
    following = quote(str(http.ok("/stores/counts/range?limit=1")["next"]))
    instance.kinds = {}
    assert "begin again" in http.error(f"/stores/counts/range?limit=1&page={following}", 409)
    assert "is not a page" in http.error("/stores/counts/range?page=e30", 400)
    assert "is not base64" in http.error("/stores/counts/range?page=a", 400)


def test_a_page_has_a_size(instance: Instance, http: Http) -> None:
    key = next(n for n in range(50))
    instance.put(0, "numbers", *((key + n, b"x" * (3 << 20)) for n in range(3)))
    answer = http.ok("/stores/numbers/range")
    assert len(rows(answer)) == 1 and answer["next"] is not None
    for limit in ("0", "1001", "-1", "many", "9" * 30):
        assert "limit = " in http.error(f"/stores/counts/range?limit={limit}", 400)


def test_windows(instance: Instance, http: Http) -> None:
    instance.put(0, "windows", *((K0, ValueAndTimestamp(n, 5), n * 10) for n in range(5)))
    assert http.ok(f"/stores/windows/fetch?key={K0}&time=20")["value"] == 2
    assert http.ok(f"/stores/windows/fetch?key={K0}&time=21")["value"] is None
    found = rows(http.ok(f"/stores/windows/fetch?key={K0}&from=10&to=20"))
    assert found == [{"key": K0, "start": n * 10, "end": n * 10 + 10, "value": n, "timestamp": 5} for n in (1, 2)]
    assert [row["start"] for row in rows(http.ok(f"/stores/windows/fetch?key={K0}"))] == [0, 10, 20, 30, 40]
    assert [row["start"] for row in rows(http.ok("/stores/windows/fetch?from=30"))] == [30, 40]
    assert [row["start"] for row in rows(http.ok("/stores/windows/fetch?to=10&reverse=true"))] == [10, 0]
    assert [len(page) for page in pages(http, "/stores/windows/fetch?limit=2")] == [2, 2, 1]
    assert http.get(f"/stores/windows/fetch?key={K2}&from=10")[0] == 307
    assert "give key too" in http.error("/stores/windows/fetch?time=20", 400)
    assert "is a window store: read it by fetch" in http.error(f"/stores/windows/get?key={K0}", 400)
    assert "leave to, limit out" in http.error(f"/stores/windows/fetch?key={K0}&time=0&to=5&limit=1", 400)


def test_sessions(instance: Instance, http: Http) -> None:
    instance.put(0, "sessions", *((Windowed(K0, SessionWindow(n * 10, n * 10 + 5)), n) for n in range(3)))
    assert rows(http.ok(f"/stores/sessions/fetch?key={K0}&from=16")) == [{"key": K0, "start": 20, "end": 25, "value": 2}]
    assert [row["value"] for row in rows(http.ok(f"/stores/sessions/fetch?key={K0}&from=15&to=20"))] == [1, 2]
    assert [row["value"] for row in rows(http.ok("/stores/sessions/fetch?reverse=true"))] == [2, 1, 0]
    assert [row["value"] for row in rows(http.ok("/stores/sessions/fetch?to=15"))] == [0, 1]
    assert "sessions by from and to" in http.error(f"/stores/sessions/fetch?key={K0}&time=10", 400)


def test_versions(instance: Instance, http: Http) -> None:
    instance.put(0, "versions", (K0, 1, 10), (K0, 2, 20))
    found = http.ok(f"/stores/versions/get?key={K0}")
    assert (found["value"], found["timestamp"], found["valid_to"]) == (2, 20, None)
    found = http.ok(f"/stores/versions/get?key={K0}&as_of=15")
    assert (found["value"], found["timestamp"], found["valid_to"]) == (1, 10, 20)
    assert rows(http.ok("/stores/versions/range")) == [{"key": K0, "value": 2, "timestamp": 20, "valid_to": None}]
    assert "read as a whole only: leave prefix out" in http.error("/stores/versions/range?prefix=k", 400)


def test_a_global_store_is_read_at_any_instance(instance: Instance, http: Http) -> None:
    instance.put(-1, "everywhere", (K2, "x"))
    assert http.ok(f"/stores/everywhere/get?key={K2}")["value"] == "x"
    assert [row["key"] for row in rows(http.ok("/stores/everywhere/range"))] == [K2]
    assert http.ok(f"/stores/everywhere/owner?key={K2}") == {"store": "everywhere", "partition": -1, "active": "here:8080", "standbys": []}
    assert "is global, and has no partitions" in http.error("/stores/everywhere/range?partition=0", 400)


# -- what is not there -----------------------------------------------------------------------------------------------------------


def test_unknown_paths_stores_and_reads_are_refused_with_the_known_ones(http: Http) -> None:
    assert "store 'count' is unknown: the topology has counts, everywhere," in http.error("/stores/count/get?key=x", 404)
    assert "there is nothing at /store: known are /health" in http.error("/store", 404)
    assert "there is nothing at /stores/counts/get/x" in http.error("/stores/counts/get/x", 404)
    assert "no read 'put': known are owner, get, range, fetch" in http.error("/stores/counts/put", 404)
    assert "a store of your own" in http.error("/stores/own/range", 400)
    assert "read it by get or range" in http.error("/stores/counts/fetch?key=x", 400)
    assert "unknown parameter x" in http.error("/health?x=1", 400)


# -- the instance ----------------------------------------------------------------------------------------------------------------


def test_health_is_about_life_and_readiness_about_whole_stores(instance: Instance, http: Http) -> None:
    assert http.ok("/health") == {"alive": True, "state": "RUNNING", "ms_since_progress": 5}
    assert http.ok("/ready") == {"ready": True, "state": "RUNNING"}
    for instance.state, alive in ((State.RESTORING, 200), (State.REBALANCING, 200), (State.PENDING_SHUTDOWN, 200), (State.ERROR, 503)):
        assert (http.get("/health")[0], http.get("/ready")[0]) == (alive, 503)
    instance.state, instance.ms_since_progress = State.RUNNING, 300_001
    assert http.get("/health")[1] == {"alive": False, "state": "RUNNING", "ms_since_progress": 300_001}
    assert http.get("/health")[0] == 503


def test_tasks_metrics_stores_and_the_fleet_are_returned(instance: Instance, http: Http) -> None:
    connection = HTTPConnection("127.0.0.1", http.endpoint.port, timeout=20)
    connection.request("GET", "/metrics")
    text = connection.getresponse()
    assert text.getheader("Content-Type", "").startswith("text/plain; version=")
    assert 'kafka_streams_stream_task_metrics_process_total{client_id="here",task_id="0_0"} 7.0' in text.read().decode()
    connection.close()
    [thread] = cast(list[dict[str, object]], http.ok("/tasks"))
    first, second = cast(list[dict[str, object]], thread["tasks"])
    assert (first["task"], first["kind"], first["committed_offsets"]) == (f"{instance.part}_0", "ACTIVE", {"in-0": 12})
    assert (second["task"], second["kind"]) == (f"{instance.part}_1", "STANDBY")
    fleet = http.ok("/fleet")
    assert (fleet["application"], fleet["instance"]) == ("app", "here")
    here, there = cast(list[dict[str, object]], fleet["members"])
    assert (here["application_server"], there["instance"]) == ("here:8080", "there")
    assert cast(dict[str, object], here["tasks"])[f"{instance.part}_1"] == {"kind": "STANDBY", "state": "RUNNING", "lag": 17}
    stores = {store["store"]: store for store in cast(list[dict[str, object]], http.ok("/stores"))}
    assert (stores["windows"]["kind"], stores["counts"]["key_serde"], stores["everywhere"]["global"]) == ("window", "STRING", True)
    assert http.ok("/stores/counts") == stores["counts"]
    assert [part["partition"] for part in cast(list[dict[str, object]], stores["counts"]["here"])] == [0, 1]
    instance.state = State.NOT_RUNNING
    assert "not running" in http.error("/tasks", 503)


# -- requests --------------------------------------------------------------------------------------------------------------------


def test_without_the_token_only_health_is_returned(instance: Instance) -> None:
    with up(instance, TOKEN) as http:
        for path in ("/tasks", "/metrics", "/fleet", "/stores", f"/stores/counts/get?key={K0}", "/nothing"):
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}, {"Authorization": "Bearer s3créé"}):
                status, body, answered = http.get(path, headers)
                assert (status, answered["WWW-Authenticate"]) == (401, "Bearer") and "http.token" in str(body["error"])
        for scheme in ("Bearer", "bearer"):
            assert http.get("/tasks", {"Authorization": f"{scheme} {TOKEN}"})[0] == 200
        assert http.get("/tasks", {"Authorization": f"Basic {TOKEN}"})[0] == 401
        assert http.get("/health")[0] == 200 and http.get("/ready")[0] == 200
        assert instance.asked == []


def test_only_reading_is_possible(http: Http) -> None:
    for method in ("POST", "PUT", "DELETE"):
        status, body, headers = http.get("/stores", method=method)
        assert (status, headers["Allow"]) == (405, "GET, HEAD") and "GET" in str(body["error"])
    connection = HTTPConnection("127.0.0.1", http.endpoint.port, timeout=20)
    connection.request("GET", "/health", body=b"x")
    assert connection.getresponse().status == 400
    connection.close()


def test_head_is_get_without_the_body(http: Http) -> None:
    connection = HTTPConnection("127.0.0.1", http.endpoint.port, timeout=20)
    for path, status in (("/health", 200), ("/nothing", 404), ("/health", 200)):  # by one connection: a body would be the next answer
        connection.request("HEAD", path)
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (status, b"") and int(answer.headers["Content-Length"]) > 0
    connection.close()


def raw(http: Http, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", http.endpoint.port), timeout=20) as connection:
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(65_536), b""))


def test_requests_that_are_too_long_or_no_http_are_refused_in_json(http: Http) -> None:
    assert "16384 are the most" in http.error(f"/stores/counts/get?key={'x' * 20_000}", 414)
    for request, status in ((b"GET / HTTP/nine\r\n\r\n", b"400"), (b"GET /" + b"x" * (65_537 - 5), b"414")):
        answer = raw(http, request)
        assert answer.startswith(b"HTTP/1.1 " + status) and b'{"error":' in answer
    assert b'{"error":' in raw(http, b"GET http://[/ HTTP/1.1\r\nConnection: close\r\n\r\n")


def test_more_readers_than_there_is_room_for_are_asked_to_come_again(
    instance: Instance, http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance.held.clear()
    readers = [threading.Thread(target=http.get, args=(f"/stores/counts/get?key={K0}",)) for _ in range(server.READS_AT_ONCE)]
    for reader in readers:
        reader.start()
    try:
        wait_until(lambda: len(instance.asked) == server.READS_AT_ONCE, what="all readers")
        assert "ask again" in http.error(f"/stores/counts/get?key={K0}", 503)
        assert http.ok("/health")["alive"]
    finally:
        instance.held.set()
        for reader in readers:
            reader.join()
    http.ok(f"/stores/counts/get?key={K0}")


def test_of_too_many_connections_the_one_that_has_been_silent_longest_is_cut(http: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MOST_CONNECTIONS", 3)
    first, second, *_ = connections = [HTTPConnection("127.0.0.1", http.endpoint.port, timeout=20) for _ in range(4)]
    for connection in (first, second, connections[2], first):
        connection.request("GET", "/health")
        assert connection.getresponse().read()
    connections[3].request("GET", "/health")
    assert connections[3].getresponse().read()
    assert second.sock is not None and second.sock.recv(1) == b""
    first.request("GET", "/health")
    assert first.getresponse().read()
    for connection in connections:
        connection.close()


REQUEST = b"GET /health HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.parametrize(
    ("sent", "trickled"),
    [(b"", b"G"), (REQUEST, b"X: y\r\n"), (REQUEST + b"\r\n" + REQUEST, b"x")],
    ids=["of the request line", "of headers", "of a second request"],
)
@pytest.mark.parametrize("metrics_alone", [False, True])
def test_a_request_that_trickles_in_is_cut_at_its_deadline(
    http: Http, monkeypatch: pytest.MonkeyPatch, sent: bytes, trickled: bytes, metrics_alone: bool
) -> None:
    """Each byte is in time for the socket; the whole request is not."""
    monkeypatch.setattr(server, "REQUEST_SECONDS", 0.3)
    endpoint = metrics_server(dict, 0) if metrics_alone else http.endpoint
    with socket.create_connection(("127.0.0.1", endpoint.port)) as connection:
        connection.settimeout(0.02)
        connection.sendall(sent)
        wait_until(lambda: ended(connection, trickled), what="the end of the connection")
    if metrics_alone:
        endpoint.close()
    assert http.ok("/health")["alive"]


def ended(connection: socket.socket, trickled: bytes) -> bool:
    """True once the other side has closed; until then one more piece is sent."""
    try:
        connection.sendall(trickled)
        return connection.recv(65_536) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


def test_an_answer_that_is_fetched_byte_by_byte_is_cut_at_its_deadline(http: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REQUEST_SECONDS", 0.3)
    monkeypatch.setattr(Routes, "answer", lambda routes, target: Answer(200, b"x" * (64 << 20)))
    before = threading.active_count()
    with socket.create_connection(("127.0.0.1", http.endpoint.port), timeout=20) as connection:
        connection.sendall(REQUEST + b"\r\n")
        assert connection.recv(1)
        assert threading.active_count() > before

        def fetched() -> bool:
            connection.recv(1024)
            return threading.active_count() == before

        wait_until(fetched, what="the end of the answer's thread")


def test_a_slow_body_is_not_waited_for(http: Http) -> None:
    """Nothing that is asked here has one: the answer comes before it, and ends the connection."""
    assert raw(http, b"POST /health HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n{").startswith(b"HTTP/1.1 405 ")
    assert raw(http, REQUEST + b"Content-Length: 1000000\r\n\r\n{").startswith(b"HTTP/1.1 400 ")


def test_an_internal_error_is_reported_and_leaves_the_endpoint_up(instance: Instance, http: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance, "store", lambda parameters: 1 // 0)
    assert "see the instance's log" in http.error(f"/stores/counts/get?key={K0}", 500)
    assert http.ok("/health")["alive"]


def test_a_client_that_hangs_up_is_one_line_of_the_log(instance: Instance, http: Http, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, server.logger.name)
    instance.held.clear()
    with socket.create_connection(("127.0.0.1", http.endpoint.port), timeout=20) as connection:
        for _ in range(2):  # the client of the second has gone
            connection.sendall(f"GET /stores/counts/get?key={K0} HTTP/1.1\r\n\r\n".encode())
        wait_until(lambda: bool(instance.asked), what="the request")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    instance.held.set()
    (record,) = wait_until(lambda: [found for found in caplog.records if "hung up" in found.getMessage()], what="the line")
    assert record.exc_info is None and record.levelno == logging.INFO


def test_a_connection_serves_several_requests_and_is_cut_at_the_end(instance: Instance) -> None:
    with up(instance) as http:
        connection = HTTPConnection("127.0.0.1", http.endpoint.port, timeout=20)
        for _ in range(2):
            connection.request("GET", "/health")
            assert connection.getresponse().read()
        held = connection.sock
        assert held is not None
    assert held.recv(1) == b""
    connection.close()


def test_a_port_in_use_is_named(instance: Instance) -> None:
    with up(instance) as http:
        places = StreamsMetadataState(instance.topology, HERE, lambda: None)
        with pytest.raises(StreamsError, match=rf"http.port: cannot listen on 127.0.0.1:{http.endpoint.port} .*choose another http.port"):
            HttpEndpoint(Routes(instance, places, lambda: None), "127.0.0.1", http.endpoint.port, None)
        with pytest.raises(StreamsError, match=r"http\.port: cannot listen on no\.such\.host\.invalid"):
            HttpEndpoint(Routes(instance, places, lambda: None), "no.such.host.invalid", 0, None)
