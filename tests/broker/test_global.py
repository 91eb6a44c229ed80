"""Global tables on a real broker: bootstrap, updates, and every way in which their position can be lost (KIP-406)."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from penstock import serdes
from penstock.runtime.changelog.staleness import mark_at_end
from penstock.runtime.changelog.store_metadata import COMPLETE_MS
from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.input.deserialization import Decoder
from penstock.runtime.kafka.topic_admin import TopicAdmin
from penstock.runtime.kafka.topic_watch import TopicFacts, TopicWatcher
from penstock.runtime.model.clock import SystemClock
from penstock.runtime.model.errors import DeserializationError, MissingSourceTopicError, ProcessingError, StreamsConfigError
from penstock.runtime.model.events import Event, EventKind, EventSink
from penstock.runtime.model.handlers import (
    DeserializationExceptionHandler,
    LogAndContinueExceptionHandler,
    LogAndFailExceptionHandler,
    LogAndPauseExceptionHandler,
)
from penstock.runtime.model.ids import NextOffset, TaskId, TopicPartition
from penstock.runtime.model.metrics import Metrics
from penstock.runtime.model.record import Record
from penstock.runtime.operators.processor import Processor, ProcessorContext
from penstock.runtime.stores import Stores
from penstock.runtime.stores.base import EngineStore, StoreContext
from penstock.runtime.stores.directory import StateDirectory
from penstock.runtime.stores.key_value import StagedKeyValueStore
from penstock.runtime.tasks.global_apply import GlobalDecoder, TableCopy
from penstock.runtime.tasks.global_build import build_global_task, describe_topics
from penstock.runtime.tasks.global_state import REPEATED_MS, GlobalStore, Phase
from penstock.runtime.tasks.global_task import CompactionCheck, GlobalTask
from penstock.runtime.topology.topology import Topology
from tests.support import Kafka, wait_until
from tests.support.logs import alter, cut, end_of, recreate_topic, transaction

DAY_MS = 86_400_000
COMPACT = {"cleanup.policy": "compact"}
DELETABLE = {"cleanup.policy": "compact,delete"}  # passes the check, and its start can be moved
DELETE = {"cleanup.policy": "delete"}
READER, OTHER = TaskId(0, 0), TaskId(1, 0)


class TurnableClock(SystemClock):
    """The machine's clock, which can be advanced."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self.ahead_ms


