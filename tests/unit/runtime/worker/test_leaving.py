"""Time for which a leaving worker keeps processing its tasks, and the members that may inherit them (rules.md, 4)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from penstock.runtime.coordination.coordination import Coordination
from penstock.runtime.coordination.records import Member
from penstock.runtime.coordination.registry import Known, Registry
from penstock.runtime.worker.loop import CLOSE_RESERVE_MS, Worker
from penstock.runtime.worker.rpc import Stop


@dataclass(slots=True)
class Leaving:
    """A worker's components and clock: each turn takes 100 ms. `heirs`: whether a member could take over its tasks at a time."""

    heirs: Callable[[int], bool]
    tasks: Callable[[int], int] = lambda now_ms: 2
    now_ms: int = 50_000
    asked: list[int] = field(default_factory=list)

    def monotonic_ms(self) -> int:
        return self.now_ms

    def has_tasks_to_hand_over(self, siblings_stay: bool) -> bool:
        return self.tasks(self.now_ms) > 0 and self.heirs(self.now_ms)

    @property
    def coordination(self) -> Leaving:
        return self

    def ask_to_leave(self) -> None:
        self.asked.append(self.now_ms)

    def turn(self) -> None:
        self.now_ms += 100


def leave(leaving: Leaving, timeout_ms: int, leave_group: bool = True) -> int:
    """Drain a worker. Return for how many milliseconds it kept processing."""
    worker = cast(Any, Worker.__new__(Worker))
    worker._clock = worker._assembly = leaving
    worker._stop, worker._stop_at_ms = Stop(timeout_ms, leave_group), leaving.now_ms + timeout_ms
    worker._turn, worker._guarded = leaving.turn, lambda step: step()
    begun_ms = leaving.now_ms
    worker._drain()
    return leaving.now_ms - begun_ms


def test_a_leaving_worker_processes_until_others_have_its_tasks() -> None:
    leaving = Leaving(heirs=lambda now_ms: True, tasks=lambda now_ms: 2 if now_ms < 53_000 else 0)
    assert leave(leaving, 30_000) == 3_000
    assert len(leaving.asked) == 1


def test_tasks_that_no_member_takes_over_in_time_leave_time_for_a_clean_close() -> None:
    assert leave(Leaving(heirs=lambda now_ms: True), 30_000) == 30_000 - CLOSE_RESERVE_MS


def test_a_timeout_too_short_for_a_hand_over_is_used_for_a_clean_close() -> None:
    assert leave(Leaving(heirs=lambda now_ms: True), CLOSE_RESERVE_MS) == 0


def test_a_leaving_worker_does_not_wait_for_heirs_that_are_gone() -> None:
    assert leave(Leaving(heirs=lambda now_ms: now_ms < 51_000), 30_000) == 1_000


def test_a_worker_that_is_alone_or_will_return_does_not_ask_others() -> None:
    for alone, for_good in ((True, True), (False, False)):
        leaving = Leaving(heirs=lambda now_ms, alone=alone: not alone)  # type: ignore[misc]  # a default argument keeps the value
        assert leave(leaving, 30_000, leave_group=for_good) == 0
        assert not leaving.asked


def member(instance: str, worker: int = 1, leaves: bool = False, returns: bool = False) -> Member:
    return Member(instance=instance, worker=worker, incarnation=1, transactional_id="t", host="h", pid=1, leaves=leaves, returns=returns)


@pytest.mark.parametrize(
    ("others", "siblings_stay", "heirs"),
    [
        ([], False, False),
        ([member("b")], False, True),
        ([member("b", leaves=True)], False, False),
        ([member("b", returns=True)], False, False),
        ([member("b", leaves=True), member("c")], False, True),
        ([member("a", 2)], False, False),
        ([member("a", 2)], True, True),
        ([member("a", 2, leaves=True)], True, False),
    ],
)
def test_heirs_are_members_that_stay(others: list[Member], siblings_stay: bool, heirs: bool) -> None:
    """Members that leave at the same time, or with their instance, wait for no other."""
    mine = member("a")
    coordination = cast(Any, Coordination.__new__(Coordination))
    coordination._member, coordination._announced, coordination._registry = mine, True, Registry()
    for each in [mine, *others]:
        coordination._registry.members[each.identity] = Known(each, each.key, 0, 0)
    assert coordination.has_heirs(siblings_stay) is heirs
