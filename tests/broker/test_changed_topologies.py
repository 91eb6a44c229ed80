"""A stopped application is started with another topology: what its state does not fit is refused before anything is made or opened."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from runtime import serdes
from runtime.dsl.builder import StreamsBuilder
from runtime.dsl.options import Consumed, Grouped, Materialized, Produced, Repartitioned
from runtime.stores.suppliers import Stores, VersionedSupplier
from runtime.topology.topology import Topology
from tests.broker.engine import client, counts_become, running, set_offset
from tests.support import Kafka, wait_until

Part = Callable[[StreamsBuilder], object]
STRINGS = Consumed(serdes.STRING, value=serdes.STRING)


@dataclass(frozen=True, slots=True)
class Stopped:
    """An application that has counted two records of `source`, and is stopped."""

    broker: Kafka
    id: str
    source: str
    other: str
    output: str
    folder: Path

    def counts(self, store: str | VersionedSupplier = "counts") -> Part:
        def part(builder: StreamsBuilder) -> None:
            how: Materialized[str, int] = Materialized(store, caching=False)
            grouped = builder.stream(self.source, STRINGS).group_by(lambda key, value: value, Grouped(serdes.STRING, name="by-value"))
            grouped.count(how).to_stream().to(self.output, Produced(serdes.STRING, value=serdes.LONG))

        return part

    def copies(self, builder: StreamsBuilder) -> None:
        builder.stream(self.other, STRINGS).to(self.output)

    def refuses(self, *parts: Part) -> str:
        """Why a start with this topology is refused; nothing has come to be by it."""
        topics, folders = self.mine(), sorted(self.folder.rglob("*"))
        with client(self.broker, topology(*parts), self.id, self.folder) as streams:
            streams.start()
            wait_until(lambda: streams.failure is not None, 30, "the refusal")
        assert self.mine() == topics
        assert [path for path in sorted(self.folder.rglob("*")) if path not in folders and not path.name.startswith(".")] == []
        return str(streams.failure)

    def mine(self) -> set[str]:
        return {name for name in self.broker.topics() if name.startswith(self.id)}

    def goes_on(self, *parts: Part, counts: int) -> None:
        with running(self.broker, topology(*parts), self.id, self.folder, **{"commit.interval.ms": 100}):
            self.broker.produce(self.source, [("k", "v")])
            counts_become(self.broker, self.output, {"v": counts})


def topology(*parts: Part) -> Topology:
    builder = StreamsBuilder()
    for part in parts:
        part(builder)
    return builder.build()


@pytest.fixture
def stopped(broker: Kafka, topic: Callable[..., str], application_id: str, tmp_path: Path) -> Iterator[Stopped]:
    app = Stopped(broker, application_id, topic("in"), topic("other"), topic("out"), tmp_path)
    app.goes_on(app.counts(), counts=1)
    app.goes_on(app.counts(), counts=2)
    yield app


def test_what_does_not_fit_is_refused_with_what_changed_and_the_old_topology_goes_on(stopped: Stopped) -> None:
    shifted = stopped.refuses(stopped.copies, stopped.counts())
    assert "store counts was in sub-topology 1 and is in sub-topology 2 now" in shifted
    assert f"kafka-topics --bootstrap-server {stopped.broker.bootstrap_servers} --delete" in shifted
    assert "store counts of sub-topology 1 is not there any more: was it renamed to sums?" in stopped.refuses(stopped.counts("sums"))
    versions = Stores.persistent_versioned_key_value_store("counts", 1000)
    assert "store counts was a key-value store and is a versioned store now" in stopped.refuses(stopped.counts(versions))
    stopped.goes_on(stopped.counts(), stopped.copies, counts=3)


def test_a_store_that_shall_be_no_more_goes_with_its_changelog_and_a_reset_application_begins_anew(stopped: Stopped) -> None:
    stopped.refuses(stopped.copies, stopped.counts())
    for name in stopped.mine():
        if name.endswith(("-changelog", "-repartition")):
            stopped.broker.delete_topic(name)
    set_offset(stopped.broker, stopped.id, stopped.source, 0)
    shutil.rmtree(stopped.folder / stopped.id)
    stopped.goes_on(stopped.copies, stopped.counts(), counts=3)
    assert "store counts was in sub-topology 2 and is in sub-topology 1 now" in stopped.refuses(stopped.counts())


def test_other_partitions_of_a_repartition_topic_are_refused(stopped: Stopped) -> None:
    def partitioned(builder: StreamsBuilder) -> None:
        again = builder.stream(stopped.source, STRINGS).select_key(lambda key, value: value)
        through = again.repartition(Repartitioned("by-value", key=serdes.STRING, value=serdes.STRING, partitions=3))
        counted = through.group_by_key().count(Materialized("counts"))
        counted.to_stream().to(stopped.output, Produced(serdes.STRING, value=serdes.LONG))

    assert f"internal topic {stopped.id}-by-value-repartition has 1 partitions, but must have 3" in stopped.refuses(partitioned)