class HandTurnedClock(TurnableClock):
    """A clock whose intervals pass only when the test advances it."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 1_000_000

    def monotonic_ms(self) -> int:
        return self.now_ms


@dataclass
class Listener:
    """Keeps its calls: the event, the partition, the number of records."""

    calls: list[tuple[str, int, int]] = field(default_factory=list)

    def on_restore_start(self, partition: TopicPartition, store: str, start: int, end: int) -> None:
        self.calls.append(("start", partition.partition, end - start))

    def on_batch_restored(self, partition: TopicPartition, store: str, batch_end: int, records: int) -> None: ...

    def on_restore_end(self, partition: TopicPartition, store: str, total: int) -> None:
        self.calls.append(("end", partition.partition, total))

    def on_restore_suspended(self, partition: TopicPartition, store: str, total: int) -> None:
        self.calls.append(("suspended", partition.partition, total))


@dataclass
class Global:
    """A global task over one topic, and its listener's calls."""

    kafka: Kafka
    folder: Path
    topic: str
    admin: TopicAdmin
    handler: DeserializationExceptionHandler = field(default_factory=LogAndFailExceptionHandler)
    check: CompactionCheck = CompactionCheck.WARN
    clock: TurnableClock = field(default_factory=TurnableClock)
    reported: list[Event] = field(default_factory=list)
    states: list[bool] = field(default_factory=list)
    listener: Listener = field(default_factory=Listener)

    def __post_init__(self) -> None:
        self.events = EventSink("app", "instance", self.clock)
        self.metrics = Metrics()
        self.make()

    def make(self, own_processor: bool = False) -> None:
        supplier = Stores.persistent_timestamped_key_value_store("airports")
        self.store: EngineStore = Stores.timestamped_key_value_store_builder(supplier, serdes.STRING, serdes.LONG).build()
        decoder = Decoder(self.topic, serdes.STRING, serdes.LONG)
        applier = TableCopy(self.store, GlobalDecoder(decoder, self.handler, self.metrics, self.events))
        self.checkpoints: list[Mapping[TopicPartition, NextOffset]] = []
        self.task = GlobalTask(
            [GlobalStore(self.store, self.topic, applier, own_processor)],
            open_store=lambda store: store.open(self.folder, StoreContext("app", self.folder)),
            describe=lambda names: describe_topics(self.admin, names),
            write_checkpoint=self.checkpoints.append,
            properties={"bootstrap.servers": self.kafka.bootstrap_servers},
            compaction_check=self.check,
            clock=self.clock,
            watcher=TopicWatcher(self.clock),
            events=self.events,
            metrics=self.metrics,
            listeners=(self.listener,),
        )

        self.task.register_reader("airports", READER)

    def start(self) -> None:
        self.task.start()
        self.running()

    def turn(self) -> None:
        """Run one iteration of the worker's loop."""
        self.task.step(0.05)
        self.reported += self.events.drain()
        if not self.states or self.states[-1] is not self.task.restoring:
            self.states.append(self.task.restoring)
            # rules.md, 27: a task that reads the store waits, the others never do.
            assert self.task.may_process(READER) is not self.task.restoring
        assert self.task.may_process(OTHER)

    def until(self, holds: Callable[[], object], what: str) -> None:
        def turned() -> object:
            self.turn()
            return holds()

        wait_until(turned, what=what)

    def running(self) -> None:
        self.until(lambda: not self.task.restoring, "RUNNING")

    def holds(self, content: Mapping[str, int]) -> None:
        self.until(lambda: self.content() == content, f"a table of {content}")

    def content(self) -> dict[object, object]:
        return dict(self.store.query_view().all()) if self.task.phase("airports") is Phase.RUNNING else {}

    def kinds(self) -> list[str]:
        return [event.kind.value for event in self.reported]

    def recovery(self) -> str:
        """Return the reason of the only recovery, which must be complete."""
        started, ended = [event for event in self.reported if event.kind.value.startswith("GLOBAL_RECOVERY")]
        assert started.kind is EventKind.GLOBAL_RECOVERY_STARTED and ended.kind is EventKind.GLOBAL_RECOVERY_ENDED
        assert started.payload["store"] == ended.payload["store"] == "airports"
        return str(started.payload["reason"])

    def put(self, *rows: tuple[str, int | None], partition: int = 0) -> None:
        written = [(key, None if value is None else value.to_bytes(8, "big")) for key, value in rows]
        self.kafka.produce(self.topic, written, partition=partition)

    def close(self) -> None:
        self.task.close()
        self.reported += self.events.drain()

    @contextmanager
    def opened(self) -> Iterator[EngineStore]:
        """Open the store of a task that does not run."""
        self.store.open(self.folder, StoreContext("app", self.folder))
        yield self.store
        self.store.close()

    def restart(self, at_end_ago_ms: int | None = None) -> None:
        """Close and create the task again, optionally with an earlier time at which the store was last at the end."""
        self.close()
        if at_end_ago_ms is not None:
            with self.opened() as store:
                known = store.get_meta("topic.id")
                assert known is not None
                mark_at_end(store, known.decode(), self.clock.wall_ms() - at_end_ago_ms)
                store.commit({})
        self.reported.clear()
        self.states.clear()
        self.make()


