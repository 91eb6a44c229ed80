"""Start of a reset (`--to`), and the topics that it considers the application's own."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from penstock.orchestration.resets.survey import _may_belong
from penstock.orchestration.resets.target import Edge, Target
from penstock.runtime.model.ids import TopicPartition

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
OFFSETS = {TopicPartition("flights.eu", 0): 100, TopicPartition("flights.eu", 1): 0}


@pytest.mark.parametrize(
    ("text", "to"),
    [
        ("earliest", Edge.EARLIEST),
        ("latest", Edge.LATEST),
        ("PT1H", NOW - timedelta(hours=1)),
        ("P2DT3M0.5S", NOW - timedelta(days=2, minutes=3, seconds=0.5)),
        ("2026-01-30T10:00:00", datetime(2026, 1, 30, 10, tzinfo=UTC)),
        ("2026-01-30T10:00:00+02:00", datetime(2026, 1, 30, 8, tzinfo=UTC)),
        ("2026-01-30", datetime(2026, 1, 30, tzinfo=UTC)),
        ("1969-12-31T23:59:59.999", EPOCH),
        ("0001-01-01T00:00:00+14:00", EPOCH),
        ("P1000000000000D", EPOCH),
        ("P100000D", EPOCH),
        ("flights.eu:0=100, flights.eu:1=0", OFFSETS),
    ],
)
def test_a_target_is_an_edge_a_time_in_utc_a_duration_back_or_offsets(text: str, to: object) -> None:
    assert Target.parse(text, NOW).to == to


def test_offsets_come_from_a_file_as_kafkas_own_tool_writes_it(tmp_path: Path) -> None:
    file = tmp_path / "offsets.csv"
    file.write_text('"flights.eu",0,100\nflights.eu,1,0\n\n')
    assert Target.parse(str(file), NOW).to == OFFSETS
    file.write_text("flights.eu,0,100\nflights.eu,0,99\n")
    with pytest.raises(ValueError, match=r"flights[.]eu-0 has two offsets: 100 and 99"):
        Target.parse(str(file), NOW)
    file.write_text("flights.eu 0 100\n")
    with pytest.raises(ValueError, match="line 1: expected topic,partition,offset"):
        Target.parse(str(file), NOW)


@pytest.mark.parametrize(
    "text", ["9999-12-31T23:59:59-14:00", "", "yesterday", "P", "PT", "-1", "1769860800000", "flights:0=-1", "flights=3", "flights:x=3"]
)
def test_what_says_nowhere_to_begin_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected|is not TOPIC:PARTITION=OFFSET"):
        Target.parse(text, NOW)


def test_a_topic_of_an_application_with_a_longer_id_is_not_taken_for_an_own_one() -> None:
    topics = {"a-coordination", "a-b-coordination", "a-b-c-counts-changelog", "a-x-changelog"}
    assert _may_belong("a-x-changelog", "a", topics)
    assert not _may_belong("a-b-c-counts-changelog", "a", topics)
    assert _may_belong("a-b-c-counts-changelog", "a-b", topics)
    assert not _may_belong("ab-counts-changelog", "a", topics)
