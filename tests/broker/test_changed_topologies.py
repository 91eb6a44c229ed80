"""A stopped application is started with another topology: if its state does not fit, the start is refused before anything is created or
opened."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock import serdes
from penstock.runtime.dsl.builder import StreamsBuilder
from penstock.runtime.dsl.options import Consumed, Grouped, Materialized, Produced, Repartitioned
from penstock.runtime.serdes.serde import Serde
from penstock.runtime.stores.suppliers import Stores, VersionedSupplier
from penstock.runtime.topology.topology import Topology
from tests.support import Kafka, wait_until
from tests.support.engine import client, counts_become, running, set_offset
from tests.support.logs import transaction

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

    def counts(self, store: str | VersionedSupplier = "counts", between: Serde[str] = serdes.STRING) -> Part:
        def part(builder: StreamsBuilder) -> None:
            how: Materialized[str, int] = Materialized(store, caching=False)
            by_value = Grouped(serdes.STRING, value=between, name="by-value")
            grouped = builder.stream(self.source, STRINGS).group_by(lambda key, value: value, by_value)
            grouped.count(how).to_stream().to(self.output, Produced(serdes.STRING, value=serdes.LONG))

        return part

    def copies(self, builder: StreamsBuilder) -> None:
        builder.stream(self.other, STRINGS).to(self.output)

    def refuses(self, *parts: Part) -> str:
        """Return the reason why a start with this topology is refused; check that it created nothing."""
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


def test_what_does_not_fit_is_refused_with_what_changed_and_the_old_topology_continues(stopped: Stopped) -> None:
    shifted = stopped.refuses(stopped.copies, stopped.counts())
    assert "store counts was in sub-topology 1 and is in sub-topology 2 now" in shifted
    assert "penstock reset " in shifted
    assert "store counts of sub-topology 1 is not there any more: was it renamed to sums?" in stopped.refuses(stopped.counts("sums"))
    versions = Stores.persistent_versioned_key_value_store("counts", 1000)
    assert "store counts was a key-value store and is a versioned store now" in stopped.refuses(stopped.counts(versions))
    stopped.goes_on(stopped.counts(), stopped.copies, counts=3)


def test_one_record_in_transit_is_seen_and_aborted_records_do_not_count(stopped: Stopped) -> None:
    between = f"{stopped.id}-by-value-repartition"
    changed = stopped.counts(between=serdes.JSON)
    set_offset(stopped.broker, stopped.id, between, stopped.broker.end_offsets(between)[0])  # after the last transaction's marker
    stopped.broker.produce(between, [("v", "x")])
    reported = f"repartition topic {between} holds up to 1 records that are not processed yet, and its values were STRING and are JSON now"
    assert reported in stopped.refuses(changed)
    stopped.goes_on(stopped.counts(), counts=4)
    transaction(stopped.broker, between, [("v", "x")] * 3, commit=False)
    stopped.goes_on(changed, counts=5)


def test_a_store_is_removed_with_its_changelog_and_a_reset_application_starts_empty(stopped: Stopped) -> None:
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
