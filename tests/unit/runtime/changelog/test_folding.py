"""Records of a changelog, folded by key before they are written."""

from __future__ import annotations

from confluent_kafka import Message

from penstock.runtime.changelog.folding import FoldedBatch


def messages(*rows: tuple[str | None, str | None, int]) -> list[Message]:
    """Records as the Kafka client gives them: key, value, timestamp."""
    return [
        Message(
            topic="changelog",
            partition=0,
            offset=offset,
            key=None if key is None else key.encode(),
            value=None if value is None else value.encode(),
            timestamp=(1, at),
        )
        for offset, (key, value, at) in enumerate(rows)
    ]


def test_the_latest_record_of_each_key_is_left_with_its_own_time_over_several_polls() -> None:
    batch = FoldedBatch()
    batch.add(messages(("a", "1", 10), ("b", "1", 11)), 0)
    batch.add(messages(("a", "2", 5), ("c", None, 12)), 0)
    assert batch.records == 4
    assert batch.take() == [(b"a", b"2", 5), (b"b", b"1", 11), (b"c", None, 12)]


def test_a_batch_that_was_taken_is_empty() -> None:
    batch = FoldedBatch()
    batch.add(messages(("a", "1", 10)), 0)
    batch.take()
    assert (batch.records, batch.since_ms, batch.memory) == (0, None, 0)
    assert batch.take() == []


def test_records_without_a_key_are_left_out() -> None:
    batch = FoldedBatch()
    batch.add(messages((None, "1", 10), ("a", "1", 11)), 0)
    assert batch.take() == [(b"a", b"1", 11)]


def test_a_store_that_wants_every_record_gets_them_in_their_order() -> None:
    batch = FoldedBatch(by_key=False)
    batch.add(messages(("a", "1", 10), (None, "x", 11), ("a", "2", 12)), 0)
    assert batch.take() == [(b"a", b"1", 10), (b"a", b"2", 12)]


def test_it_is_due_by_time_since_the_first_record_or_by_keys() -> None:
    batch = FoldedBatch()
    assert not batch.is_due(1_000, 0, 1)
    batch.add(messages(("a", "1", 10), ("a", "2", 10)), 1_000)
    batch.add(messages(("b", "1", 10)), 1_150)
    assert not batch.is_due(1_199, 200, 3)
    assert batch.is_due(1_200, 200, 3)
    assert batch.is_due(1_199, 200, 2)


def test_an_offset_alone_is_something_to_write() -> None:
    batch = FoldedBatch()
    batch.touch(500)
    assert batch.is_due(700, 200, 1) and batch.records == 0


def test_its_memory_follows_the_size_of_values_and_the_number_of_keys() -> None:
    small, large, many = FoldedBatch(), FoldedBatch(), FoldedBatch()
    small.add(messages(("a", "x", 1)) * 100, 0)
    large.add(messages(("a", "x" * 10_000, 1)), 0)
    many.add(messages(*((f"k{number}", "x", 1) for number in range(100))), 0)
    assert small.memory < 1_000 < 10_000 < large.memory < 11_000
    assert many.memory == 100 * small.memory
