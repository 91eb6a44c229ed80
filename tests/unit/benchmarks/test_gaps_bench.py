"""Evaluation of `python -m benchmarks gaps`: gaps, outputs that are not the next of their key, the page."""

from __future__ import annotations

from typing import cast

import pytest
from confluent_kafka import Message

from benchmarks.gaps import BEGIN, END, OUT, PAGE, PEACE, STANDBY, Gaps, table
from benchmarks.updates import EachOnce, Watch
from tests.support.raw_messages import Raw

SIZES = [0, 10_000]


def test_the_table_has_the_longest_gap_of_each_measured_event() -> None:
    gaps: Gaps = {
        (PEACE, 0): [120.0],
        (PEACE, 10_000): [110.0],
        (OUT, 0): [150.0, 140.0],
        (OUT, 10_000): [210.0],
        (STANDBY, 10_000): [6_400.0],
    }
    lines = table(gaps, SIZES, 5_000, 2).splitlines()
    assert lines[0] == "| event | no state | 10,000 keys | aim | Kafka Streams |"
    assert "| scale-out | 150 | 210 | 300 | 145–1,318 |" in lines
    assert "| kill -9 with standby |  | 6,400 | 2,000 |  |" in lines


def test_a_gap_ends_with_an_output_or_with_the_time_that_is_looked_at() -> None:
    watch = Watch("127.0.0.1:1", "out", 2)
    watch.times = [[1.0, 2.0, 4.5, 5.0], []]
    assert watch.longest_gaps(1.5, 6.0) == [2.5, 4.5]
    assert watch.longest_gaps(0.0, 1.0) == [1.0, 1.0]


@pytest.mark.parametrize(
    ("counts", "wrong"), [([1, 2, 3], 0), ([1, 3], 1), ([1, 2, 2, 3], 1), ([2], 1)], ids=["right", "lost", "twice", "not the first"]
)
def test_an_output_that_is_not_the_next_of_its_key_is_counted(counts: list[int], wrong: int) -> None:
    check = EachOnce(2)
    for count in counts:
        check.note(cast(Message, Raw(count, b"k00000001", count.to_bytes(8, "big"))))
    assert check.wrong == wrong


def test_the_page_has_the_place_for_it() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page.index(BEGIN) < page.index(END)