@pytest.fixture
def make(broker: Kafka, tmp_path: Path, topic: Callable[..., str]) -> Iterator[Callable[..., Global]]:
    made: list[Global] = []
    admin = TopicAdmin(StreamsConfig({"application.id": "app", "bootstrap.servers": broker.bootstrap_servers}))

    def one(config: Mapping[str, str] = COMPACT, partitions: int = 1, **settings: object) -> Global:
        found = Global(broker, tmp_path / "global", topic("airports", partitions, config), admin, **settings)  # type: ignore[arg-type]
        made.append(found)
        return found

    yield one
    for each in made:
        each.close()


# --- bootstrap and updates -----------------------------------------------------------------------------------------------------------


def test_it_is_built_from_the_start_and_follows(make: Callable[..., Global]) -> None:
    table = make(partitions=2)
    table.put(("EWR", 1), ("JFK", 1), ("EWR", 2), ("gone", 9), ("gone", None))
    table.put(("LGA", 3), partition=1)
    table.start()
    assert table.content() == {"EWR": 2, "JFK": 1, "LGA": 3}
    table.put(("EWR", 5), ("JFK", None))
    table.holds({"EWR": 5, "LGA": 3})
    assert "GLOBAL_RECOVERY_STARTED" not in table.kinds()


def test_a_restore_listener_gets_the_records_of_each_partition(make: Callable[..., Global]) -> None:
    table = make(partitions=2)
    table.put(("EWR", 1), ("JFK", 1), ("EWR", 2))
    table.put(("LGA", 3), partition=1)
    table.start()
    assert sorted(table.listener.calls) == [("end", 0, 3), ("end", 1, 1), ("start", 0, 3), ("start", 1, 1)]


def test_an_interrupted_restore_is_reported_as_suspended_and_the_next_one_starts_over(make: Callable[..., Global]) -> None:
    table = make(partitions=2)
    table.put(("EWR", 1), ("JFK", 1))
    table.task.start()
    table.task.rebuild("airports", "asked for")
    assert [call for call in table.listener.calls if call[0] == "suspended"] == [("suspended", 0, 0), ("suspended", 1, 0)]
    table.running()
    assert [call[0] for call in table.listener.calls] == ["start", "start", "suspended", "suspended", "start", "start", "end", "end"]
    table.restart()
    table.put(("LGA", 3))
    table.listener.calls.clear()
    table.task.start()
    table.close()
    assert [call[0] for call in table.listener.calls] == ["start", "start", "suspended", "suspended"]


def test_an_empty_topic_is_running_at_once(make: Callable[..., Global]) -> None:
    table = make()
    table.task.start()
    assert not table.task.restoring
    assert table.content() == {}


def test_a_restart_continues_from_its_offset(make: Callable[..., Global]) -> None:
    table = make()
    table.put(("EWR", 1), ("JFK", 1))
    table.start()
    table.restart()
    table.put(("EWR", 2))
    table.start()
    assert table.store.committed_offset(TopicPartition(table.topic, 0)) == 3
    assert table.content() == {"EWR": 2, "JFK": 1}
    assert "GLOBAL_RECOVERY_STARTED" not in table.kinds()


def test_a_missing_topic_is_named(make: Callable[..., Global]) -> None:
    table = make()
    table.close()
    table.topic = "nowhere-to-be-found"
    table.make()
    with pytest.raises(MissingSourceTopicError, match=r"--topic nowhere-to-be-found --partitions 1 --config cleanup\.policy=compact"):
        table.task.start()


# --- KIP-406: the position is lost ---------------------------------------------------------------------------------------------------


def test_out_of_range_at_the_start(make: Callable[..., Global]) -> None:
    table = make(DELETABLE)
    table.put(("EWR", 1), ("old", 1))
    table.start()
    table.restart()
    table.put(("EWR", 2), ("EWR", 3), ("JFK", 1))
    cut(table.kafka, table.topic, 3)
    table.start()
    table.holds({"EWR": 3, "JFK": 1})
    assert "offset 2" in table.recovery()
    assert table.states == [True, False]


