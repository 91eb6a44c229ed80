"""The order in which a task takes its records."""

from __future__ import annotations

from random import Random

import pytest

from penstock import serdes
from penstock.runtime.input.deserialization import Decoder
from penstock.runtime.input.queues import PartitionQueue, TaskQueues
from penstock.runtime.model.ids import NextOffset, TopicPartition
from tests.support.raw_messages import Raw


def queue(topic: str = "t", start: int = 0) -> PartitionQueue:
    return PartitionQueue(TopicPartition(topic, 0), Decoder(topic, serdes.STRING, serdes.STRING), NextOffset(start))


def drain(queues: TaskQueues, now_ms: int = 0, limit: int = 1000) -> list[tuple[str, int]]:
    """Takes what may be taken: (topic, offset) in order."""
    taken: list[tuple[str, int]] = []
    while (run := queues.next_run(limit, now_ms)) is not None:
        taken += [(run.queue.partition.topic, offset) for offset in run.batch.offsets[run.start : run.stop]]
        run.queue.take(run.batch, run.stop)
    return taken


def drain_merged(queues: TaskQueues, limit: int) -> list[tuple[str, int]]:
    """Takes what may be taken, as merges."""
    taken: list[tuple[str, int]] = []
    while (run := queues.next_run(limit, 0)) is not None:
        merge = queues.next_merge(limit)
        rows = [(merge.runs[number].queue.partition.topic, offset) for _, number, offset, *_ in merge.rows]
        assert rows[0] == (run.queue.partition.topic, run.batch.offsets[run.start])
        taken += rows
        for queue, batch, start, stop in merge.runs:
            if stop > start:
                queue.take(batch, stop)
    return taken


@pytest.mark.parametrize(("limit", "stop"), [(1000, 5), (2, 2)], ids=["whole batch", "limit"])
def test_a_run_of_one_partition_is_a_whole_batch_but_no_longer_than_its_limit(limit: int, stop: int) -> None:
    one = queue()
    queues = TaskQueues([one], 0)
    one.enqueue([Raw(n, time=10 - n) for n in range(5)])
    run = queues.next_run(limit, 0)
    assert run is not None
    assert (run.start, run.stop) == (0, stop)
    one.take(run.batch, stop)
    assert one.next_offset == stop
    assert one.partition_time == 10
    assert one.buffered == 5 - stop


def test_of_several_partitions_the_smallest_head_timestamp_comes_first() -> None:
    left, right = queue("left"), queue("right")
    queues = TaskQueues([left, right], -1)
    left.enqueue([Raw(0, time=1), Raw(1, time=4), Raw(2, time=9)])
    right.enqueue([Raw(0, time=2), Raw(1, time=3), Raw(2, time=5)])
    assert drain(queues) == [("left", 0), ("right", 0), ("right", 1), ("left", 1), ("right", 2), ("left", 2)]


def test_only_heads_are_compared_so_a_late_record_does_not_hold_back_those_behind_it() -> None:
    left, right = queue("left"), queue("right")
    queues = TaskQueues([left, right], -1)
    left.enqueue([Raw(0, time=5), Raw(1, time=1)])
    right.enqueue([Raw(0, time=3)])
    assert drain(queues) == [("right", 0), ("left", 0), ("left", 1)]


