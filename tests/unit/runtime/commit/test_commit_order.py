"""The order of a commit, with test doubles that record what happens when."""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence

import pytest

from penstock.runtime.changelog.writer import ChangelogRows
from penstock.runtime.commit.compare_and_set import CompareAndSet
from penstock.runtime.commit.order import Commit
from penstock.runtime.model.errors import StateDirectoryError, TaskCorruptedError, TaskMigratedError, TransactionAbortedError
from penstock.runtime.model.events import EventKind, EventSink
from penstock.runtime.model.ids import NextOffset, TopicPartition
from penstock.runtime.model.offsets import OffsetAndMetadata, decode_partition_time, decode_processors, encode_partition_time
from penstock.runtime.model.record import Headers
from penstock.runtime.stores.base import ChangelogRecord
from penstock.testing import ManualClock


class Log:
    """A transport that records its calls."""

    def __init__(self, error: Exception | None = None) -> None:
        self.steps: list[str] = []
        self.error = error
        self.pending = False
        self.outputs = 0

    def send(
        self, topic: str, key: bytes | None, value: bytes | None, timestamp: int, headers: Headers | None, partition: int | None
    ) -> None:
        self.steps.append(f"send {topic}")
        self.pending = True
        self.outputs += 1

    def send_changelog(self, partition: TopicPartition, rows: list[ChangelogRecord], headers: Headers | None) -> None:
        self.steps.append(f"changelog {partition} {len(rows)}")

    def send_offsets(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        self.steps.append("offsets " + ",".join(f"{partition}={at.offset}" for partition, at in sorted(offsets.items())))

    def begin_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        self.steps.append("begin")

    def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], meanwhile: Sequence[Callable[[], None]] = ()
    ) -> Mapping[TopicPartition, NextOffset]:
        self.steps.append("commit " + ",".join(f"{partition}={at.offset}" for partition, at in sorted(offsets.items())))
        for step in meanwhile:
            step()
        if self.error is not None:
            raise self.error
        self.pending = False
        return {TopicPartition("log", 0): NextOffset(5)}

    def poll(self) -> None: ...

    def watch(self) -> None: ...

    def abort(self) -> None: ...

    def start(self) -> None: ...

    def close(self) -> None: ...


class Task:
    """A task that records its part of a commit in the transport's log."""

    def __init__(self, name: str, log: Log, offset: int | None = 3) -> None:
        self.name = name
        self.log = log
        self.offset = offset
        self.cached: tuple[str, ...] = ()

    def flush_caches(self) -> None:
        """Send what it has cached, if anything."""
        for output in self.cached:
            self.log.send(output, None, None, 0, None, None)
        self.log.steps.append(f"flush {self.name}")

    def pending_changelogs(self) -> Iterable[ChangelogRows]:
        yield ChangelogRows(TopicPartition(f"log-{self.name}", 0), [(b"k", b"v", 1)])

    def prepare(self) -> None:
        self.log.steps.append(f"prepare {self.name}")

    def offsets_to_commit(self) -> Mapping[TopicPartition, OffsetAndMetadata]:
        return {} if self.offset is None else {TopicPartition(self.name, 0): OffsetAndMetadata(self.offset, "")}

    def committed(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], changelog_ends: Mapping[TopicPartition, NextOffset]) -> None:
        self.log.steps.append(f"stores {self.name}")


def sink() -> EventSink:
    return EventSink("app", "one", ManualClock())


def test_rule_9_caches_then_changelogs_then_events_then_the_broker_then_the_stores() -> None:
    """The brokers take the offsets while the changelogs are written: `begin`."""
    log, events = Log(), sink()
    events.emit(EventKind.SHUTDOWN, {})
    assert Commit(log, events, "app")([Task("a", log), Task("b", log)])
    assert log.steps == [
        "flush a",
        "flush b",
        "begin",
        "changelog log-a-0 1",
        "changelog log-b-0 1",
        "send app-events",
        "commit a-0=3,b-0=3",
        "prepare a",
        "prepare b",
        "stores a",
        "stores b",
    ]