@pytest.mark.parametrize("away_ms", [0, 2 * DAY_MS])
def test_records_that_were_deleted_while_it_was_away_are_reported_with_the_time_until_which_it_was_complete(
    make: Callable[..., Global], away_ms: int
) -> None:
    """Also if another reason for the rebuild, a stop that was longer than delete.retention.ms, is found first."""
    table = make(DELETABLE)
    table.put(("EWR", 1), ("old", 1))
    table.start()
    table.restart()
    with table.opened() as store:
        until_ms = int(store.get_meta(COMPLETE_MS) or 0)
    table.clock.ahead_ms += away_ms
    table.put(("EWR", 2), ("EWR", 3), ("JFK", 1))
    cut(table.kafka, table.topic, 4)
    table.start()
    table.holds({"JFK": 1})
    [started] = [event.payload for event in table.reported if event.kind is EventKind.GLOBAL_RECOVERY_STARTED]
    assert ("longer than" in str(started["reason"])) is bool(away_ms)
    assert started["lost"] == {f"{table.topic}-0": {"from": 2, "to": 4}}
    assert started["current_ms"] == until_ms


def test_a_table_that_was_never_complete_names_no_time_until_which_it_was(make: Callable[..., Global]) -> None:
    table = make(DELETABLE)
    table.put(*((f"k{number}", 1) for number in range(6)))
    table.task.start()
    table.restart()
    partition = TopicPartition(table.topic, 0)
    with table.opened() as store:
        store.commit({partition: NextOffset(2)})  # the first build was interrupted here
    cut(table.kafka, table.topic, 4)
    table.start()
    [started] = [event.payload for event in table.reported if event.kind is EventKind.GLOBAL_RECOVERY_STARTED]
    assert (started["lost"], started["current_ms"]) == ({str(partition): {"from": 2, "to": 4}}, None)


def test_out_of_range_while_it_runs(make: Callable[..., Global]) -> None:
    """The log is truncated past the suspended reader, as for a stopped process."""
    table = make(DELETABLE)
    table.put(("EWR", 1), ("old", 1))
    table.start()
    table.task._reader._consumer.pause(table.task._reader._consumer.assignment())
    table.put(("EWR", 2), ("EWR", 3), ("JFK", 1))
    cut(table.kafka, table.topic, 3)
    table.task._reader._consumer.resume(table.task._reader._consumer.assignment())
    table.holds({"EWR": 3, "JFK": 1})
    assert "no longer there" in table.recovery()
    assert table.states[-3:] == [False, True, False]
    assert [event.payload["remaining"] for event in table.reported if event.kind is EventKind.RESTORE_STARTED] == [2, 2], "of what is left"


def lose_the_position(table: Global) -> None:
    """Truncate the log past the suspended reader."""
    consumer = table.task._reader._consumer
    consumer.pause(consumer.assignment())
    table.put(("x", 1), ("y", 1))
    cut(table.kafka, table.topic, end_of(table.kafka, table.topic) - 1)
    recoveries = table.kinds().count("GLOBAL_RECOVERY_STARTED")
    consumer.resume(consumer.assignment())
    table.until(lambda: table.kinds().count("GLOBAL_RECOVERY_STARTED") > recoveries, "the recovery")


def test_recoveries_in_a_row_wait_longer_each_time_and_say_so(make: Callable[..., Global]) -> None:
    clock = HandTurnedClock()
    table = make(DELETABLE, clock=clock)
    table.put(("a", 1))
    table.start()
    for wait_ms in (0, 1000, 2000):
        lose_the_position(table)
        if wait_ms:
            clock.now_ms += wait_ms - 1
            for _ in range(2):  # a new observation of the topic does not shorten the wait
                seen = table.task._watch._newest
                table.until(lambda seen=seen: table.task._watch._newest is not seen or table.task._watch._newest is None, "a look")  # type: ignore[misc]
            assert table.task.restoring
            clock.now_ms += 1
        table.running()
        assert set(table.content()) == {"y"}
    clock.now_ms += REPEATED_MS
    lose_the_position(table)
    table.running()
    started = [event.payload for event in table.reported if event.kind is EventKind.GLOBAL_RECOVERY_STARTED]
    assert [(each["attempt"], each["wait_seconds"]) for each in started] == [(1, 0), (2, 1), (3, 2), (1, 0)]
    assert {name.name: value for name, value in table.metrics.values().items()}["global-recovery-total"] == 4