@pytest.mark.parametrize("merged", [False, True], ids=["runs", "merges"])
@pytest.mark.parametrize("seed", range(200))
def test_the_order_depends_on_timestamps_and_partitions_and_not_on_the_size_of_batches(seed: int, merged: bool) -> None:
    """At equal timestamps the first partition's head comes first: the order is that of the largest timestamp so far in the partition, the
    partition, and the offset."""
    random = Random(seed)
    times = {topic: [random.randint(0, 12) + 3 * n // 2 for n in range(random.randint(0, 15))] for topic in "abc"}
    queues = [queue(topic) for topic in times]
    for each in queues:
        messages = [Raw(offset, time=at) for offset, at in enumerate(times[each.partition.topic])]
        cut = random.randint(0, len(messages))
        each.enqueue(messages[:cut])
        each.enqueue(messages[cut:])
    running = [(max(at[: offset + 1]), topic, offset) for topic, at in times.items() for offset in range(len(at))]
    limit, of_several = random.randint(1, 8), TaskQueues(queues, -1)
    drained = drain_merged(of_several, limit) if merged else drain(of_several, limit=limit)
    assert drained == [(topic, offset) for _, topic, offset in sorted(running)]


def test_a_merge_ends_before_the_record_to_stop_at_and_before_one_that_cannot_be_read() -> None:
    left, right = queue("left"), queue("right")
    queues = TaskQueues([left, right], -1)
    left.enqueue([Raw(n, time=2 * n) for n in range(6)])
    left.stop_before = 4
    right.enqueue([Raw(0, time=1), Raw(1, time=3), Raw(2, b"\xff", time=5), Raw(3, time=7)])
    assert drain_merged(queues, 1000) == [("left", 0), ("right", 0), ("left", 1), ("right", 1)]
    assert queues.blocked() is right
    right.skip_failure()
    assert drain_merged(queues, 1000) == [("left", 2), ("left", 3)]
    assert queues.blocked() is left


def test_max_task_idle_an_empty_partition_that_may_have_more_is_waited_for() -> None:
    left, right = queue("left"), queue("right")
    queues = TaskQueues([left, right], 0)
    left.enqueue([Raw(0, time=5)])
    assert drain(queues) == []
    right.reached_end(0)
    assert drain(queues) == [("left", 0)]


def test_max_task_idle_waits_that_long_for_a_partition_at_its_end() -> None:
    left, right = queue("left"), queue("right")
    queues = TaskQueues([left, right], 100)
    left.enqueue([Raw(0, time=5)])
    right.reached_end(0)
    assert drain(queues, now_ms=1000) == []
    assert queues.idle_since == 1000
    assert drain(queues, now_ms=1099) == []
    assert drain(queues, now_ms=1100) == [("left", 0)]


def test_new_records_end_the_wait() -> None:
    left, right = queue("left"), queue("right")
    queues = TaskQueues([left, right], 100)
    left.enqueue([Raw(0, time=5)])
    right.reached_end(0)
    assert drain(queues, now_ms=1000) == []
    right.enqueue([Raw(0, time=1)])
    assert drain(queues, now_ms=1001) == [("right", 0)]
    assert queues.idle_since == 1001


def test_max_task_idle_begins_when_the_broker_is_known_to_have_no_more() -> None:
    left, right = queue("left"), queue("right")
    queues = TaskQueues([left, right], 100)
    left.enqueue([Raw(0, time=5)])
    assert drain(queues, now_ms=1000) == []
    right.reached_end(0)
    assert drain(queues, now_ms=1150) == []
    assert queues.idle_since == 1000
    assert drain(queues, now_ms=1250) == [("left", 0)]


def test_max_task_idle_begins_when_the_partition_is_empty_and_not_with_the_next_record_of_another() -> None:
    left, right = queue("left"), queue("right")
    queues = TaskQueues([left, right], 100)
    right.enqueue([Raw(0, time=1)])
    left.reached_end(0)
    assert drain(queues, now_ms=900) == [] and drain(queues, now_ms=1000) == [("right", 0)]
    right.reached_end(1)
    queues.note_end(right, 1000)
    queues.note_end(right, 1050)
    left.enqueue([Raw(0, time=5)])
    assert drain(queues, now_ms=1099) == [] and drain(queues, now_ms=1100) == [("left", 0)]
    queues.note_end(left, 1200)  # it is not known to be empty on the broker
    right.enqueue([Raw(1, time=9)])
    assert drain(queues, now_ms=1300) == []


def test_max_task_idle_counts_for_each_partition_of_its_own() -> None:
    left, middle, right = queue("left"), queue("middle"), queue("right")
    queues = TaskQueues([left, middle, right], 100)
    left.enqueue([Raw(0, time=5), Raw(1, time=9)])
    middle.enqueue([Raw(0, time=6)])
    middle.reached_end(1)
    right.reached_end(0)
    assert drain(queues, now_ms=1000) == []
    assert drain(queues, now_ms=1100) == [("left", 0), ("middle", 0)]  # then `middle` is empty too, since a moment
    assert drain(queues, now_ms=1150) == []
    assert drain(queues, now_ms=1200) == [("left", 1)]


def test_without_max_task_idle_nothing_is_waited_for() -> None:
    left, right = queue("left"), queue("right")
    queues = TaskQueues([left, right], -1)
    left.enqueue([Raw(0, time=5)])
    assert drain(queues) == [("left", 0)]
    assert queues.idle_since is None


def test_rule_16_a_bad_record_is_met_only_when_it_is_the_head() -> None:
    one = queue()
    queues = TaskQueues([one], 0)
    one.enqueue([Raw(0), Raw(1), Raw(2, b"\xff"), Raw(3)])
    run = queues.next_run(1, 0)
    assert run is not None
    assert queues.blocked() is None
    one.take(run.batch, run.stop)
    assert queues.blocked() is None
    assert drain(queues) == [("t", 1)]
    assert queues.blocked() is one
    assert one.failure is not None
    assert one.failure.message.offset() == 2
    one.skip_failure()
    assert one.next_offset == 3
    assert drain(queues) == [("t", 3)]
    assert one.buffered == 0


def test_rule_16_a_bad_record_in_the_batch_of_the_record_to_stop_before_is_not_met_before_it() -> None:
    one = queue()
    one.stop_before = 1
    queues = TaskQueues([one], 0)
    one.enqueue([Raw(0), Raw(1), Raw(2), Raw(3, b"\xff")])
    assert drain(queues) == [("t", 0)]
    assert queues.blocked() is one and one.stopped
    assert one.failure is None
    one.skip_failure()
    assert one.next_offset == 1


def test_rule_16_a_bad_head_holds_back_the_other_partitions_of_its_task() -> None:
    left, right = queue("left"), queue("right")
    queues = TaskQueues([left, right], -1)
    left.enqueue([Raw(0, time=1), Raw(1, b"\xff", time=9)])
    right.enqueue([Raw(0, time=3)])
    assert drain(queues) == [("left", 0)]
    assert queues.blocked() is left


def test_rule_18_the_queue_stops_before_a_given_record() -> None:
    one = queue()
    one.stop_before = 3
    queues = TaskQueues([one], 0)
    one.enqueue([Raw(n) for n in (1, 2, 3, 4)])
    assert drain(queues) == [("t", 1), ("t", 2)]
    assert queues.blocked() is one
    assert one.failure is None


def test_markers_behind_the_last_record_count_as_processed_with_it() -> None:
    one = queue()
    queues = TaskQueues([one], 0)
    one.enqueue([Raw(0), Raw(1)])
    one.reached_end(5)
    assert one.next_offset == 0
    drain(queues)
    assert one.next_offset == 5


def test_an_end_without_records_moves_the_next_offset() -> None:
    one = queue(start=4)
    one.reached_end(6)
    assert one.next_offset == 6


def test_rule_17_clearing_keeps_partition_time() -> None:
    one = queue()
    queues = TaskQueues([one], 0)
    one.enqueue([Raw(0, time=50), Raw(1, b"\xff")])
    drain(queues)
    one.clear(NextOffset(2))
    assert one.partition_time == 50
    assert one.next_offset == 2
    assert one.buffered == 0
    assert queues.blocked() is None


def test_a_long_poll_is_decoded_in_parts_and_nothing_is_lost() -> None:
    one = queue()
    queues = TaskQueues([one], 0)
    one.enqueue([Raw(n) for n in range(12_000)])
    assert [offset for _, offset in drain(queues, limit=7000)] == list(range(12_000))


def test_rule_16_after_a_resume_what_was_the_end_before_is_not_taken_for_processed() -> None:
    one = queue()
    queues = TaskQueues([one], 0)
    one.enqueue([Raw(n) for n in range(10)])
    one.reached_end(10)
    run = queues.next_run(4, 0)
    assert run is not None
    one.take(run.batch, run.stop)
    one.clear(NextOffset(5))  # paused before record 4, resumed behind it
    one.enqueue([Raw(n) for n in range(5, 7)])  # the next poll gives a part of what is there
    assert drain(queues) == [("t", 5), ("t", 6)]
    assert one.next_offset == 7
