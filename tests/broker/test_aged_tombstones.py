"""An instance that was away misses a deletion that the broker's log cleaner has removed meanwhile (rules.md, 13)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock import serdes
from penstock.runtime.dsl.builder import StreamsBuilder
from penstock.runtime.dsl.options import Consumed, Materialized, Produced
from penstock.runtime.model.events import EventKind
from penstock.runtime.worker import positions
from tests.support import Kafka, wait_until
from tests.support.engine import airport_names, events_of_kind, running, worker_of
from tests.support.logs import cleaned_often

Topic = Callable[..., str]
CLEANED_SOON = {
    "cleanup.policy": "compact",
    "segment.ms": "200",
    "delete.retention.ms": "100",
    "min.cleanable.dirty.ratio": "0.001",
    "max.compaction.lag.ms": "500",
}
TEXT = Consumed(serdes.STRING, value=serdes.STRING)


@pytest.fixture(scope="module", autouse=True)
def often(broker: Kafka) -> Iterator[None]:
    with cleaned_often(broker):
        yield


def has_key(broker: Kafka, topic: str, key: bytes) -> bool:
    return any(record.key == key for record in broker.consume(topic))


def clean(broker: Kafka, topic: str, gone: bytes) -> None:
    """Keep writing until the log contains neither rows nor the deletion of a key."""

    def written_on() -> bool:
        broker.produce(topic, [("filler", str(time.monotonic()))], partition=0)
        time.sleep(0.25)  # older than `segment.ms`: the next record closes the segment
        return not has_key(broker, topic, gone)

    wait_until(written_on, 90, f"a log without {gone!r}")


def test_rule_13_a_global_table_that_was_away_is_rebuilt(broker: Kafka, topic: Topic, application_id: str, state_dir: Path) -> None:
    airports, flights, output = topic("airports", config=CLEANED_SOON), topic("flights"), topic("out")
    topology = airport_names(flights, airports, output)
    broker.produce(airports, [("EWR", "Newark"), ("OLD", "Closed")], partition=0)
    with running(broker, topology, application_id, state_dir) as streams:
        assert dict(streams.store("airports").all()) == {"EWR": "Newark", "OLD": "Closed"}
    broker.produce(airports, [("OLD", None)], partition=0)
    clean(broker, airports, b"OLD")
    with running(broker, topology, application_id, state_dir) as streams:
        assert set(dict(streams.store("airports").all())) == {"EWR", "filler"}
        broker.produce(flights, [("f", "OLD")])
        wait_until(lambda: [record.value for record in broker.consume(output)] == [b"OLD=None"], what="a flight to nowhere")
    [started] = events_of_kind(broker, application_id, EventKind.GLOBAL_RECOVERY_STARTED)
    assert "delete.retention.ms" in str(started.payload["reason"])


def test_rule_13_a_store_whose_task_was_elsewhere_is_restored_from_the_start(
    broker: Kafka, topic: Topic, application_id: str, tmp_path: Path
) -> None:
    """Another instance has processed the deletion of the row; the store on this disk is older than the log's tombstones."""
    source = topic("rows", config={"cleanup.policy": "compact"})
    builder = StreamsBuilder()
    builder.table(source, TEXT, Materialized("rows", logging=CLEANED_SOON))
    topology, changelog = builder.build(), f"{application_id}-rows-changelog"
    broker.produce(source, [("kept", "1"), ("gone", "1")], partition=0)

    def runs(folder: str, rows: dict[str, str]) -> None:
        with running(broker, topology, application_id, tmp_path / folder) as streams:
            wait_until(lambda: {key: value for key, value in streams.store("rows").all() if key != "filler"} == rows, 40, f"{rows}")

    runs("here", {"kept": "1", "gone": "1"})
    broker.produce(source, [("gone", None)], partition=0)
    runs("there", {"kept": "1"})
    clean(broker, changelog, b"gone")
    runs("here", {"kept": "1"})


def test_rule_13_a_table_gets_deletions_that_its_source_topic_has_lost(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(positions, "SHORTEST_MS", 100)  # the absence is one of seconds
    source, output = topic("rows", config=CLEANED_SOON), topic("out")
    builder = StreamsBuilder()
    builder.table(source, TEXT, Materialized("rows")).to_stream().to(output, Produced(serdes.STRING, value=serdes.STRING))
    topology = builder.build()
    broker.produce(source, [("kept", "1"), ("gone", "1")], partition=0)
    with running(broker, topology, application_id, state_dir) as streams:
        wait_until(lambda: dict(streams.store("rows").all()) == {"kept": "1", "gone": "1"}, what="the rows")
        [task] = worker_of(streams)._assembled.tasks.all()
        wait_until(lambda: all(queue.at_end for queue in (task.queues.all if task.queues else ())), what="the end of the topic")
    broker.produce(source, [("gone", None)], partition=0)
    clean(broker, source, b"gone")
    with running(broker, topology, application_id, state_dir) as streams:
        wait_until(lambda: set(dict(streams.store("rows").all())) == {"kept", "filler"}, 40, "the rows that are left")
        end = broker.end_offsets(source)[0]
        wait_until(lambda: broker.committed_offsets(application_id, source) == {0: end}, what="the commit")
    assert [record.value for record in broker.consume(output) if record.key == b"gone"] == [b"1", None]
    assert [record.value for record in broker.consume(f"{application_id}-rows-changelog") if record.key == b"gone"] == [b"1", None]