def test_a_requested_rebuild_does_not_wait(make: Callable[..., Global]) -> None:
    table = make(clock=HandTurnedClock())
    table.put(("a", 1))
    table.start()
    for _ in range(3):
        table.task.rebuild("airports", "asked for")
        table.running()
    assert table.content() == {"a": 1}


@pytest.mark.parametrize("records", [1, 50], ids=["shorter", "longer"])
def test_a_topic_recreated_while_it_runs(make: Callable[..., Global], records: int) -> None:
    """A longer topic causes no error: only its id differs, which is checked each second."""
    table = make()
    table.put(*[(f"old-{n}", n) for n in range(10)])
    table.start()
    recreate_topic(table.kafka, table.topic, config=COMPACT)
    table.put(*[("new", n) for n in range(records)])
    table.holds({"new": records - 1})
    assert table.recovery()
    table.put(("more", 7))
    table.holds({"new": records - 1, "more": 7})


@pytest.mark.parametrize("records", [1, 50], ids=["shorter", "longer"])
def test_a_topic_recreated_while_it_was_away(make: Callable[..., Global], records: int) -> None:
    table = make()
    table.put(*[(f"old-{n}", n) for n in range(10)])
    table.start()
    table.restart()
    recreate_topic(table.kafka, table.topic, config=COMPACT)
    table.put(*[("new", n) for n in range(records)])
    table.start()
    table.holds({"new": records - 1})
    assert "created again" in table.recovery()


def test_a_topic_that_is_gone_leaves_the_table_as_it_is(make: Callable[..., Global]) -> None:
    table = make()
    table.put(("EWR", 1))
    table.start()
    table.kafka.delete_topic(table.topic)
    looks = 0
    inner = table.task._watch._request

    def counted() -> Mapping[str, TopicFacts]:
        nonlocal looks
        looks += 1
        return inner()

    table.task._watch._request = counted
    table.until(lambda: looks >= 2, "two looks")
    assert table.content() == {"EWR": 1} and not table.task.restoring
    table.kafka.create_topic(table.topic, config=COMPACT, exact=True)
    table.put(("JFK", 2))
    table.holds({"JFK": 2})
    assert "created again" in table.recovery()


@pytest.mark.parametrize(("away_ms", "recovers"), [(DAY_MS + 60_000, True), (DAY_MS - 60_000, False)])
def test_rule_13_away_for_longer_than_delete_retention(make: Callable[..., Global], away_ms: int, recovers: bool) -> None:
    """The tombstone of `gone` was cleaned meanwhile: no record of the log mentions the key any more."""
    table = make()
    table.put(("EWR", 1), ("JFK", 1))
    table.start()
    table.store.restore([(b"gone", (9).to_bytes(8, "big"), 1)], {})
    table.restart(at_end_ago_ms=away_ms)
    table.put(("EWR", 2))
    table.start()
    if recovers:
        assert table.content() == {"EWR": 2, "JFK": 1}
        assert "delete.retention.ms" in table.recovery()
    else:
        assert table.content() == {"EWR": 2, "JFK": 1, "gone": 9}
        assert "GLOBAL_RECOVERY_STARTED" not in table.kinds()


def test_rule_13_a_gap_longer_than_delete_retention_while_it_lives(make: Callable[..., Global]) -> None:
    """A process that was suspended for two days, or whose broker was down that long."""
    table = make()
    table.put(("EWR", 1))
    table.start()
    table.store.restore([(b"gone", (9).to_bytes(8, "big"), 1)], {})
    table.task._reader._consumer.pause(table.task._reader._consumer.assignment())
    table.put(("EWR", 2))
    table.clock.ahead_ms = 2 * DAY_MS
    table.task._reader._consumer.resume(table.task._reader._consumer.assignment())
    table.holds({"EWR": 2})
    assert "delete.retention.ms" in table.recovery()


