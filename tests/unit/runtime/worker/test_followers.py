"""When a standby or learner has caught up (rules.md, 25)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from penstock.runtime.model.ids import TaskId
from penstock.runtime.model.states import TaskState
from penstock.runtime.worker.followers import Followers

TASK = TaskId(0, 0)
RECENTLY_MS = 200


class Copy:
    """A follower, its changelog, and a clock: each round takes 50 ms."""

    def __init__(self, acceptable_lag: int = 0) -> None:
        self.now_ms = self.end = self.position = 0
        self.task = SimpleNamespace(id=TASK, followed=True, caught_up=False, state=TaskState.RUNNING, position=0, measure=self.measure)
        self.followers = Followers(cast(Any, None), cast(Any, self), cast(Any, self), acceptable_lag, RECENTLY_MS, cast(Any, None))
        self.followers._tasks[TASK] = cast(Any, self.task)

    def monotonic_ms(self) -> int:
        return self.now_ms

    def measure(self, lag: int, now_ms: int) -> None:
        assert (lag, now_ms) == (self.lag(TASK), self.now_ms)

    def lag(self, task: TaskId) -> int:
        return self.end - self.position

    def round(self, written: int, behind: int) -> bool:
        """Write so many records, with the copy so far behind."""
        self.now_ms += 50
        self.end += written
        self.position = self.task.position = self.end - behind
        self.followers.advance()
        return bool(self.task.caught_up)


def test_a_copy_of_a_quiet_changelog_has_caught_up_when_it_lags_acceptably() -> None:
    copy = Copy(acceptable_lag=10)
    assert not copy.round(100, 11)
    assert copy.round(0, 10)


def test_records_of_the_last_two_commits_do_not_count_as_lag() -> None:
    copy = Copy()
    rounds = [copy.round(100, 150) for _ in range(30)]
    assert all(rounds[5:]), "it comes and goes while it is read as fast as it is written"


def test_a_copy_that_falls_behind_is_no_longer_caught_up() -> None:
    copy = Copy()
    for _ in range(10):
        copy.round(100, 100)
    assert not copy.round(100, 5_000)


def test_a_caught_up_copy_stays_so_until_it_lags_twice_as_far() -> None:
    copy = Copy(acceptable_lag=1_000)
    assert copy.round(2_000, 900)
    assert copy.round(0, 1_900)
    assert not copy.round(0, 2_100)
    assert not copy.round(0, 1_900)
