"""Tables with their source topic as changelog (`topology.optimization`): restored, copied and continued up to the committed offset."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock import serdes
from penstock.runtime.client.kafka_streams import KafkaStreams
from penstock.runtime.dsl.builder import StreamsBuilder
from penstock.runtime.dsl.options import Consumed, Materialized, Produced
from penstock.runtime.model.ids import TopicPartition
from penstock.runtime.model.states import State, TaskKind
from penstock.runtime.topology.topology import Topology
from tests.support import Kafka, wait_until
from tests.support.engine import BAD, client, reaches, running, set_offset
from tests.support.instances import Application, application, copies

Topic = Callable[..., str]
CONTINUE = "penstock.LogAndContinueExceptionHandler"
REUSE = "reuse.ktable.source.topics"


def looked_up(source: str, questions: str, output: str) -> Topology:
    """Return a topology with a table without a changelog, and lookups in it for each question."""
    builder = StreamsBuilder()
    rows = builder.table(source, Consumed(serdes.STRING, value=serdes.STRING), Materialized("rows"))
    asked = builder.stream(questions, Consumed(serdes.STRING, value=serdes.STRING))
    answers = asked.join(rows, lambda left, right: f"{left}={right}")
    answers.to(output, Produced(serdes.STRING, value=serdes.STRING))
    return builder.build({"topology.optimization": REUSE})


def build() -> Topology:
    """Return the topology of the processes."""
    return looked_up(os.environ["TEST_SOURCE"], f"{os.environ['TEST_SOURCE']}-questions", os.environ["TEST_OUTPUT"])


class Restored:
    """Keeps the offset up to which each store was restored."""

    def __init__(self) -> None:
        self.ends: dict[str, int] = {}

    def on_restore_start(self, partition: TopicPartition, store: str, start: int, end: int) -> None:
        self.ends[store] = end

    def on_batch_restored(self, partition: TopicPartition, store: str, batch_end: int, records: int) -> None: ...

    def on_restore_end(self, partition: TopicPartition, store: str, total: int) -> None: ...

    def on_restore_suspended(self, partition: TopicPartition, store: str, total: int) -> None: ...


def rows_of(streams: KafkaStreams) -> dict[object, object]:
    return dict(streams.store("rows").all())


def rows_become(streams: KafkaStreams, wanted: dict[object, object]) -> None:
    wait_until(lambda: rows_of(streams) == wanted, 40, f"rows {wanted}")


def test_a_lost_disk_is_restored_from_the_source_topic_up_to_the_committed_offset(
    broker: Kafka, topic: Topic, application_id: str, tmp_path: Path
) -> None:
    """Records that could not be deserialized are skipped again; unprocessed records are processed, not restored."""
    source = topic("in", config={"cleanup.policy": "compact"})
    topology = looked_up(source, topic("questions"), topic("out"))
    settings = {"deserialization.exception.handler": CONTINUE, "commit.interval.ms": 100}
    broker.produce(source, [("a", "1"), ("b", "1"), ("a", BAD), ("a", "2"), ("b", BAD), ("c", "1"), ("c", None)])
    with running(broker, topology, application_id, tmp_path, **settings) as streams:
        rows_become(streams, {"a": "2", "b": "1"})
    internal = [name for name in broker.admin.list_topics(timeout=30).topics if name.startswith(application_id)]
    assert not [name for name in internal if name.endswith("-changelog")]
    shutil.rmtree(tmp_path / application_id)
    broker.produce(source, [("b", "3"), ("d", "3")])
    with running(broker, topology, application_id, tmp_path, **settings) as streams:
        rows_become(streams, {"a": "2", "b": "3", "d": "3"})
    set_offset(broker, application_id, source, 1)
    shutil.rmtree(tmp_path / application_id)
    restored = Restored()
    with client(broker, topology, application_id, tmp_path, **settings) as streams:
        streams.set_global_state_restore_listener(restored)
        streams.start()
        reaches(streams, State.RUNNING)
        rows_become(streams, {"a": "2", "b": "3", "d": "3"})
    assert restored.ends == {"rows": 1}, "only what is committed is restored"


@pytest.fixture
def app(broker: Kafka, application_id: str, tmp_path: Path) -> Iterator[Application]:
    """Yield an application with a standby for each task."""
    settings = {"num.standby.replicas": 1, "acceptable.recovery.lag": 0, "commit.interval.ms": 100}
    with application(broker, application_id, tmp_path, partitions=2, **settings) as made:
        made.factory = "tests.broker.test_source_changelogs:build"
        broker.create_topic(f"{made.source}-questions", 2, exact=True)
        yield made


def test_a_killed_instance_is_followed_by_its_standby_with_the_same_table(app: Application) -> None:
    def answered() -> set[bytes]:
        return {record.value or b"" for record in app.broker.consume(app.output)}

    def standbys_are_whole() -> bool:
        found = [report for each in copies(app.broker, app.id).values() for report in each.values()]
        return len(found) == 2 and all(report.kind is TaskKind.STANDBY and report.caught_up and report.position for report in found)

    app.start("a")
    app.becomes({"a": 2})
    app.broker.produce(app.source, [(f"k{number}", f"{number}") for number in range(40)])
    app.start("b")
    app.becomes({"a": 1, "b": 1})
    wait_until(standbys_are_whole, 45, "whole copies")
    app.kill("a")
    app.becomes({"b": 2})
    app.broker.produce(f"{app.source}-questions", [(f"k{number}", "q") for number in range(40)])
    wanted = {f"q={number}".encode() for number in range(40)}
    wait_until(lambda: answered() == wanted, 40, "an answer for each row")
    app.kill("b")
    shutil.rmtree(app.folder / "b")
    app.start("b")
    app.becomes({"b": 2})
    app.broker.produce(f"{app.source}-questions", [(f"k{number}", "again") for number in range(40)])
    wait_until(lambda: answered() == wanted | {f"again={number}".encode() for number in range(40)}, 40, "the same after a lost disk")