def test_the_retention_of_the_topic_itself_counts(make: Callable[..., Global]) -> None:
    table = make()
    alter(table.kafka, table.topic, "delete.retention.ms", "1000")
    table.put(("EWR", 1))
    table.start()
    table.restart(at_end_ago_ms=60_000)
    table.put(("EWR", 2))
    table.start()
    assert "of 1000" in table.recovery()


def test_damaged_files_are_wiped_and_rebuilt(make: Callable[..., Global]) -> None:
    """KAFKA-21034: a damaged global store must not cause a crash loop."""
    table = make()
    table.put(("EWR", 1), ("JFK", 2))
    table.start()
    table.restart()
    (manifest,) = (table.folder / "rocksdb" / "airports").glob("MANIFEST-*")
    manifest.write_bytes(b"not a manifest")
    table.start()
    table.holds({"EWR": 1, "JFK": 2})
    assert "damaged" in table.recovery()


def test_a_lost_folder_is_a_plain_bootstrap(make: Callable[..., Global]) -> None:
    table = make()
    table.put(("EWR", 1))
    table.start()
    table.restart()
    shutil.rmtree(table.folder)
    table.start()
    assert table.content() == {"EWR": 1}


def test_an_interrupted_rebuild_continues(make: Callable[..., Global]) -> None:
    table = make()
    table.put(*[(f"k{n}", n) for n in range(20_000)])
    table.task.start()
    table.until(lambda: table.store.committed_offset(TopicPartition(table.topic, 0)) or False, "the first batch")
    table.restart()
    table.start()
    assert len(table.content()) == 20_000


# --- records that cannot be read -----------------------------------------------------------------------------------------------------


def bad(table: Global) -> None:
    table.put(("EWR", 1))
    table.kafka.produce(table.topic, [("EWR", b"not eight bytes")], partition=0)
    table.put(("JFK", 2))


@pytest.mark.parametrize("live", [False, True], ids=["at the start", "live"])
def test_continue_skips_the_record_and_keeps_what_was_there(make: Callable[..., Global], live: bool) -> None:
    table = make(handler=LogAndContinueExceptionHandler())
    if live:
        table.start()
        bad(table)
    else:
        bad(table)
        table.start()
    table.holds({"EWR": 1, "JFK": 2})
    (skipped,) = [event for event in table.reported if event.kind is EventKind.RECORD_SKIPPED]
    assert (skipped.payload["topic"], skipped.payload["offset"]) == (table.topic, 1)
    assert {name.name: value for name, value in table.metrics.values().items()}["dropped-records-total"] == 1


@pytest.mark.parametrize("handler", [LogAndFailExceptionHandler, LogAndPauseExceptionHandler])
def test_kip_990_a_global_task_is_never_paused(make: Callable[..., Global], handler: type[DeserializationExceptionHandler]) -> None:
    table = make(handler=handler())
    table.start()
    bad(table)
    with pytest.raises(DeserializationError, match=f"{table.topic}-0@1"):
        table.until(lambda: False, "the error")


def test_records_without_a_key_are_left_out(make: Callable[..., Global]) -> None:
    table = make(DELETE)
    table.kafka.produce(table.topic, [(None, (1).to_bytes(8, "big"))], partition=0)
    table.put(("EWR", 1))
    table.start()
    assert table.content() == {"EWR": 1}


# --- rule 3: compaction --------------------------------------------------------------------------------------------------------------


def test_rule_3_a_topic_that_is_not_compacted_is_warned_about(make: Callable[..., Global]) -> None:
    table = make(DELETE)
    table.start()
    (event,) = [event for event in table.reported if event.kind is EventKind.GLOBAL_TOPIC_NOT_COMPACTED]
    assert event.payload == {"topic": table.topic, "cleanup_policy": "delete"}


