"""The record of the state's shape: two versions that are started at once, and what is left of a loser."""

from __future__ import annotations

import msgspec
import pytest

from penstock import serdes
from penstock.runtime.coordination.log import CoordinationLog, Entry
from penstock.runtime.coordination.records import Record, decode
from penstock.runtime.coordination.registry import Registry
from penstock.runtime.coordination.state_shape import AGAIN_AFTER_MS, Acceptance, StateRecord
from penstock.runtime.model.errors import TopologyError
from penstock.runtime.serdes.serde import Serde
from penstock.runtime.stores.store_format import StoreFormat
from penstock.runtime.topology.shape import StoreShape, TopologyShape


class One(msgspec.Struct):
    n: int


class Two(msgspec.Struct):
    n: int
    m: str = ""


class Other(msgspec.Struct):
    n: int
    m: int = 0


def shape(value: Serde[object]) -> TopologyShape:
    form = StoreFormat(timestamped=True, keys=(serdes.STRING.format(),), values=(value.format(),))
    return TopologyShape(stores=(StoreShape("s", "key_value", 0, "app-s-changelog", False, form),))


FIRST, SECOND, OTHER = (shape(serdes.json(kind)) for kind in (One, Two, Other))


class Topic(CoordinationLog):
    """A coordination topic in memory."""

    def __init__(self) -> None:
        self.records: dict[bytes, bytes | None] = {}
        self.order: list[tuple[bytes, bytes | None]] = []

    def append(self, key: bytes, value: bytes | None) -> None:
        self.order.append((key, value))

    def registry(self) -> Registry:
        """Return the registry of a worker that has read the whole topic."""
        registry = Registry()
        self.read(registry, 0)
        return registry

    def read(self, registry: Registry, start: int) -> int:
        for offset, (key, value) in enumerate(self.order[start:], start):
            record: Record | None = decode(key, value)
            assert record is not None
            registry.apply(Entry(offset, record, key), 0)
        return len(self.order)

    def holds(self) -> TopologyShape | None:
        state = self.registry().state
        return None if state is None else state.shape

    def compacted(self) -> Topic:
        """With the last record of each key alone, in their order."""
        other = Topic()
        last = {key: number for number, (key, _) in enumerate(self.order)}
        other.order = [(key, value) for number, (key, value) in enumerate(self.order) if last[key] == number and value is not None]
        return other


def worker(topic: Topic, now: TopologyShape, previous: TopologyShape | None) -> tuple[Registry, StateRecord]:
    registry = topic.registry()
    return registry, StateRecord(Acceptance("app", previous, now, ["s"]), registry, topic)


def recorded(topic: Topic, now: TopologyShape, previous: TopologyShape | None) -> None:
    registry, record = worker(topic, now, previous)
    assert not record.covers("a/1/1", 0), "nothing is opened before the record is read back"
    topic.read(registry, len(topic.order) - 1)
    assert record.covers("a/1/1", 0)


def at_once(
    topic: Topic, previous: TopologyShape, one: TopologyShape, other: TopologyShape
) -> tuple[tuple[Registry, StateRecord], tuple[Registry, StateRecord], int]:
    """Record a previous shape; return two workers that start after it, each with another shape, and the end of the topic."""
    recorded(topic, previous, None)
    held = topic.holds()
    return worker(topic, one, held), worker(topic, other, held), len(topic.order)


def test_the_first_start_records_and_the_next_one_has_nothing_to_write() -> None:
    topic = Topic()
    recorded(topic, FIRST, None)
    written = len(topic.order)
    _, again = worker(topic, FIRST, topic.holds())
    assert again.covers("b/1/1", 0) and len(topic.order) == written


def test_of_two_versions_at_once_the_later_one_is_held_against_the_earlier_one() -> None:
    topic = Topic()
    (one_reads, one), (other_reads, other), start = at_once(topic, FIRST, SECOND, OTHER)
    assert not one.covers("one/1/1", 0) and not other.covers("other/1/1", 0)
    topic.read(one_reads, start)
    topic.read(other_reads, start)
    assert one.covers("one/1/1", 0)
    with pytest.raises(TopologyError, match="store s: its values: field m is str and is read as int"):
        other.covers("other/1/1", 0)
    held = topic.holds()
    assert held is not None and held.stores[0].format is not None
    assert [form.name for form in held.stores[0].format.values] == ["json(One)", "json(Two)"]
    assert topic.compacted().holds() == held, "what has lost does not come back when the topic is compacted"


def test_two_versions_at_once_that_fit_each_other_are_both_on_record() -> None:
    topic = Topic()
    (one_reads, one), (other_reads, other), start = at_once(topic, SECOND, SECOND, FIRST)
    assert one.covers("one/1/1", 0) and not other.covers("other/1/1", 0)
    topic.read(other_reads, start)
    assert other.covers("other/1/1", 0)
    topic.read(one_reads, start)
    held = topic.holds()
    assert held is not None and held.stores[0].format is not None and len(held.stores[0].format.values) == 2


def test_a_record_that_did_not_arrive_is_written_again() -> None:
    topic = Topic()
    _, record = worker(topic, FIRST, None)
    assert not record.covers("a/1/1", 0)
    topic.order.clear()
    assert not record.covers("a/1/1", AGAIN_AFTER_MS - 1) and topic.order == []
    assert not record.covers("a/1/1", AGAIN_AFTER_MS) and len(topic.order) == 1


def test_a_record_that_is_written_again_keeps_its_place_before_one_that_has_lost() -> None:
    """Under the same key, compaction would keep its copy alone, behind the record of the version that was refused."""
    topic = Topic()
    (one_reads, one), (other_reads, other), start = at_once(topic, FIRST, SECOND, OTHER)
    assert not one.covers("one/1/1", 0) and not other.covers("other/1/1", 0)
    assert not one.covers("one/1/1", AGAIN_AFTER_MS), "it has read nothing so far"
    topic.read(one_reads, start)
    topic.read(other_reads, start)
    assert one.covers("one/1/1", AGAIN_AFTER_MS)
    with pytest.raises(TopologyError, match="field m is str and is read as int"):
        other.covers("other/1/1", AGAIN_AFTER_MS)
    held = topic.holds()
    assert held is not None and topic.compacted().holds() == held
    assert min(shape.version for shape in topic.compacted().registry().shapes.values()) == 2, "the record of before is removed"


def test_of_two_versions_the_one_whose_record_was_lost_at_first_is_held_against_the_other() -> None:
    topic = Topic()
    one_reads, one = worker(topic, SECOND, None)
    assert not one.covers("one/1/1", 0)
    topic.order.clear()  # it did not arrive
    other_reads, other = worker(topic, OTHER, None)
    assert not other.covers("other/1/1", 0) and not one.covers("one/1/1", AGAIN_AFTER_MS)
    topic.read(one_reads, 0)
    topic.read(other_reads, 0)
    assert other.covers("other/1/1", AGAIN_AFTER_MS)
    with pytest.raises(TopologyError, match="field m is int and is read as str"):
        one.covers("one/1/1", AGAIN_AFTER_MS)
    assert topic.compacted().holds() == topic.holds()
