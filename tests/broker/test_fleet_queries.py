"""Interactive queries over several instances: each of them knows the owner of a key, and redirects clients to it over HTTP."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import cast
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import msgspec
import pytest
from typer.testing import CliRunner, Result

from penstock import (
    Consumed,
    HostInfo,
    KafkaStreams,
    KeyQueryMetadata,
    Materialized,
    StoreQueryParameters,
    StreamsBuilder,
    Topology,
    serdes,
)
from penstock.orchestration.cli import app
from penstock.orchestration.embedded.ports import free_port
from penstock.runtime.kafka.log_reader import LogReader, Poll
from penstock.runtime.model.errors import InvalidStateStoreError, StreamsError
from penstock.runtime.model.states import State
from penstock.runtime.serdes.murmur import partition_for
from tests.support import Kafka, wait_until
from tests.support.engine import client, reaches

Topic = Callable[..., str]
PARTITIONS = 6
KEYS = [f"k{n:02d}" for n in range(40)]
TOKEN = "for the test"


def counts(source: str, places: str) -> Topology:
    """Return a topology that counts per key, with a global table."""
    builder = StreamsBuilder()
    builder.stream(source, Consumed(serdes.STRING, value=serdes.STRING)).group_by_key().count(Materialized("counts"))
    builder.global_table(places, Consumed(serdes.STRING, value=serdes.STRING), Materialized("places"))
    return builder.build()


class Fleet:
    """Instances of one application, in this process."""

    def __init__(
        self, broker: Kafka, topology: Topology, application_id: str, folder: Path, settings: dict[str, object], source: str
    ) -> None:
        self._broker, self._topology, self._application, self._folder = broker, topology, application_id, folder
        self._settings = settings
        self.source = source
        self.instances: dict[str, KafkaStreams] = {}

    def start(self, name: str, **settings: object) -> KafkaStreams:
        folder = self._folder / name
        folder.mkdir(exist_ok=True)
        own = {"client.id": name, "http.port": free_port(), "http.token": TOKEN, **self._settings, **settings}
        streams = client(self._broker, self._topology, self._application, folder, **own)
        self.instances[name] = streams
        streams.start()
        return streams

    def running(self, *names: str) -> list[KafkaStreams]:
        """Start instances, and wait until the tasks are shared equally: until then some may be on their way, without an owner."""
        made = [self.start(name) for name in names]
        share = PARTITIONS // len(made)
        wait_until(lambda: [active(each) for each in made] == [share] * len(made), 60, "an equal share for each")
        return made

    def close(self) -> None:
        for streams in self.instances.values():
            streams.close(0)


def active(streams: KafkaStreams) -> int:
    """Return the number of tasks that a client runs."""
    return sum(len(thread.active_tasks) for thread in streams.metadata_for_local_threads()) if streams.state is State.RUNNING else 0


@pytest.fixture
def fleet(broker: Kafka, topic: Topic, application_id: str, state_dir: Path) -> Iterator[Callable[..., Fleet]]:
    with ExitStack() as stack:

        def make(**settings: object) -> Fleet:
            source, places = topic("in", partitions=PARTITIONS), topic("places", config={"cleanup.policy": "compact"})
            broker.produce(source, [(key, "v") for key in KEYS for _ in range(int(key[1:]) + 1)])
            broker.produce(places, [("EWR", "Newark")])
            made = Fleet(broker, counts(source, places), application_id, state_dir, settings, source)
            stack.callback(made.close)
            return made

        yield make


def at(streams: KafkaStreams) -> HostInfo:
    found = streams.config.application_server
    assert found is not None
    return found


def get(streams: KafkaStreams, path: str) -> tuple[int, dict[str, object]]:
    """Return status and body, after redirects (which urllib follows, with the token)."""
    request = Request(f"http://{at(streams)}{path}", headers={"Authorization": f"Bearer {TOKEN}"})
    try:
        with urlopen(request, timeout=20) as answer:
            return answer.status, msgspec.json.decode(answer.read())
    except HTTPError as error:
        with error:
            return error.code, msgspec.json.decode(error.read())


def value(streams: KafkaStreams, key: str, more: str = "") -> object:
    """Return a count from an instance; None if it has none, or redirects to an instance that has just gone, or, while a task moves, to one
    that redirects back (307: urllib gives up)."""
    try:
        status, body = get(streams, f"/stores/counts/get?key={key}{more}")
    except URLError:
        return None
    assert status in (200, 307, 503), body
    return body["value"] if status == 200 else None


def is_whole(streams: KafkaStreams, more: str = "") -> bool:
    return all(value(streams, key, more) == int(key[1:]) + 1 for key in KEYS)


def knows(streams: KafkaStreams, instances: int) -> bool:
    return len(streams.metadata_for_all_streams_clients()) == instances


def has_no_lag(streams: KafkaStreams, key: str) -> bool:
    return get(streams, f"/stores/counts/get?key={key}&stale=true")[1]["lag"] == 0


def test_every_instance_finds_the_owner_of_every_key(fleet: Callable[..., Fleet]) -> None:
    instances = fleet().running("a", "b", "c")
    by_host = {at(streams): streams for streams in instances}
    for asked in instances:
        wait_until(partial(knows, asked, 3), what="a fleet of three")
        wait_until(partial(is_whole, asked), what="all counts")
    for key in KEYS:
        [found] = {asked.query_metadata_for_key("counts", key, serdes.STRING) for asked in instances}
        assert found.partition == partition_for(key.encode(), PARTITIONS) and found.standby_hosts == frozenset()
        owner = by_host[found.active_host]
        assert owner.store("counts").get(key) == int(key[1:]) + 1
        for other in instances:
            if other is not owner:
                assert other.store("counts").get(key) is None
    everyone = instances[0].metadata_for_all_streams_clients()
    assert {metadata.host_info for metadata in everyone} == set(by_host)
    assert sorted(place.partition for metadata in everyone for place in metadata.topic_partitions) == list(range(PARTITIONS))
    assert instances[1].streams_metadata_for_store("counts") == everyone == instances[2].streams_metadata_for_store("places")
    assert instances[1].query_metadata_for_key("places", "EWR").active_host == at(instances[1])
    assert get(instances[2], "/stores/places/get?key=EWR")[1]["value"] == "Newark"
    whole: dict[object, object] = {}
    for asked in instances:
        rows = get(asked, "/stores/counts/range?limit=1000")[1]["rows"]
        whole.update((row["key"], row["value"]) for row in rows)  # type: ignore[attr-defined]
    assert whole == {key: int(key[1:]) + 1 for key in KEYS}


def penstock(*arguments: str, status: int = 0) -> str:
    """Run a command; return its output."""
    result: Result = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
    assert result.exit_code == status, (result.output, result.exception)
    return result.output


def test_the_command_finds_an_instance_through_kafka_and_the_owner_through_it(
    broker: Kafka, application_id: str, fleet: Callable[..., Fleet]
) -> None:
    instances = fleet().running("a", "b")
    for asked in instances:
        wait_until(partial(is_whole, asked), what="all counts")
    for key in KEYS[:8]:
        assert penstock("query", application_id, "counts", key, "-b", broker.bootstrap_servers, "--token", TOKEN).startswith(
            f"{int(key[1:]) + 1}\n"
        )
    here = ("--url", f"http://{at(instances[0])}", "--token", TOKEN)
    found = json.loads(penstock("query", application_id, "counts", KEYS[7], "--stale", "--json", *here))
    assert (found["value"], found["kind"], found["partition"]) == (8, "ACTIVE", partition_for(KEYS[7].encode(), PARTITIONS))
    assert penstock("query", application_id, "places", '"EWR"', "--format", "json", *here).startswith('"Newark"')
    assert penstock("query", application_id, "counts", "nobody", *here).startswith("null")
    assert "store 'count' is unknown" in penstock("query", application_id, "count", "x", *here, status=1)
    assert "the token is missing or wrong" in penstock("query", application_id, "counts", "x", "-b", broker.bootstrap_servers, status=1)
    assert "http://127.0.0.1:1 does not answer" in penstock("query", application_id, "counts", "x", "--url", "127.0.0.1:1", status=1)


def test_the_endpoint_of_an_instance_answers_for_all_of_its_workers(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workers are processes; the endpoint belongs to their parent."""
    source = topic("in", partitions=PARTITIONS)
    monkeypatch.setenv("TEST_SOURCE", source)
    monkeypatch.setenv("TEST_OUTPUT", topic("out"))
    broker.produce(source, [(key, "v") for key in KEYS for _ in range(int(key[1:]) + 1)])
    settings: dict[str, object] = {"num.stream.threads": 2, "http.port": free_port(), "http.token": TOKEN, "session.timeout.ms": 10_000}
    with client(broker, "tests.broker.worker_apps:counts", application_id, state_dir, **settings) as streams:
        streams.start()
        reaches(streams, State.RUNNING, 60)
        wait_until(partial(is_whole, streams), what="all counts")
        wait_until(lambda: sorted(len(thread["tasks"]) for thread in listed(streams, "/tasks")) == [3, 3], what="two workers")  # type: ignore[arg-type]
        rows = get(streams, "/stores/counts/range?limit=1000")[1]
        assert {row["key"]: row["value"] for row in rows["rows"]} == {key: int(key[1:]) + 1 for key in KEYS}  # type: ignore[attr-defined]
        assert rows["elsewhere"] == [] and len(rows["parts"]) == PARTITIONS  # type: ignore[arg-type]
        assert {streams.query_metadata_for_key("counts", key).active_host for key in KEYS} == {at(streams)}
        [everyone] = streams.metadata_for_all_streams_clients()
        assert len(everyone.topic_partitions) == PARTITIONS