def test_rule_3_error_refuses_to_start_and_names_the_remedy(make: Callable[..., Global]) -> None:
    table = make(DELETE, check=CompactionCheck.ERROR)
    with pytest.raises(StreamsConfigError, match=r"kafka-configs .*cleanup.policy=compact"):
        table.task.start()


@pytest.mark.parametrize(("check", "tells"), [(CompactionCheck.WARN, 1), (CompactionCheck.ERROR, 1), (CompactionCheck.OFF, 0)])
def test_rule_3_a_topic_that_is_no_longer_compacted_is_reported_once(
    make: Callable[..., Global], check: CompactionCheck, tells: int
) -> None:
    """It is too late to refuse the start: the table is correct as long as it is not rebuilt."""
    table = make(check=check)
    table.put(("EWR", 1))
    table.start()
    alter(table.kafka, table.topic, "cleanup.policy", "delete")
    table.until(lambda: not next(iter(table.task._states.values())).facts.compacted, "the look that sees it")
    looked = table.task._states[table.topic].observation
    table.until(lambda: table.task._states[table.topic].observation is not looked or looked is None, "the next look")
    assert table.kinds().count("GLOBAL_TOPIC_NOT_COMPACTED") == tells


@pytest.mark.parametrize(
    ("config", "check", "own_processor"),
    [(COMPACT, "error", False), (DELETABLE, "error", False), (DELETE, "error", True), (DELETE, "off", False)],
    ids=["compact", "compact and delete", "a processor of its own", "off"],
)
def test_rule_3_what_passes(make: Callable[..., Global], config: Mapping[str, str], check: str, own_processor: bool) -> None:
    table = make(config, check=CompactionCheck(check))
    table.close()
    table.make(own_processor=own_processor)
    table.start()
    assert ("GLOBAL_TOPIC_NOT_COMPACTED" in table.kinds()) is own_processor


# --- checkpoints ---------------------------------------------------------------------------------------------------------------------


def test_kip_116_a_checkpoint_is_written_when_the_worker_says_so_and_at_a_clean_close(make: Callable[..., Global]) -> None:
    table = make()
    table.put(("EWR", 1))
    table.start()
    assert table.checkpoints == []
    table.task.checkpoint()
    assert table.checkpoints == [{TopicPartition(table.topic, 0): 1}]
    table.close()
    assert table.checkpoints == [{TopicPartition(table.topic, 0): 1}] * 2


def test_a_checkpoint_is_reported_when_it_has_changed(make: Callable[..., Global]) -> None:
    table = make()
    table.put(("EWR", 1))
    table.start()
    for _ in range(3):
        table.task.checkpoint()
    assert len(table.checkpoints) == 3 and [event.kind for event in table.events.drain()].count(EventKind.CHECKPOINT) == 1
    table.put(("JFK", 1))
    table.holds({"EWR": 1, "JFK": 1})
    table.task.checkpoint()
    assert [event.kind for event in table.events.drain()].count(EventKind.CHECKPOINT) == 1


def test_offset_of_the_end_is_kept_when_the_tail_holds_no_record(make: Callable[..., Global], broker: Kafka) -> None:
    """An aborted transaction at the end: the position passes it, so the next start has nothing to read."""
    table = make()
    table.put(("EWR", 1))
    transaction(broker, table.topic, [("EWR", "aborted")], commit=False)
    wait_until(lambda: end_of(broker, table.topic) == 3, what="the marker of the abort, which the broker writes later")
    table.start()
    assert table.store.committed_offset(TopicPartition(table.topic, 0)) == 3


# --- add_global_store ----------------------------------------------------------------------------------------------------------------


