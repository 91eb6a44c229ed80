"""Interactive queries, version 2 (KIP-796), on one part of a real store: results, failures, positions, isolation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar, cast

import pytest

from penstock import (
    FailureReason,
    IsolationLevel,
    KeyQuery,
    MultiVersionedKeyQuery,
    Position,
    PositionBound,
    Query,
    QueryResult,
    RangeQuery,
    SessionWindow,
    StateQueryRequest,
    StateQueryResult,
    TaskId,
    TimestampedKeyQuery,
    TimestampedRangeQuery,
    ValueAndTimestamp,
    VersionedKeyQuery,
    VersionedRecord,
    Windowed,
    WindowKeyQuery,
    WindowRangeQuery,
)
from penstock.runtime.model.errors import InvalidStateStoreError
from penstock.runtime.model.ids import NextOffset, TopicPartition
from penstock.runtime.stores import StoreContext
from penstock.runtime.stores.base import EngineStore
from penstock.runtime.worker.queries import Execute
from penstock.runtime.worker.query_execution import answer
from penstock.testing import ManualClock
from tests.unit.runtime.client.test_queries import builder_of

R = TypeVar("R")
T = TypeVar("T")
INPUT, CHANGELOG = TopicPartition("in", 1), TopicPartition("app-s-changelog", 1)


@dataclass
class Part:
    """A part of a store whose task is in the hands of the test."""

    store: EngineStore
    partition: int | None = 1
    is_running: bool = True
    inputs: tuple[TopicPartition, ...] = (INPUT,)
    description: str = "task 0_1"
    next_offset: int = 0
    executed: int = field(default=0)

    def processed(self) -> Mapping[TopicPartition, NextOffset]:
        return {INPUT: NextOffset(self.next_offset)}

    def execute(self, job: Callable[[], T]) -> T:
        self.executed += 1
        return job()

    def commit(self, offset: int) -> None:
        list(self.store.changelog_records())
        self.store.commit({INPUT: NextOffset(offset), CHANGELOG: NextOffset(1_000)})

    def ask(self, request: StateQueryRequest[R]) -> QueryResult[R]:
        return answer(self, request, cast(Execute, self.execute), lambda error: None, ManualClock())

    def result(self, query: Query[R]) -> R | None:
        return self.ask(in_store(query)).result

    def rows(self, query: Query[Iterator[T]]) -> list[T]:
        found = self.result(query)
        assert found is not None
        return list(found)


def in_store(query: Query[R]) -> StateQueryRequest[R]:
    return StateQueryRequest.in_store("s").with_query(query)


@contextmanager
def part_of(kind: str, folder: Path) -> Iterator[Part]:
    store = builder_of(kind)
    store.open(folder, StoreContext("app", folder, TaskId(0, 1), CHANGELOG))
    try:
        yield Part(store)
    finally:
        store.close()


def test_a_key_value_store(tmp_path: Path) -> None:
    with part_of("key-value", tmp_path) as part:
        for key in "abc":
            part.store.put(key, ValueAndTimestamp(ord(key), 5))  # type: ignore[attr-defined]
        part.commit(1)
        assert (part.result(KeyQuery.with_key("a")), part.result(KeyQuery.with_key("x"))) == (97, None)
        assert part.result(TimestampedKeyQuery.with_key("a")) == ValueAndTimestamp(97, 5)
        assert part.rows(RangeQuery.with_range("a", "b")) == [("a", 97), ("b", 98)]
        assert part.rows(RangeQuery.with_lower_bound("b").with_descending_keys()) == [("c", 99), ("b", 98)]
        assert part.rows(RangeQuery.with_upper_bound("a").with_ascending_keys()) == [("a", 97)]
        assert part.rows(TimestampedRangeQuery.with_no_bounds())[2] == ("c", ValueAndTimestamp(99, 5))
        failed = part.ask(in_store(KeyQuery.with_key(7)))
        assert failed.failure_reason is FailureReason.STORE_EXCEPTION and "cannot write the key 7" in str(failed.failure_message)
        with pytest.raises(ValueError, match="has no result: STORE_EXCEPTION"):
            _ = failed.result


def test_windows_and_sessions(tmp_path: Path) -> None:
    with part_of("window", tmp_path) as part:
        for start in (10, 20, 30):
            part.store.put("a", start, start)  # type: ignore[attr-defined]
        part.commit(1)
        assert part.rows(WindowKeyQuery.with_key_and_window_start_range("a", 10, 20)) == [(10, 10), (20, 20)]
        found = part.rows(WindowRangeQuery.with_window_start_range(20, 30))
        assert [(key.key, key.window.start, value) for key, value in found] == [("a", 20, 20), ("a", 30, 30)]
        assert part.ask(in_store(WindowRangeQuery.with_key("a"))).failure_reason is FailureReason.UNKNOWN_QUERY_TYPE
        part.store.put("a", 9, 20_000)  # type: ignore[attr-defined]
        everything = in_store(WindowKeyQuery.with_key_and_window_start_range("a", 0, 30_000))
        uncommitted = part.ask(everything.with_isolation_level(IsolationLevel.READ_UNCOMMITTED))
        assert list(uncommitted.result or ()) == [(20_000, 9)], "the others are past the retention of 10 s"
        assert len(list(part.ask(everything).result or ())) == 3, "and are not, as of the commit"
    with part_of("session", tmp_path) as part:
        part.store.put(Windowed("a", SessionWindow(10, 15)), 1)  # type: ignore[attr-defined]
        part.commit(1)
        assert part.rows(WindowRangeQuery.with_key("a")) == [(Windowed("a", SessionWindow(10, 15)), 1)]
        assert part.ask(in_store(WindowRangeQuery.with_window_start_range(0, 9))).failure_reason is FailureReason.UNKNOWN_QUERY_TYPE


def test_a_versioned_store(tmp_path: Path) -> None:
    with part_of("versioned", tmp_path) as part:
        for time, value in ((10, 1), (20, 2), (30, None), (40, 4)):
            part.store.put("a", value, time)  # type: ignore[attr-defined]
        part.commit(1)
        versions = MultiVersionedKeyQuery.with_key("a")
        one, two, four = VersionedRecord(1, 10, 20), VersionedRecord(2, 20, 30), VersionedRecord(4, 40)
        assert part.result(VersionedKeyQuery.with_key("a")) == four
        assert part.result(VersionedKeyQuery.with_key("a").as_of(29)) == two
        assert part.rows(versions) == part.rows(versions.with_descending_timestamps()) == [four, two, one]
        assert part.rows(versions.from_time(19).to_time(20).with_ascending_timestamps()) == [one, two]
        assert part.rows(versions.from_time(20).to_time(39)) == [two]
        assert part.rows(versions.to_time(9)) == []


@pytest.mark.parametrize(
    ("kind", "query"),
    [
        ("window", KeyQuery.with_key("a")),
        ("versioned", RangeQuery.with_no_bounds()),
        ("session", TimestampedKeyQuery.with_key("a")),
        ("key-value", VersionedKeyQuery.with_key("a")),
        ("key-value", WindowKeyQuery.with_key_and_window_start_range("a", 0, 1)),
        ("window", MultiVersionedKeyQuery.with_key("a")),
        ("own", KeyQuery.with_key("a")),
    ],
)
def test_a_store_that_cannot_answer_says_so(kind: str, query: Query[object], tmp_path: Path) -> None:
    with part_of(kind, tmp_path) as part:
        found = part.ask(in_store(query))
        assert found.failure_reason is FailureReason.UNKNOWN_QUERY_TYPE and type(query).__name__ in str(found.failure_message)


def test_a_bound_is_compared_with_the_committed_inputs(tmp_path: Path) -> None:
    with part_of("key-value", tmp_path) as part:
        request = in_store(KeyQuery.with_key("a"))
        reads_own_write = request.with_position_bound(PositionBound.at(Position.empty_position().with_component("in", 1, 7)))
        elsewhere = request.with_position_bound(PositionBound.at(Position.from_map({"in": {2: 99}})))
        part.store.put("a", ValueAndTimestamp(1, 5))  # type: ignore[attr-defined]
        part.commit(7)
        behind = part.ask(reads_own_write)
        assert behind.failure_reason is FailureReason.NOT_UP_TO_BOUND and behind.position == Position.from_map({"in": {1: 6}})
        assert part.ask(elsewhere).result == 1, "a bound on another partition says nothing about this one"
        part.commit(8)
        found = part.ask(reads_own_write)
        assert (found.result, found.position) == (1, Position.from_map({"in": {1: 7}})), "without the changelog's offset"
        unknown = request.with_position_bound(PositionBound.at(Position.from_map({"other": {1: 0}})))
        assert part.ask(unknown).failure_reason is FailureReason.NOT_UP_TO_BOUND


def test_a_global_store_satisfies_a_bound_in_every_partition(tmp_path: Path) -> None:
    with part_of("key-value", tmp_path) as part:
        part.partition, part.inputs = None, ()
        part.store.commit({TopicPartition("g", 0): NextOffset(3), TopicPartition("g", 1): NextOffset(5)})
        at = Position.from_map({"g": {0: 2, 1: 4}})
        request = in_store(KeyQuery.with_key("a"))
        assert part.ask(request.with_position_bound(PositionBound.at(at))).position == at
        behind = request.with_position_bound(PositionBound.at(at.with_component("g", 0, 3)))
        assert part.ask(behind).failure_reason is FailureReason.NOT_UP_TO_BOUND


def test_a_result_and_its_position_are_of_one_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit comes between the position and the read: both are read again."""
    with part_of("key-value", tmp_path) as part:
        part.store.put("a", ValueAndTimestamp(1, 5))  # type: ignore[attr-defined]
        part.commit(1)
        backend = part.store._backend  # type: ignore[attr-defined]
        real = backend.get

        def get(key: bytes) -> bytes | None:
            found: bytes | None = real(key)
            if part.next_offset == 0:
                part.next_offset = 2
                part.store.put("a", ValueAndTimestamp(2, 5))  # type: ignore[attr-defined]
                part.commit(2)
            return found

        monkeypatch.setattr(backend, "get", get)
        found = part.ask(in_store(KeyQuery.with_key("a")))
        assert (found.result, found.position) == (2, Position.from_map({"in": {1: 1}}))