@pytest.mark.parametrize(
    "error",
    [TransactionAbortedError("aborted"), TaskMigratedError("fenced"), TaskCorruptedError([], "damaged"), StateDirectoryError("full")],
)
def test_a_refused_commit_does_not_reach_the_stores_and_its_events_wait_for_the_next(error: Exception) -> None:
    log, events = Log(error), sink()
    reported = events.emit(EventKind.SHUTDOWN, {})
    with pytest.raises(type(error)):
        Commit(log, events, "app")([Task("a", log)])
    assert not any(step.startswith("stores") for step in log.steps)
    assert events.drain() == [reported]


def test_a_commit_counts_what_it_has_written_without_changelogs_and_events() -> None:
    log, events = Log(), sink()
    task = Task("a", log)
    task.cached = ("counts", "totals")
    commit = Commit(log, events, "app")
    log.send("alerts", None, None, 0, None, None)
    events.emit(EventKind.SHUTDOWN, {})
    assert commit([task]) and commit.written == 3


def test_an_empty_commit_makes_no_transaction() -> None:
    log = Log()
    assert not Commit(log, sink(), "app")([Task("a", log, offset=None)])
    assert not any(step.startswith(("begin", "commit")) for step in log.steps)


def test_extra_offsets_are_committed_in_the_same_transaction() -> None:
    log, idle = Log(), {TopicPartition("idle", 0): OffsetAndMetadata(9, "")}
    assert Commit(log, sink(), "app")([], CompareAndSet(idle, idle, lambda partitions: idle))
    assert log.steps == ["offsets idle-0=9", "commit "]


def test_rule_20_an_offset_set_from_outside_during_the_commit_stands() -> None:
    log, idle = Log(), TopicPartition("idle", 0)
    expected = {idle: OffsetAndMetadata(9, "time")}
    seen = iter([10, 11, 11])  # moved twice, once between the two reads
    change = CompareAndSet(expected, expected, lambda partitions: {idle: OffsetAndMetadata(next(seen), "")})
    assert Commit(log, sink(), "app")([], change)
    assert log.steps == ["offsets idle-0=9", "offsets idle-0=10", "offsets idle-0=11", "commit "]
    assert change.moved == {idle: OffsetAndMetadata(11, "")}


@pytest.mark.parametrize("time", [-1, 0, 1_357_016_400_000])
def test_rule_17_partition_time_is_restored_from_the_metadata(time: int) -> None:
    assert decode_partition_time(encode_partition_time(time)) == time


@pytest.mark.parametrize("metadata", [None, "", "nonsense", "AQ=="])
def test_metadata_of_other_tools_contains_no_time(metadata: str | None) -> None:
    assert decode_partition_time(metadata) == -1


def test_metadata_of_kafka_streams_is_read() -> None:
    version_1 = base64.b64encode(struct.pack(">bq", 1, 1_357_016_400_000)).decode()  # without processor metadata
    assert decode_partition_time(version_1) == 1_357_016_400_000


def test_processor_metadata_is_encoded_as_in_kafka_streams() -> None:
    of_java = "AgAAATv0ewCAAAAAAgAAAAl2aXNpdHMtw6n//////////wAAAAdtaW51dGVzAAABO/R7AIA="  # TopicPartitionMetadata.encode() of 4.3.1
    times = {"visits-é": -1, "minutes": 1_357_016_400_000}
    assert decode_partition_time(of_java) == 1_357_016_400_000 and decode_processors(of_java) == times
    ours = encode_partition_time(1_357_016_400_000, times)
    assert decode_processors(ours) == times and len(ours) == len(of_java)
    assert encode_partition_time(5, {}) == encode_partition_time(5), "no times take no room"


@pytest.mark.parametrize("metadata", [None, "", "nonsense", "AQ==", encode_partition_time(7), "AgAAATv0ewCAAAAAAgAAAAl2"])
def test_metadata_that_is_truncated_or_has_no_processors_contains_no_times(metadata: str | None) -> None:
    assert decode_processors(metadata) == {}


def test_processor_times_beyond_the_brokers_limit_are_left_to_the_stores() -> None:
    many = {f"{'x' * 200}-{number}": number for number in range(50)} | {"results": 5}
    ours = encode_partition_time(1, many)
    assert len(ours) < 4_096 and decode_processors(ours)["results"] == 5
