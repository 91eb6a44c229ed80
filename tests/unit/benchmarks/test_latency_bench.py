"""`make bench ARGS=latency`: which results count, and the tables."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import Message

from benchmarks.latency import BEGIN, END, PAGE, Arrivals, Latency, Trial, text
from benchmarks.measure import MeasurementError
from benchmarks.peers.programs import PENSTOCK


def test_only_results_of_records_that_were_written_late_enough_count() -> None:
    arrivals, now = Arrivals(), int(time.time() * 1000)
    arrivals.since_ms = now - 1_000
    for age in (2_000, 900, 300):
        arrivals.note(Message(topic="t", timestamp=(1, now - age)))
    found = arrivals.latency(0.5)
    assert found.p50 == pytest.approx(900, abs=500)
    assert 900 <= found.longest < 2_000
    with pytest.raises(MeasurementError, match="no result"):
        Arrivals().latency(0.5)


def test_a_rate_that_is_not_held_has_no_latency() -> None:
    fast, slow = Trial(PENSTOCK, True, 2_000, 100), Trial(PENSTOCK, True, 100_000, 100)
    other = Trial("kafka-streams", True, 2_000, 100)
    shown = text({fast: Latency(61.2, 113, 140, 0.16), other: Latency(59, 113, 150, 0.4), slow: None}, {}, 20)
    assert "| exactly once | 2,000 | 61 | 113 | 140 | 0.16 | 59 | 113 | 150 | 0.40 |" in shown
    assert "| exactly once | 100,000 | does not keep up | | | | | | | |" in shown
    assert "commit.interval.ms" not in shown


def test_the_settings_have_a_table_of_their_own() -> None:
    shown = text({}, {Trial(PENSTOCK, True, 5_000, 10, 0): Latency(20, 39, 60, 0.3)}, 20)
    assert "| exactly once | 10 | 0 | 20 | 39 | 60 | 0.30 |" in shown


def test_the_page_has_a_place_for_the_tables() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page.index(BEGIN) < page.index(END)