def listed(streams: KafkaStreams, path: str) -> list[dict[str, object]]:
    """Return a response that is a list."""
    return cast(list[dict[str, object]], get(streams, path)[1])


@contextmanager
def read_without_end(streams: KafkaStreams) -> Iterator[list[object]]:
    """Read continuously through one instance; yield the list of wrong results."""
    wrong: list[object] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            for key in KEYS:
                try:
                    found = value(streams, key)
                except Exception as error:  # noqa: BLE001 (the test reports it)
                    wrong.append(error)
                    return
                if found not in (None, int(key[1:]) + 1):
                    wrong.append((key, found))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield wrong
    finally:
        stop.set()
        reader.join()


def test_answers_are_right_or_missing_while_tasks_move_to_a_newcomer_and_back(fleet: Callable[..., Fleet]) -> None:
    made = fleet()
    [first] = made.running("a")
    wait_until(lambda: is_whole(first), what="all counts")
    with read_without_end(first) as wrong:
        second = made.start("b")
        wait_until(lambda: active(second) == PARTITIONS // 2, 60, "half of the tasks")
        wait_until(lambda: is_whole(first) and is_whole(second), what="all counts from both")
        owners = {first.query_metadata_for_key("counts", key).active_host for key in KEYS}
        assert owners == {at(first), at(second)}
        assert second.close(30_000)
        wait_until(lambda: active(first) == PARTITIONS, 60, "all tasks")
        wait_until(lambda: is_whole(first), what="all counts from who is left")
        assert first.query_metadata_for_key("counts", KEYS[0]).active_host == at(first)
    assert wrong == []
    with pytest.raises(StreamsError, match="the client is not running"):
        second.query_metadata_for_key("counts", KEYS[0])


def test_an_instance_that_is_drained_answers_until_its_tasks_are_elsewhere(
    broker: Kafka, fleet: Callable[..., Fleet], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a while the other instances restore nothing: they read no changelog."""
    made = fleet(**{"acceptable.recovery.lag": 0})
    first, second = made.running("a", "b")
    wait_until(partial(is_whole, second), what="all counts")
    go_on, real = threading.Event(), LogReader.poll
    monkeypatch.setattr(LogReader, "poll", lambda self, timeout: real(self, timeout) if go_on.is_set() else Poll())
    own = [key for key in KEYS if first.query_metadata_for_key("counts", key).active_host == at(second)]
    broker.produce(made.source, [(key, "v") for key in KEYS])
    wait_until(lambda: all(value(first, key) == int(key[1:]) + 2 for key in own), what="the last counts")
    closing = threading.Thread(target=second.close, args=(60_000,))
    closing.start()
    wait_until(lambda: second.state is State.PENDING_SHUTDOWN, what="the drain")
    wait_until(lambda: any(thread.learner_tasks for thread in first.metadata_for_local_threads()), what="learners")
    assert [value(streams, key) for key in own for streams in (first, second)] == [int(key[1:]) + 2 for key in own for _ in range(2)]
    assert get(second, "/ready") == (503, {"ready": False, "state": "PENDING_SHUTDOWN"}) and get(second, "/health")[0] == 200
    go_on.set()
    closing.join()
    assert second.state is State.NOT_RUNNING
    wait_until(lambda: all(value(first, key) == int(key[1:]) + 2 for key in KEYS), what="all counts from who is left")


def test_a_client_that_waits_for_its_first_tasks_has_no_metadata(broker: Kafka, topic: Topic, application_id: str, state_dir: Path) -> None:
    source, places = topic("in", partitions=PARTITIONS), topic("places")
    with client(broker, counts(source, places), application_id, state_dir, **{"application.server": "a:1"}) as streams:
        with pytest.raises(StreamsError, match="the client is not running"):
            streams.query_metadata_for_key("counts", "k00")
        streams.start()
        assert streams.query_metadata_for_key("counts", "k00") is KeyQueryMetadata.NOT_AVAILABLE
        assert streams.metadata_for_all_streams_clients() == []
        reaches(streams, State.RUNNING)
        assert wait_until(lambda: streams.query_metadata_for_key("counts", "k00").active_host) == HostInfo("a", 1)
        with pytest.raises(InvalidStateStoreError, match="store 'count' is unknown: the topology has counts, places"):
            streams.query_metadata_for_key("count", "k00")


def test_standbys_answer_readers_that_accept_stale_data(fleet: Callable[..., Fleet]) -> None:
    first, second = fleet(**{"num.standby.replicas": 1, "acceptable.recovery.lag": 0}).running("a", "b")
    for asked in (first, second):
        wait_until(partial(is_whole, asked, "&stale=true"), what="copies")
        for key in KEYS:
            metadata = asked.query_metadata_for_key("counts", key)
            assert {metadata.active_host, *metadata.standby_hosts} == {at(first), at(second)}
            status, body = get(asked, f"/stores/counts/get?key={key}&stale=true")
            assert (status, body["kind"]) == (200, "ACTIVE" if metadata.active_host == at(asked) else "STANDBY")
        copy = next(key for key in KEYS if asked.query_metadata_for_key("counts", key).active_host != at(asked))
        wait_until(partial(has_no_lag, asked, copy), what="a lag of 0")
        assert asked.store("counts").get(copy) is None
        assert asked.store(StoreQueryParameters("counts").enable_stale_stores()).get(copy) == int(copy[1:]) + 1
        assert all(metadata.standby_state_store_names == {"counts"} for metadata in asked.metadata_for_all_streams_clients())


def test_the_endpoint_comes_before_the_tasks_and_goes_with_the_client(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path
) -> None:
    source, places = topic("in", partitions=PARTITIONS), topic("places")
    port = free_port()
    settings: dict[str, object] = {"http.port": port}
    streams = client(broker, counts(source, places), application_id, state_dir, **settings)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        with pytest.raises(StreamsError, match=rf"http\.port: cannot listen on 127\.0\.0\.1:{port}"):
            streams.start()
        assert streams.state is State.CREATED
    streams.start()
    held = HTTPConnection("127.0.0.1", port, timeout=20)
    held.request("GET", "/health")
    assert held.getresponse().read().startswith(b'{"alive":true')
    reaches(streams, State.RUNNING)
    assert get(streams, "/ready") == (200, {"ready": True, "state": "RUNNING"})
    assert streams.close()
    assert held.sock is not None and held.sock.recv(1) == b""
    held.close()
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=5)