def test_uncommitted_data_is_read_on_the_stores_thread_with_the_position_of_processing(tmp_path: Path) -> None:
    with part_of("key-value", tmp_path) as part:
        part.commit(1)
        part.store.put("a", ValueAndTimestamp(9, 5))  # type: ignore[attr-defined]
        part.next_offset = 5
        request = in_store(RangeQuery.with_no_bounds()).with_isolation_level(IsolationLevel.READ_UNCOMMITTED)
        assert part.rows(RangeQuery.with_no_bounds()) == [] and part.executed == 0
        found = part.ask(request)
        part.store.rollback()
        assert list(found.result or ()) == [("a", 9)], "the iterator is of the moment of the query"
        assert found.position == Position.from_map({"in": {1: 4}}) and part.executed == 1
        part.is_running = False
        assert list(part.ask(request).result or ()) == [] and part.executed == 1, "a copy has committed data only"


def test_only_running_active_tasks_answer_if_required(tmp_path: Path) -> None:
    with part_of("key-value", tmp_path) as part:
        request = in_store(KeyQuery.with_key("a")).require_active().enable_execution_info()
        assert part.ask(request).is_success
        part.is_running = False
        found = part.ask(request)
        assert found.failure_reason is FailureReason.NOT_ACTIVE and "task 0_1" in found.execution_info[0]
        part.store.close()
        assert part.ask(in_store(KeyQuery.with_key("a"))).failure_reason is FailureReason.STORE_EXCEPTION


