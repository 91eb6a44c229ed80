"""Delays by quotas, as a worker's clients report them."""

from __future__ import annotations

import logging

import pytest

from penstock.runtime.kafka.throttling import RECENT_MS, SLOW_MS, Throttling
from penstock.runtime.testing import ManualClock


def test_the_longest_delay_of_the_last_minute_counts() -> None:
    clock = ManualClock()
    throttling = Throttling(clock)
    assert throttling.recent_ms() == 0
    for delay_ms in (500, 3_000, 700, SLOW_MS - 1):
        throttling.add(delay_ms)
        clock.advance(10_000)
    assert throttling.recent_ms() == 3_000
    clock.advance(RECENT_MS - 25_000)
    assert throttling.recent_ms() == 700
    clock.advance(RECENT_MS)
    assert throttling.recent_ms() == 0


def test_a_line_is_logged_once_per_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    throttling = Throttling(clock)
    with caplog.at_level(logging.WARNING):
        for _ in range(25):
            throttling.add(2_000)
            clock.advance(5_000)
    assert len([line for line in caplog.messages if "delay this instance's clients, now by 2.0 s" in line]) == 3
