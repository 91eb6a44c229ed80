"""The search for the input record behind a refused output: how small commits get, and how many rollbacks it takes."""

from __future__ import annotations

import pytest

from penstock.runtime.model.ids import TopicPartition
from penstock.runtime.model.offsets import OffsetAndMetadata
from penstock.runtime.tasks.culprits import LARGEST, CulpritSearch, Verdict
from tests.support.raw_messages import Raw

INPUT = TopicPartition("in", 0)


def run(search: CulpritSearch, records: int, bad: set[int]) -> tuple[list[int], int]:
    """Process records in commits as large as the search allows; a commit with a bad record fails. Return the bad records that were found,
    and the number of rollbacks."""
    found: list[int] = []
    rollbacks = at = 0
    while at < records:
        stop = min(records, at + search.remaining(1_000))
        wrong = sorted(offset for offset in bad - set(found) if at <= offset < stop)
        search.count_records(stop - at)
        if not wrong:
            search.committed()
            at = stop
            continue
        if not search.narrow():
            found += wrong
            search.add_verdict(Verdict(Raw(wrong[0], of="in"), ValueError("large"), pauses=False))
        rollbacks += 1
        search.rolled_back()
    return found, rollbacks


@pytest.mark.parametrize("bad", [{0}, {999}, {500}, {3, 700, 701}, set(range(400, 420))])
def test_each_bad_record_is_found_alone_and_in_few_steps(bad: set[int]) -> None:
    search = CulpritSearch()
    found, rollbacks = run(search, 1_000, bad)
    assert found == sorted(bad)
    assert rollbacks <= 5 * len(bad)


def test_commits_grow_again_when_there_is_nothing_more_to_find() -> None:
    search = CulpritSearch()
    run(search, 3 * LARGEST, {17})
    assert search.limit is None


def test_commits_of_other_tasks_do_not_end_a_search() -> None:
    """The failed input has to be processed again; its task may wait for other input meanwhile."""
    search = CulpritSearch()
    search.count_records(256)
    assert search.narrow()
    search.rolled_back({INPUT: OffsetAndMetadata(200, "")})
    for _ in range(100):
        search.count_records(16)
        search.committed([INPUT])
    assert (search.limit, search.is_replayed) == (16, False)
    search.drop_verdicts({INPUT: OffsetAndMetadata(200, "")})
    search.count_records(16)
    search.committed([INPUT])
    assert search.is_replayed and search.limit == 256


def test_a_search_does_not_wait_for_input_without_a_task() -> None:
    search = CulpritSearch()
    search.count_records(256)
    assert search.narrow()
    search.rolled_back({INPUT: OffsetAndMetadata(200, "")})
    search.count_records(256)
    search.committed([])
    assert search.is_replayed and search.limit == 256


def test_a_search_ends_at_commits_of_one_record() -> None:
    """As for the output of a punctuator."""
    search = CulpritSearch()
    for _ in range(10):
        if not search.narrow():
            break
        search.rolled_back()
    assert (search.limit, search.record) == (1, None)


def test_several_refusals_of_one_commit_are_one_step() -> None:
    search = CulpritSearch()
    search.count_records(256)
    assert all(search.narrow() for _ in range(3))
    assert (search.limit, search.steps) == (16, 1)


def test_verdicts_hold_until_their_records_are_committed_or_paused_before() -> None:
    search = CulpritSearch()
    for offset in (3, 5, 8):
        search.add_verdict(Verdict(Raw(offset, of="in"), ValueError("large"), pauses=offset == 8))
    assert search.next_verdict(INPUT, 0) == 3
    search.drop_verdicts({INPUT: OffsetAndMetadata(5, "")})
    assert (search.verdict(INPUT, 3), search.next_verdict(INPUT, 0)) == (None, 5)
    search.drop_verdict(INPUT, 8)
    assert search.next_verdict(INPUT, 6) is None
