"""User-defined stores in a topology, in the test driver (rules.md, 12)."""

from __future__ import annotations

from typing import cast

import pytest

from penstock import Processor, ProcessorContext, Record, StreamsConfig, Topology, serdes
from penstock.runtime.model.errors import InvalidStateStoreError
from penstock.testing import TopologyTestDriver
from tests.support.own_stores import KINDS, OwnBuilder, OwnStore


class LastWords(Processor):
    """Keeps the last value of each key in a store, and forwards the previous one."""

    def init(self, context: ProcessorContext) -> None:
        self._context = context
        self._store = cast(OwnStore, context.get_state_store("own"))

    def process(self, record: Record) -> None:
        before = self._store.get(str(record.key))
        self._store.put(str(record.key), None if record.value is None else str(record.value))
        self._context.forward(record.with_value(before))


def topology(kind: str) -> Topology:
    """Return the topology in → LastWords → out."""
    return (
        Topology()
        .add_source("source", "in", key_serde=serdes.STRING, value_serde=serdes.STRING)
        .add_processor("words", LastWords, "source")
        .add_state_store(OwnBuilder("own", kind), "words")
        .add_sink("sink", "out", "words", key_serde=serdes.STRING, value_serde=serdes.STRING)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_user_defined_store_works_in_a_topology(kind: str) -> None:
    with TopologyTestDriver(topology(kind)) as driver:
        words = driver.create_input_topic("in", serdes.STRING, serdes.STRING)
        said = driver.create_output_topic("out", serdes.STRING, serdes.STRING)
        changelog = driver.create_output_topic("topology-test-own-changelog", serdes.STRING, serdes.STRING)
        for key, value in (("a", "1"), ("b", "1"), ("a", "2"), ("b", None)):
            words.pipe_input(key, value, timestamp=9)
        assert said.read_key_values_to_list() == [("a", None), ("b", None), ("a", "1"), ("b", "1")]
        assert [(r.key, r.value, r.timestamp) for r in changelog.read_records_to_list()] == [
            ("a", "1", 9),
            ("b", "1", 9),
            ("a", "2", 9),
            ("b", None, 9),
        ]
        own = cast(OwnStore, driver.get_state_store("own"))
        assert own is driver.get_all_state_stores()["own"] and (own.get("a"), own.get("b")) == ("2", None)
        with pytest.raises(InvalidStateStoreError, match="is a custom store"):
            driver.get_key_value_store("own")


class Keep(Processor):
    """Fills a global store."""

    def init(self, context: ProcessorContext) -> None:
        self._store = cast(OwnStore, context.get_state_store("own"))

    def process(self, record: Record) -> None:
        self._store.put(str(record.key), str(record.value))


class LookUp(Processor):
    """Forwards the content of the global store."""

    def init(self, context: ProcessorContext) -> None:
        self._context, self._store = context, cast(OwnStore, context.get_state_store("own"))

    def process(self, record: Record) -> None:
        self._context.forward(record.with_value(self._store.get(str(record.key))))


@pytest.mark.parametrize("kind", KINDS)
def test_a_global_store_may_be_user_defined(kind: str) -> None:
    topology = Topology().add_global_store(OwnBuilder("own", kind), "facts", "facts-topic", "keep", Keep)
    topology.add_source("source", "in").add_processor("look-up", LookUp, "source").add_sink("sink", "out", "look-up")
    text = {"default.key.serde": serdes.STRING, "default.value.serde": serdes.STRING}
    with TopologyTestDriver(topology, text) as driver:
        driver.create_input_topic("facts-topic", serdes.STRING, serdes.STRING).pipe_input("a", "1")
        driver.create_input_topic("in", serdes.STRING, serdes.STRING).pipe_input("a", "?")
        assert driver.create_output_topic("out", serdes.STRING, serdes.STRING).read_value() == "1"
        assert "topology-test-own-changelog" not in driver.produced_topic_names()


def test_the_changelog_of_a_user_defined_store_is_compacted() -> None:
    (topic,) = [topic for topic in resolved("sqlite").internal_topics() if topic.kind == "changelog"]
    assert topic.name == "app-own-changelog" and topic.config["cleanup.policy"] == "compact"


def resolved(kind: str) -> Topology:
    """Return the topology with a configuration."""
    return topology(kind).resolved(StreamsConfig({"application.id": "app", "bootstrap.servers": "localhost:9092"}))