def test_results_of_several_partitions() -> None:
    first, second = Position.from_map({"in": {0: 3}}), Position.from_map({"in": {0: 2, 1: 8}})
    results: dict[int, QueryResult[str]] = {0: QueryResult("v", position=first), 1: QueryResult(None, position=second)}
    merged = StateQueryResult(results)
    assert merged.position == Position.from_map({"in": {0: 3, 1: 8}})
    assert merged.only_partition_result == results[0]
    assert StateQueryResult({1: results[1]}).only_partition_result is None
    with pytest.raises(ValueError, match="2 partitions have a result"):
        _ = StateQueryResult({0: results[0], 2: results[0]}).only_partition_result
    with pytest.raises(ValueError, match="NOT_PRESENT"):
        _ = StateQueryResult({0: QueryResult(None, FailureReason.NOT_PRESENT)}).only_partition_result


def test_an_iterator_that_outlives_its_store_raises(tmp_path: Path) -> None:
    with part_of("key-value", tmp_path) as part:
        part.store.put("a", ValueAndTimestamp(9, 5))  # type: ignore[attr-defined]
        part.commit(1)
        rows = part.ask(in_store(RangeQuery.with_no_bounds())).result
        part.store.close()
        assert rows is not None
        with pytest.raises(InvalidStateStoreError):
            list(rows)
