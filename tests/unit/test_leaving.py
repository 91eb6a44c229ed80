"""How long who leaves goes on with its tasks (rules.md, 4), and who counts as an heir."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from runtime.coordination.coordination import Coordination
from runtime.coordination.records import Member
from runtime.coordination.registry import Known, Registry
from runtime.worker.calls import Stop
from runtime.worker.loop import LAST_WORD_MS, Worker


@dataclass(slots=True)
class Leaving:
    """A worker's parts and clock: each turn takes 100 ms. `heirs`: whether somebody could take its tasks at a time."""

    heirs: Callable[[int], bool]
    tasks: Callable[[int], int] = lambda now_ms: 2
    now_ms: int = 50_000
    asked: list[int] = field(default_factory=list)

    def monotonic_ms(self) -> int:
        return self.now_ms

    def to_be_handed_over(self, siblings_stay: bool) -> bool:
        return self.tasks(self.now_ms) > 0 and self.heirs(self.now_ms)

    def ask_to_leave(self) -> None:
        self.asked.append(self.now_ms)

    def turn(self) -> None:
        self.now_ms += 100


def leave(leaving: Leaving, timeout_ms: int, leave_group: bool = True) -> int:
    """Drains a worker. Returns for how many milliseconds it went on."""
    worker = cast(Any, Worker.__new__(Worker))
    worker._clock = worker._parts = leaving
    worker._stop, worker._stop_at_ms = Stop(timeout_ms, leave_group), leaving.now_ms + timeout_ms
    worker._turn, worker._guarded = leaving.turn, lambda step: step()
    begun_ms = leaving.now_ms
    worker._drain()
    return leaving.now_ms - begun_ms


def test_who_leaves_goes_on_until_its_tasks_are_others() -> None:
    leaving = Leaving(heirs=lambda now_ms: True, tasks=lambda now_ms: 2 if now_ms < 53_000 else 0)
    assert leave(leaving, 30_000) == 3_000
    assert len(leaving.asked) == 1


def test_what_nobody_learns_in_time_is_given_back_with_time_left_for_a_clean_end() -> None:
    assert leave(Leaving(heirs=lambda now_ms: True), 30_000) == 30_000 - LAST_WORD_MS


def test_a_time_that_is_too_short_for_learning_is_spent_on_a_clean_end() -> None:
    assert leave(Leaving(heirs=lambda now_ms: True), LAST_WORD_MS) == 0


def test_who_leaves_does_not_wait_for_heirs_that_are_gone() -> None:
    assert leave(Leaving(heirs=lambda now_ms: now_ms < 51_000), 30_000) == 1_000


def test_who_is_alone_or_comes_back_does_not_ask_others() -> None:
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
def test_heirs_are_those_who_stay(others: list[Member], siblings_stay: bool, heirs: bool) -> None:
    """All that leave at once, or with their instance, wait for nobody."""
    mine = member("a")
    coordination = cast(Any, Coordination.__new__(Coordination))
    coordination._member, coordination._announced, coordination._registry = mine, True, Registry()
    for each in [mine, *others]:
        coordination._registry.members[each.who] = Known(each, each.key, 0, 0)
    assert coordination.has_heirs(siblings_stay) is heirs
