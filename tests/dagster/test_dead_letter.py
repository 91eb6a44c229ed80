"""The dead-letter topic: raw and complete, each record exactly once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.orchestration.dead_letters import topic
from penstock.orchestration.dead_letters.topic import DeadLetter, RawRecord, dead_letter_topic, read_record, store_dead_letter
from tests.support import Kafka

BAD = b'\xff\x00{"truncated'


@pytest.fixture
def record(broker: Kafka) -> RawRecord:
    """Return a record on a topic of the broker, between two others."""
    source = broker.create_topic("source")
    broker.produce(source, [("a", "{}")])
    broker.produce(
        source, [(b"\x01key", BAD)], headers=[("trace", b"\x00\xff"), ("trace", b"again"), ("none", None)], timestamps=[1_357_000_000_123]
    )
    broker.produce(source, [("b", "{}")])
    found = read_record(broker.connection, source, 0, 1)
    assert found is not None
    return found


def test_a_record_is_kept_with_its_bytes_headers_time_coordinates_and_error(broker: Kafka, application_id: str, record: RawRecord) -> None:
    kept = store_dead_letter(broker.connection, application_id, record, "ValueError", "not JSON", "  File …\nValueError")
    assert kept == DeadLetter(dead_letter_topic(application_id), 0, already=False)
    (dead,) = broker.consume(kept.topic)
    assert (dead.key, dead.value, dead.timestamp) == (b"\x01key", BAD, 1_357_000_000_123)
    assert dead.headers == (
        ("trace", b"\x00\xff"),
        ("trace", b"again"),
        ("none", None),
        ("__streams.errors.exception", b"ValueError"),
        ("__streams.errors.message", b"not JSON"),
        ("__streams.errors.stacktrace", "  File …\nValueError: not JSON".encode()),
        ("__streams.errors.topic", record.topic.encode()),
        ("__streams.errors.partition", b"0"),
        ("__streams.errors.offset", b"1"),
    )


def test_keeping_again_changes_nothing(broker: Kafka, application_id: str, record: RawRecord) -> None:
    store_dead_letter(broker.connection, application_id, record, "ValueError", "not JSON")
    assert store_dead_letter(broker.connection, application_id, record, "ValueError", "not JSON").already
    assert len(broker.consume(dead_letter_topic(application_id))) == 1


def test_several_at_once_keep_it_once(broker: Kafka, application_id: str, record: RawRecord) -> None:
    with ThreadPoolExecutor(3) as pool:
        kept = list(pool.map(lambda _: store_dead_letter(broker.connection, application_id, record, "E", "e"), range(3)))
    assert len({one.offset for one in kept}) == 1
    assert len(broker.consume(dead_letter_topic(application_id))) == 1


def test_a_writer_that_was_killed_before_its_commit_has_kept_nothing(
    broker: Kafka, application_id: str, record: RawRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(Exception):
        pass

    def die(*_: object) -> int:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(topic, "_write", die)
        with pytest.raises(Killed):
            store_dead_letter(broker.connection, application_id, record, "E", "e")
    assert not topic.has_dead_letter(broker.connection, application_id, record.topic, 0, 1)
    assert not store_dead_letter(broker.connection, application_id, record, "E", "e").already
    assert topic.has_dead_letter(broker.connection, application_id, record.topic, 0, 1)


def test_a_tombstone_and_a_record_without_key_are_kept_as_they_are(broker: Kafka, application_id: str) -> None:
    source = broker.create_topic("source")
    broker.produce(source, [(None, None)])
    record = read_record(broker.connection, source, 0, 0)
    assert record is not None
    store_dead_letter(broker.connection, application_id, record, "E", "e")
    (dead,) = broker.consume(dead_letter_topic(application_id))
    assert (dead.key, dead.value) == (None, None)


@pytest.mark.parametrize("offset", [7, 100])
def test_a_record_that_is_not_in_the_log_is_none(broker: Kafka, record: RawRecord, offset: int) -> None:
    assert read_record(broker.connection, record.topic, 0, offset) is None
