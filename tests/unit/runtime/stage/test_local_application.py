"""An application in one process makes of its records what the test driver makes of them one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random

import pytest

from penstock import StreamsBuilder, StreamsConfig, Topology, serdes
from penstock.runtime.model.ids import NextOffset, TaskId, TopicPartition
from penstock.runtime.model.record import Headers
from penstock.runtime.serdes.murmur import partition_for
from penstock.runtime.snapshots.manifest import read_manifest
from penstock.runtime.stage.local_application import LocalApplication
from penstock.runtime.stage.spool import SpoolWriter, spooled
from penstock.runtime.stage.task import TaskStart
from penstock.runtime.tasks.incidents import PausePoint
from tests.support.history import CONFIG, FAMILIES, FIRST_MS, PAUSING, Family, Made, Sent, by_driver, columns, divided, records
from tests.support.seeds import entries

PARTITIONS = 3


class Run:
    """An application over records by topic and partition, and what came of it."""

    def __init__(
        self, topology: Topology, folder: Path, config: Mapping[str, object] = CONFIG, partitions: int = 1, one_by_one: bool = False
    ) -> None:
        settings = StreamsConfig(config)
        self.topology = topology.resolved(settings)
        self.made = Made()
        self.rejected: list[tuple[TaskId, PausePoint]] = []
        topics = {topic for part in self.topology.sub_topologies() for topic in part.source_topics} | {*self.topology.global_topics}
        internal = {topic.name for topic in self.topology.internal_topics()}
        self.folder = folder
        self.application = LocalApplication(
            settings,
            self.topology,
            folder / "state",
            partitions=dict.fromkeys(topics - internal, partitions),
            outputs=self._output,
            rejected=lambda task, point: self.rejected.append((task, point)),
            one_by_one=one_by_one,
        )

    def _output(
        self, topic: str, key: bytes | None, value: bytes | None, timestamp: int, headers: Headers | None, partition: int | None
    ) -> None:
        self.made.outputs.setdefault(topic, []).append(Sent(key, value, timestamp, list(headers) if headers else None))

    def over(self, inputs: Mapping[TopicPartition, Sequence[Sent]], name: str = "s") -> Made:
        """Run, write the stores and close."""
        try:
            for partition, sent in inputs.items():
                if partition.topic in self.application.global_topics:
                    self.application.fill_globals(partition, columns(*partition, sent))
            sources = {
                partition: iter([columns(*partition, sent)])
                for partition, sent in inputs.items()
                if partition.topic not in self.application.global_topics
            }
            self.application.run(sources)
            parts = self.application.write_snapshots(self.folder / "snapshots", name, FIRST_MS)
            self.application.close(clean=True)
        except BaseException:
            self.application.close()
            raise
        for folder in parts.values():
            for store in read_manifest(folder).stores:
                of_store = self.made.stores.setdefault(store.name, {})
                for family, rows in entries(folder / store.directory).items():
                    of_store.setdefault(family, {}).update(rows)
        return self.made


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_it_makes_what_the_stream_makes(family: Family, tmp_path: Path) -> None:
    random = Random(11)
    inputs = {topic: records(random, 120, null_keys=family.null_keys) for topic in family.topics}
    inputs |= {topic: records(random, 10, null_keys=False) for topic in family.global_topics}
    expected = by_driver(family, inputs, tmp_path / "driver")
    in_turns = str(family) == "foreign_keys"  # its outputs depend on what comes between two records of a side
    found = Run(family.build(), tmp_path, one_by_one=in_turns).over({TopicPartition(topic, 0): sent for topic, sent in inputs.items()})
    assert {topic: len(sent) for topic, sent in found.outputs.items()} == {topic: len(sent) for topic, sent in expected.outputs.items()}
    assert found.stores == expected.stores
    assert any(found.outputs.values())


def counts() -> Topology:
    """Counts by value: a sub-topology per side of a repartition topic."""
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.STRING, value=serdes.STRING)
    stream.group_by(lambda key, value: value).count("counts").to_stream().to("out", value=serdes.LONG)
    return builder.build()


def foreign_key_join() -> Topology:
    """A circle: orders look up their customers."""
    builder = StreamsBuilder()
    orders = builder.table("orders", key=serdes.STRING, value=serdes.STRING)
    customers = builder.table("customers", key=serdes.STRING, value=serdes.STRING)
    orders.join(customers, lambda order: order[0], lambda order, customer: f"{order} by {customer}").to_stream().to("out")
    return builder.build()


def divided_by_key(sent: Sequence[Sent], topic: str) -> dict[TopicPartition, list[Sent]]:
    found: dict[TopicPartition, list[Sent]] = {TopicPartition(topic, number): [] for number in range(PARTITIONS)}
    for record in sent:
        found[TopicPartition(topic, partition_for(record.key or b"", PARTITIONS))].append(record)
    return found


def test_tasks_of_several_partitions_feed_each_other(tmp_path: Path) -> None:
    random = Random(5)
    sent = [Sent(b"%d" % random.randrange(50), b"%d" % random.randrange(7), FIRST_MS + n) for n in range(3_000)]
    made = Run(counts(), tmp_path, partitions=PARTITIONS).over(divided_by_key(sent, "in"))
    last = {record.key: int.from_bytes(record.value or b"", "big") for record in made.outputs["out"]}
    values = [record.value for record in sent]
    assert last == {value: values.count(value) for value in set(values)}


@pytest.mark.parametrize("one_by_one", [False, True])
def test_a_circle_is_run_until_nothing_is_left(one_by_one: bool, tmp_path: Path) -> None:
    """As the test driver does, which takes one record at a time: the last result of each order is that of the last values."""
    random = Random(7)
    orders = [Sent(b"o%d" % random.randrange(20), b"%dx%d" % (random.randrange(4), n), FIRST_MS + 2 * n) for n in range(200)]
    customers = [Sent(b"%d" % random.randrange(4), b"c%d" % n, FIRST_MS + 2 * n + 1) for n in range(100)]
    inputs = divided_by_key(orders, "orders") | divided_by_key(customers, "customers")
    made = Run(foreign_key_join(), tmp_path, partitions=PARTITIONS, one_by_one=one_by_one).over(inputs)
    last_order = {record.key: record.value for record in orders}
    last_customer = {record.key: record.value for record in customers}
    expected = {
        key: order + b" by " + customer
        for key, order in last_order.items()
        if order is not None and (customer := last_customer.get(order[:1])) is not None
    }
    found = {record.key: record.value for record in made.outputs["out"]}
    assert {key: value for key, value in found.items() if value is not None} == expected


def test_it_continues_with_the_state_of_an_earlier_run(tmp_path: Path) -> None:
    """The halves of an input one after the other give the stores of the whole."""
    random = Random(3)
    sent = [Sent(b"%d" % random.randrange(50), b"%d" % random.randrange(7), FIRST_MS + n) for n in range(400)]
    whole = Run(counts(), tmp_path / "whole").over({TopicPartition("in", 0): sent})
    first = Run(counts(), tmp_path / "first")
    first.over({TopicPartition("in", 0): sent[:250]})
    second = Run(counts(), tmp_path / "second")
    for part in (tmp_path / "first" / "snapshots" / "s").iterdir():
        manifest = read_manifest(part)
        task = TaskId.parse(manifest.task)
        offsets = {TopicPartition(at.topic, at.partition): NextOffset(at.next_offset) for at in manifest.input_offsets}
        second.application.begin(
            task, TaskStart(offsets, {TopicPartition(at.topic, at.partition): at.time_ms for at in manifest.partition_times})
        )
        for store in manifest.stores:
            target = second.application.store_folder(task, store.name)
            target.parent.mkdir(parents=True)
            (part / store.directory).rename(target)
    path = tmp_path / "rest.spool"
    with SpoolWriter(path) as spool:
        spool.write(columns("in", 0, sent)[250:])
    second.application.run({TopicPartition("in", 0): spooled(path, TopicPartition("in", 0))})
    parts = second.application.write_snapshots(tmp_path / "second" / "snapshots", "s", FIRST_MS)
    second.application.close(clean=True)
    assert {name: rows for part in parts.values() for name, rows in [("counts", entries(part / "counts"))]} == whole.stores
    assert spool.records == 150


def test_a_record_that_pauses_its_task_is_rejected_and_the_task_continues(tmp_path: Path) -> None:
    good = [Sent(b"a", (n + 1).to_bytes(8, "big"), FIRST_MS + n) for n in range(40)]
    bad = {5: Sent(b"a", b"short", FIRST_MS), 17: Sent(b"b", bytes(8), FIRST_MS)}
    run = Run(divided(), tmp_path, PAUSING)
    run.over({TopicPartition("in", 0): [bad.get(n, good[n]) for n in range(40)]})
    assert [(str(task), point.offset) for task, point in run.rejected] == [("0_0", 5), ("0_0", 17)]
