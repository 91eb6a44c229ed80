"""Size of transactions while brokers take outputs slowly."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

import pytest

from penstock.runtime.kafka.throttling import Throttling
from penstock.runtime.testing import ManualClock
from penstock.runtime.worker.pace import SPAN_MS, Pace

TIMEOUT_MS = 10_000
WINDOW_S = 11
"""Time over which brokers measure quotas by default."""


@dataclass
class Work:
    """A worker that could process `most` records between two commits, and brokers with a quota, in records per second. What they took
    beyond `WINDOW_S` times the quota delays the next commits, which fail after `TIMEOUT_MS`."""

    pace: Pace
    throttling: Throttling
    clock: ManualClock
    quota: float
    most: int = 20_000
    debt: float = 0.0
    committed: list[int] = field(default_factory=list)
    failed: int = 0

    def run(self, seconds: int) -> None:
        until = self.clock.monotonic_ms() + seconds * 1000
        while self.clock.monotonic_ms() < until:
            records = int(min(self.most, self.pace.room))
            self.pace.processed(records)
            self.debt += records
            self._pass(SPAN_MS)
            delay_ms = int(max(0.0, self.debt / self.quota - WINDOW_S) * 1000)
            self._pass(min(delay_ms, TIMEOUT_MS))
            self.throttling.add(delay_ms)
            if delay_ms < TIMEOUT_MS:
                self.committed.append(records)
                self.pace.committed(delay_ms)
            else:
                self.failed += 1
                self.pace.failed(TIMEOUT_MS)

    def _pass(self, milliseconds: int) -> None:
        self.clock.advance(milliseconds)
        self.debt = max(0.0, self.debt - self.quota * milliseconds / 1000)


def work(quota: float) -> Work:
    clock = ManualClock()
    throttling = Throttling(clock)
    return Work(Pace(TIMEOUT_MS, throttling, clock), throttling, clock, quota)


REQUESTS = 6
"""Of one commit to one broker: outputs and changelogs of several partitions, events."""


LIMITED_MS = 12_000
"""When the first limit holds, and what was sent before does not count any more."""


def test_no_commit_comes_near_to_the_time_out_once_there_is_a_limit() -> None:
    """A broker counts each record for `WINDOW_S`. After a quiet time it takes several times the quota at once, then nothing for long: each
    request of a commit waits until the average is within the quota, and the average falls only when the burst is as old."""
    clock, timeout_ms, quota = ManualClock(), TIMEOUT_MS // 2, 180
    throttling = Throttling(clock)
    pace = Pace(timeout_ms, throttling, clock)
    counted: deque[tuple[int, float]] = deque()
    unread_until_ms, committed = 0, list[tuple[int, int]]()
    while clock.monotonic_ms() < 300_000:
        records = int(min(12_000, pace.room))
        pace.processed(records)
        clock.advance(SPAN_MS)
        began_ms = now_ms = clock.monotonic_ms()
        for _ in range(REQUESTS):
            clock.advance(min(max(0, unread_until_ms - now_ms), began_ms + timeout_ms - now_ms))
            now_ms = clock.monotonic_ms()
            if now_ms >= began_ms + timeout_ms:
                break
            counted.append((now_ms, records / REQUESTS))
            while counted[0][0] <= now_ms - WINDOW_S * 1000:
                counted.popleft()
            delay_ms = int(max(0.0, sum(number for _, number in counted) / quota - WINDOW_S) * 1000)
            unread_until_ms = now_ms + delay_ms
            throttling.add(delay_ms)
        took_ms = clock.monotonic_ms() - began_ms
        if began_ms > LIMITED_MS:
            committed.append((took_ms, records))
        if took_ms < timeout_ms:
            pace.committed(took_ms)
        else:
            pace.failed(took_ms)
    assert max(committed)[0] < timeout_ms / 2
    assert sum(records for _, records in committed) > 0.8 * quota * 280


def test_without_slow_commits_there_is_no_limit() -> None:
    quick = work(1e9)
    quick.run(10)
    assert quick.committed == [20_000] * 100 and quick.pace.room == math.inf


@pytest.mark.parametrize("quota", [5, 100, 3_000, 50_000])
def test_what_is_processed_comes_near_to_what_brokers_take(quota: int) -> None:
    slow = work(quota)
    slow.run(120 + slow.most // quota)  # what it sent before it knew delays it for long
    failed = slow.failed
    slow.committed.clear()
    slow.run(600)
    assert slow.failed == failed, "no transaction fails once the rate is found"
    assert 0.5 * quota <= sum(slow.committed) / 600 <= 1.1 * quota


def test_the_limit_ends_when_brokers_are_quick_again() -> None:
    slow = work(100)
    slow.run(60)
    assert slow.pace.room < 100
    slow.quota, slow.debt = 1e9, 0
    slow.run(120)
    assert slow.committed[-1] == 20_000 and slow.pace.room == math.inf


def test_a_limit_is_not_raised_while_there_is_little_to_process() -> None:
    slow = work(100)
    slow.run(60)
    limit, slow.most = slow.pace.room, 1
    slow.run(60)
    assert slow.pace.room <= limit


def test_a_commit_that_no_quota_delays_limits_nothing() -> None:
    """After an outage of brokers a worker has to catch up."""
    clock = ManualClock()
    pace = Pace(TIMEOUT_MS, Throttling(clock), clock)
    for note in (pace.committed, pace.failed):
        pace.processed(20_000)
        note(TIMEOUT_MS)
        assert pace.room == math.inf


def test_without_transactions_nothing_is_late() -> None:
    clock = ManualClock()
    pace = Pace(math.inf, Throttling(clock), clock)
    pace.processed(10)
    pace.committed(1e9)
    pace.processed(10)
    pace.failed(1e9)
    assert pace.room == math.inf


def test_slow_user_code_behind_a_cache_makes_commits_smaller() -> None:
    """Three milliseconds for each cached update: a flush of all that was processed in between would take a minute."""
    clock = ManualClock()
    pace = Pace(TIMEOUT_MS, Throttling(clock), clock)
    committed, failed = 0, 0
    while clock.monotonic_ms() < 120_000:
        records = int(min(20_000, pace.room))
        pace.processed(records)
        flush_ms = records * 3
        clock.advance(SPAN_MS + min(flush_ms, 2 * TIMEOUT_MS))
        if flush_ms < TIMEOUT_MS:
            committed += records
            pace.committed(flush_ms)
        else:
            failed += 1
            pace.failed(2 * TIMEOUT_MS, in_flush=True)
    assert failed == 1 and committed > 0.5 * 120_000 / 3


def test_a_flush_that_fails_early_limits_nothing() -> None:
    clock = ManualClock()
    pace = Pace(TIMEOUT_MS, Throttling(clock), clock)
    pace.processed(1_000)
    pace.failed(100, in_flush=True)
    pace.processed(1_000)
    pace.committed(3_000)
    assert pace.room == math.inf
