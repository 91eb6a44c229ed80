"""Session and versioned stores in a topology, in the test driver; and operators that refuse them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import pytest

from penstock import Processor, ProcessorContext, Record, SessionWindow, Topology, VersionedRecord, Windowed, serdes
from penstock.runtime.changelog.folding import FoldedBatch
from penstock.runtime.model.errors import InvalidStateStoreError
from penstock.runtime.stores import SessionStore, Stores, VersionedKeyValueStore
from penstock.testing import TopologyTestDriver
from tests.support.raw_messages import Raw

if TYPE_CHECKING:
    from confluent_kafka import Message

SESSIONS = Stores.session_store_builder(Stores.persistent_session_store("sessions", 100_000), serdes.STRING, serdes.STRING)
VERSIONS = Stores.versioned_key_value_store_builder(
    Stores.persistent_versioned_key_value_store("versions", 100_000), serdes.STRING, serdes.STRING
)


class KeepBoth(Processor):
    """Writes a session and a version per record."""

    def init(self, context: ProcessorContext) -> None:
        self._sessions = cast(SessionStore, context.get_state_store("sessions"))
        self._versions = cast(VersionedKeyValueStore, context.get_state_store("versions"))

    def process(self, record: Record) -> None:
        self._sessions.put(Windowed(record.key, SessionWindow(record.timestamp, record.timestamp)), record.value)
        self._versions.put(record.key, record.value, record.timestamp)


def topology() -> Topology:
    """Return the topology in → KeepBoth."""
    made = Topology().add_source("source", "in", key_serde=serdes.STRING, value_serde=serdes.STRING)
    return made.add_processor("both", KeepBoth, "source").add_state_store(SESSIONS, "both").add_state_store(VERSIONS, "both")


def test_the_driver_shows_sessions_and_versions() -> None:
    with TopologyTestDriver(topology()) as driver:
        words = driver.create_input_topic("in", serdes.STRING, serdes.STRING)
        for value, time in (("one", 10), ("two", 20), ("late", 15)):
            words.pipe_input("a", value, timestamp=time)
        sessions, versions = driver.get_session_store("sessions"), driver.get_versioned_key_value_store("versions")
        assert [(key.window.start, value) for key, value in sessions.fetch("a")] == [(10, "one"), (15, "late"), (20, "two")]
        assert versions.get("a") == VersionedRecord("two", 20) and versions.get("a", 17) == VersionedRecord("late", 15, 20)
        changelog = driver.create_output_topic("topology-test-sessions-changelog", serdes.session_windowed(serdes.STRING), serdes.STRING)
        assert changelog.read_key_values_to_list()[0] == (Windowed("a", SessionWindow(10, 10)), "one")
        with pytest.raises(InvalidStateStoreError, match="is a session store, not a versioned store"):
            driver.get_versioned_key_value_store("sessions")
        with pytest.raises(InvalidStateStoreError, match="is a versioned store, not a key_value store"):
            driver.get_key_value_store("versions")


def test_rule_9_a_batch_is_folded_by_key_only_where_only_the_last_record_of_a_key_counts() -> None:
    rows = [(b"a", b"1", 10), (b"b", b"1", 11), (b"a", b"2", 5), (None, b"x", 6), (b"b", None, 12)]
    messages = cast("Sequence[Message]", [Sized(n, key, value, time) for n, (key, value, time) in enumerate(rows)])
    every = FoldedBatch(by_key=False)
    every.add(messages, 0)
    assert every.memory > 0 and every.is_due(0, 1_000, 5)
    assert every.take() == [row for row in rows if row[0] is not None]
    assert every.take() == [] and every.memory == 0


class Sized(Raw):
    """A record with its size, like confluent-kafka's."""

    def __len__(self) -> int:
        return len(self.value() or b"")
