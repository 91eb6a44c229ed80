"""Progress reports of a restore."""

from __future__ import annotations

import logging

import pytest

from penstock.runtime.changelog.progress import TaskProgress, TaskRestore
from penstock.runtime.model.events import EventKind, EventSink
from penstock.runtime.model.ids import TaskId
from penstock.runtime.model.metrics import TASK, Metrics
from penstock.testing import ManualClock

TASK_ID = TaskId(0, 3)


class Watched:
    """A restore of 10,000 offsets."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.metrics = Metrics()
        self.events = EventSink("app", "instance", self.clock)
        self.restore = TaskRestore(TASK_ID, 10_000, self.clock, self.metrics, self.events)

    def after(self, milliseconds: int, records: int, remaining: int) -> TaskProgress:
        self.clock.advance(milliseconds)
        self.restore.update(records, remaining)
        return self.restore.progress

    def gauges(self) -> dict[str, float]:
        return {key.name: value for key, value in self.metrics.values().items() if ("task-id", "0_3") in key.tags and key.group == TASK}


def test_rate_and_time_left_follow_from_the_last_seconds() -> None:
    watched = Watched()
    assert watched.restore.progress == TaskProgress(0, 10_000, 0.0, None)
    assert watched.after(500, 1_000, 9_000) == TaskProgress(1_000, 9_000, 2_000.0, 4.5)
    assert watched.gauges() == {"restore-rate": 2_000.0, "restore-remaining-records-total": 9_000.0, "restore-seconds-left": 4.5}


def test_time_left_goes_by_offsets_which_are_more_than_records_on_a_compacted_log() -> None:
    progress = Watched().after(1_000, 100, 5_000)
    assert progress.rate == 100 and progress.seconds_left == 1.0


def test_a_stalled_restore_has_no_estimate_of_the_time_left() -> None:
    watched = Watched()
    progress = watched.after(500, 0, 10_000)
    assert progress.rate == 0 and progress.seconds_left is None
    assert watched.gauges()["restore-seconds-left"] == -1


def test_an_old_pace_is_forgotten() -> None:
    watched = Watched()
    watched.after(500, 5_000, 5_000)
    for _ in range(10):
        progress = watched.after(500, 5_000, 5_000)
    assert progress.rate == 0


def test_a_long_restore_is_reported_every_five_seconds(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched()
    with caplog.at_level(logging.INFO):
        for number in range(1, 21):
            watched.after(500, number * 100, 10_000 - number * 100)
    reported = watched.events.drain()
    assert [event.kind for event in reported] == [EventKind.RESTORE_PROGRESS] * 2
    assert reported[0].task == "0_3"
    assert reported[0].payload == {"records": 1_000, "remaining": 9_000, "rate": 200, "seconds_left": 45.0}
    assert caplog.records[0].getMessage() == ("task 0_3 restores: 1000 records so far, 200 a second, 9000 offsets to go, time left: 45 s")


def test_a_restore_that_gets_no_record_is_reported_with_the_likely_cause(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched()
    watched.after(500, 1_000, 9_000)
    for _ in range(58):
        watched.after(500, 1_000, 9_000)
    assert not caplog.records
    for _ in range(12):
        watched.after(500, 1_000, 9_000)
    [warning] = caplog.records
    assert "task 0_3 has restored nothing for 34 s: an open transaction" in warning.getMessage()
    watched.after(500, 2_000, 8_000)
    watched.after(5_000, 2_000, 8_000)
    assert len(caplog.records) == 1


def test_a_short_restore_makes_no_noise_and_leaves_no_rate_behind() -> None:
    watched = Watched()
    watched.after(500, 1_000, 9_000)
    watched.restore.done = 10_000
    watched.restore.end()
    (ended,) = watched.events.drain()
    assert ended.kind is EventKind.RESTORE_ENDED and ended.payload == {"records": 10_000, "seconds": 0.5}
    assert set(watched.gauges().values()) == {0.0}
