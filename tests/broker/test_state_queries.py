"""Isolation and version 2 of interactive queries, on a running client: in the program, over HTTP, and from worker processes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from typing import cast

import msgspec
import pytest
from typer.testing import CliRunner

from penstock import (
    FailureReason,
    IsolationLevel,
    KafkaStreams,
    KeyQuery,
    Position,
    PositionBound,
    RangeQuery,
    StateQueryRequest,
    StoreQueryParameters,
)
from penstock.orchestration.cli import app
from penstock.orchestration.embedded.ports import free_port
from penstock.runtime.model.errors import InvalidStateStoreError
from penstock.runtime.model.states import State
from penstock.runtime.serdes.murmur import partition_for
from penstock.runtime.worker import committer, loop
from tests.broker.test_fleet_queries import counts
from tests.support import Kafka, wait_until
from tests.support.engine import client, on_worker, running, worker_of

Topic = Callable[..., str]
UNCOMMITTED = IsolationLevel.READ_UNCOMMITTED
HOUR_MS = 3_600_000


def key_query(key: str) -> StateQueryRequest[object]:
    return StateQueryRequest.in_store("counts").with_query(KeyQuery.with_key(key))


def over_http(port: int, path: str) -> tuple[int, dict[str, object]]:
    connection = HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, msgspec.json.decode(answer.read(), type=dict[str, object])
    finally:
        connection.close()


def test_uncommitted_state_is_read_before_the_commit_and_committed_state_up_to_a_position(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, places = topic("in", partitions=2), topic("places", config={"cleanup.policy": "compact"})
    broker.produce(places, [("EWR", "Newark")])
    mine = partition_for(b"a", 2)
    broker.produce(source, [("a", "v")] * 3, partition=mine)
    port = free_port()
    settings = {"commit.interval.ms": HOUR_MS, "http.port": port, "processing.guarantee": "at_least_once"}
    monkeypatch.setattr(committer, "EVENTS_WAIT_MS", HOUR_MS)  # the events of the start would commit the records too
    with running(broker, counts(source, places), application_id, state_dir, **settings) as streams:
        uncommitted = streams.store(StoreQueryParameters("counts", partition=mine).with_isolation_level(UNCOMMITTED))
        wait_until(lambda: uncommitted.get("a") == 3, 20, "the records in staging")
        assert list(uncommitted.range("a", "b")) == [("a", 3)]
        assert streams.store("counts").get("a") is None and list(streams.store("counts").all()) == []
        status, page = over_http(port, f"/stores/counts/range?partition={mine}&isolation=read_uncommitted")
        assert status == 200 and [row["value"] for row in cast(list[dict[str, object]], page["rows"])] == [3]
        assert over_http(port, f"/stores/counts/range?partition={mine}")[1]["rows"] == []
        command = ["query", application_id, "counts", "a", "--url", f"127.0.0.1:{port}"]
        assert CliRunner().invoke(app, [*command, "--uncommitted"]).stdout == "3\n" and CliRunner().invoke(app, command).stdout == "null\n"

        read = key_query("a").with_position_bound(PositionBound.at(Position.empty_position().with_component(source, mine, 2)))
        behind = streams.query(read).partition_results[mine]
        assert behind.failure_reason is FailureReason.NOT_UP_TO_BOUND and behind.position == Position.empty_position()
        found = streams.query(read.with_isolation_level(UNCOMMITTED).with_partitions([mine]).require_active())
        assert found.partition_results[mine].result == 3 and found.position == Position.from_map({source: {mine: 2}})

        by_name = read.with_isolation_level(cast(IsolationLevel, "READ_UNCOMMITTED"))
        assert streams.query(by_name).partition_results[mine].result == 3
        with pytest.raises(ValueError, match="'dirty' is not a valid IsolationLevel"):
            streams.store(StoreQueryParameters("counts").with_isolation_level(cast(IsolationLevel, "dirty")))

        results = streams.query(key_query("a").with_partitions([mine, 7]).enable_execution_info()).partition_results
        assert results[mine].is_success and f"task 0_{mine} (ACTIVE, RUNNING)" in results[mine].execution_info[0]
        assert results[7].failure_reason is FailureReason.DOES_NOT_EXIST
        in_places = StateQueryRequest.in_store("places").with_query(KeyQuery.with_key("EWR"))
        of_global = streams.query(in_places.with_isolation_level(UNCOMMITTED)).global_result
        assert of_global is not None and of_global.result == "Newark" and of_global.position == Position.from_map({places: {0: 0}})
        with pytest.raises(InvalidStateStoreError, match="'nothing' is unknown"):
            streams.query(StateQueryRequest.in_store("nothing").with_query(KeyQuery.with_key("a")))

        streams.pause()  # the tasks stand still, the thread does not
        assert uncommitted.get("a") == 3
        worker = worker_of(streams)
        own: list[object] = []
        on_worker(worker, lambda: own.append(worker.execute(lambda: 7)))
        assert own == [7], "the thread itself does not wait for its next turn"
        release = threading.Event()
        monkeypatch.setattr(loop, "READ_SECONDS", 0.2)
        worker._inbox.put(lambda: cast(None, release.wait(20)))
        with pytest.raises(InvalidStateStoreError, match="did not read uncommitted data within"):
            uncommitted.get("a")
        release.set()
        on_worker(worker, lambda: cast(None, worker._assembled.committer.commit()))
        assert streams.query(read).partition_results[mine].result == 3 == streams.store("counts").get("a")
    with pytest.raises(InvalidStateStoreError, match="the client is NOT_RUNNING"):
        streams.query(read)
    with pytest.raises(InvalidStateStoreError, match="the stream thread has ended"):
        worker.execute(lambda: None)


def reader(streams: KafkaStreams, stop: threading.Event, wrong: list[object], highest: list[int]) -> None:
    """Read the count of `a` without end. It never goes back, and its position never is behind what was seen."""
    request = key_query("a").with_isolation_level(UNCOMMITTED).with_partitions([0]).require_active()
    seen = 0
    while not stop.is_set():
        try:
            found = streams.query(request).partition_results[0]
            rows = dict(streams.store(StoreQueryParameters("counts", 0, isolation_level=UNCOMMITTED)).all())
        except InvalidStateStoreError:
            continue
        if found.is_failure:
            continue
        count, following = cast(int, found.result or 0), cast(int, rows.get("a", 0))
        position = (
            [offset for topic in found.position.topics for offset in found.position.partition_positions(topic).values()]
            if found.position
            else []
        )
        if not seen <= count <= following or count != (position[0] + 1 if position else 0):
            wrong.append((seen, count, following, position))
        seen = following
        highest[0] = max(highest[0], seen)


def test_readers_of_uncommitted_state_agree_with_the_position_under_load(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path
) -> None:
    """At least once: what was processed stays, unless the instance dies. Offsets of the only partition count the records."""
    source, places = topic("in"), topic("places", config={"cleanup.policy": "compact"})
    settings = {"processing.guarantee": "at_least_once", "default.state.isolation.level": "READ_UNCOMMITTED"}
    stop, wrong, highest = threading.Event(), list[object](), [0]
    with running(broker, counts(source, places), application_id, state_dir, **settings) as streams:
        threads = [threading.Thread(target=reader, args=(streams, stop, wrong, highest)) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(20):
                broker.produce(source, [("a", "v")] * 500)
            wait_until(lambda: highest[0] == 10_000, 30, "all records")
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert streams.store("counts").get("a") == 10_000, "the client's default"
        assert streams.failure is None
    assert wrong == []


def has_a_task_each(streams: KafkaStreams) -> bool:
    threads = streams.metadata_for_local_threads() if streams.state is State.RUNNING else set()
    return len(threads) == 2 and all(len(thread.active_tasks) == 1 for thread in threads)


def test_worker_processes_answer_both_kinds_of_query(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = topic("in", partitions=2)
    monkeypatch.setenv("TEST_SOURCE", source)
    monkeypatch.setenv("TEST_OUTPUT", topic("out"))
    settings = {"num.stream.threads": 2, "commit.interval.ms": 120_000}
    with client(broker, "tests.broker.worker_apps:counts", application_id, state_dir, **settings) as streams:
        streams.start()
        wait_until(lambda: has_a_task_each(streams), 60, "a task for each worker")
        for partition in (0, 1):
            broker.produce(source, [(f"k{partition}-{number:03d}", "v") for number in range(300)], partition=partition)
        every = StateQueryRequest.in_store("counts").with_query(RangeQuery.with_no_bounds()).require_active()
        bound = PositionBound.at(Position.from_map({source: {0: 299, 1: 299}}))
        uncommitted = every.with_isolation_level(UNCOMMITTED).with_position_bound(bound)
        wait_until(lambda: sum(each.is_success for each in streams.query(uncommitted).partition_results.values()) == 2, 40, "all records")
        results = streams.query(uncommitted).partition_results
        assert [len(list(results[partition].result or ())) for partition in (0, 1)] == [300, 300]
        assert len(list(streams.store(StoreQueryParameters("counts", isolation_level=UNCOMMITTED)).all())) == 600
        assert list(streams.query(every).partition_results[0].result or ()) == []