class Doubling(Processor):
    """Writes twice the value; counts the records since its creation."""

    def init(self, context: ProcessorContext) -> None:
        store = context.get_state_store("doubled")
        assert isinstance(store, StagedKeyValueStore)
        self.store = store
        self.seen = 0

    def process(self, record: Record) -> None:
        self.seen += 1
        assert isinstance(record.value, int)
        if record.value == 13:
            raise RuntimeError("thirteen")
        self.store.put(record.key, record.value * 2)
        self.store.put("seen", self.seen)


def processed(broker: Kafka, topic_name: str, folder: Path) -> GlobalTask:
    topology = Topology()
    builder = Stores.key_value_store_builder(Stores.persistent_key_value_store("doubled"), serdes.STRING, serdes.LONG)
    topology.add_global_store(builder, "source", topic_name, "doubling", Doubling, key_serde=serdes.STRING, value_serde=serdes.LONG)
    config = StreamsConfig({"application.id": "app", "bootstrap.servers": broker.bootstrap_servers})
    directory = StateDirectory(folder, "app")
    clock = SystemClock()
    made = build_global_task(
        topology, config, directory, TopicAdmin(config), TopicWatcher(clock), clock, Metrics(), EventSink("app", "i", clock)
    )
    assert made is not None
    return made


def test_a_processor_of_its_own_fills_the_store_at_the_start_live_and_after_a_recovery(
    broker: Kafka, topic: Callable[..., str], tmp_path: Path
) -> None:
    """KAFKA-7663: restored through the processor, not around it."""
    name = topic("numbers", config=DELETABLE)

    def put(key: str, value: int) -> None:
        broker.produce(name, [(key, value.to_bytes(8, "big"))], partition=0)

    put("a", 1)
    put("a", 2)
    task = processed(broker, name, tmp_path)
    store = task.store("doubled")
    assert store is not None

    def holds(content: Mapping[str, int]) -> bool:
        task.step(0.05)
        return not task.restoring and dict(store.query_view().all()) == content

    task.start()
    wait_until(lambda: holds({"a": 4, "seen": 2}), what="the start")
    put("b", 5)
    wait_until(lambda: holds({"a": 4, "b": 10, "seen": 3}), what="the update")
    recreate_topic(broker, name, config=DELETABLE)
    put("c", 1)
    wait_until(lambda: holds({"c": 2, "seen": 1}), what="the recovery, with a new processor")
    task.close()
    assert (tmp_path / "app" / "global" / ".checkpoint").read_text() == f"0\n1\n{name} 0 1\n"


def test_what_a_failing_processor_wrote_is_not_kept(broker: Kafka, topic: Callable[..., str], tmp_path: Path) -> None:
    name = topic("numbers", config=COMPACT)
    broker.produce(name, [("a", (1).to_bytes(8, "big"))], partition=0)
    task = processed(broker, name, tmp_path)
    task.start()
    wait_until(lambda: task.step(0.05) and not task.restoring, what="the start")
    transaction(broker, name, [("b", (2).to_bytes(8, "big")), ("c", (13).to_bytes(8, "big"))])
    with pytest.raises(ProcessingError, match="thirteen"):
        wait_until(lambda: task.step(0.05) and False, what="the error")
    task.close()  # writes a checkpoint, which must not include leftovers of the failed run

    again = processed(broker, name, tmp_path)
    store = again.store("doubled")
    assert store is not None
    store.open(tmp_path / "app" / "global", StoreContext("app", tmp_path / "app" / "global"))
    assert dict(store.query_view().all()) == {"a": 2, "seen": 1}
    assert store.committed_offset(TopicPartition(name, 0)) == 1
    store.close()
    again.close()


def test_a_topology_without_global_stores_has_no_global_task(broker: Kafka, tmp_path: Path) -> None:
    config = StreamsConfig({"application.id": "app", "bootstrap.servers": broker.bootstrap_servers})
    clock = SystemClock()
    parts = (StateDirectory(tmp_path, "app"), TopicAdmin(config), TopicWatcher(clock), clock, Metrics(), EventSink("app", "i", clock))
    assert build_global_task(Topology(), config, *parts) is None
