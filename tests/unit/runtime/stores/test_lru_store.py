"""LRU stores: only the most recently used entries are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock import Consumed, KeyValueStore, Materialized, Processor, ProcessorContext, Record, Stores, StreamsBuilder, Topology, serdes
from penstock.runtime.model.ids import NextOffset
from penstock.testing import TopologyTestDriver
from tests.support.stores import CHANGELOG, opened

TWO = Stores.key_value_store_builder(Stores.lru_map("two", 2), serdes.STRING, serdes.STRING)


class Use(Processor[str, str, None, None]):
    """Puts a record; reads the key if the value is null; deletes it if the value is "gone"."""

    def init(self, context: ProcessorContext[None, None]) -> None:
        self.store: KeyValueStore[str, str] = context.get_state_store("two")

    def process(self, record: Record[str, str | None]) -> None:
        if record.value is None:
            self.store.get(record.key)
        else:
            self.store.put(record.key, record.value if record.value != "gone" else None)


def topology() -> Topology:
    made = Topology().add_source("source", "in", key_serde=serdes.STRING, value_serde=serdes.STRING)
    return made.add_processor("use", Use, "source").add_state_store(TWO, "use")


def test_the_most_recently_used_entries_stay_and_the_others_are_deleted_from_the_changelog() -> None:
    with TopologyTestDriver(topology()) as driver:
        topic = driver.create_input_topic("in", serdes.STRING, serdes.STRING)
        topic.pipe_key_value_list([("a", "1"), ("b", "2"), ("a", None), ("c", "3")])
        assert list(driver.get_key_value_store("two").all()) == [("a", "1"), ("c", "3")]
        changelog = driver.create_output_topic("topology-test-two-changelog", serdes.STRING, serdes.STRING)
        assert changelog.read_key_values_to_list() == [("a", "1"), ("b", "2"), ("c", "3"), ("b", None)]


def test_a_deleted_entry_does_not_count() -> None:
    with TopologyTestDriver(topology()) as driver:
        topic = driver.create_input_topic("in", serdes.STRING, serdes.STRING)
        topic.pipe_key_value_list([("a", "1"), ("b", "2"), ("b", "gone"), ("c", "3")])
        assert list(driver.get_key_value_store("two").all()) == [("a", "1"), ("c", "3")]


def test_a_table_in_an_lru_store_forwards_no_evictions() -> None:
    builder = StreamsBuilder()
    words = builder.stream("in", Consumed(serdes.STRING, value=serdes.STRING)).group_by_key()
    words.count(Materialized(Stores.lru_map("one", 1))).to_stream().to("out")
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("in", serdes.STRING, serdes.STRING).pipe_key_value_list([(key, "v") for key in "aaba"])
        reported = driver.create_output_topic("out", serdes.STRING, serdes.LONG).read_key_values_to_list()
        assert reported == [("a", 1), ("a", 2), ("b", 1), ("a", 1)]


def test_an_abort_and_a_restore_respect_max_entries(tmp_path: Path) -> None:
    for under_test in opened(TWO.build, tmp_path):
        store = under_test.store
        for key in "ab":
            store.put(key, "old")
        under_test.commit(1)
        for key in "cd":
            store.put(key, "new")
        store.rollback()
        assert [key for key, _ in store.all()] == ["a", "b"]
        store.restore([(b"a", None, 1), (b"e", b"restored", 2)], {CHANGELOG: NextOffset(9)})
        assert store.get("b") == "old"
        store.put("f", "new")
        assert [key for key, _ in store.all()] == ["b", "f"]


def test_max_entries_is_at_least_one() -> None:
    with pytest.raises(ValueError, match="store s: it keeps at least 1 entry, not 0"):
        Stores.lru_map("s", 0)
