"""Restarts of workers that have died (`runtime/worker/supervisor/restarts.py`, `supervisor.py`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from threading import Event
from typing import TypeVar, cast

import pytest

from penstock.runtime.coordination.fleet import Fleet
from penstock.runtime.model.errors import ApplicationShutdownError
from penstock.runtime.model.metrics import MetricName
from penstock.runtime.model.states import State
from penstock.runtime.worker.queries import StoreParts, StoreQueryParameters
from penstock.runtime.worker.rpc import Call, Stop
from penstock.runtime.worker.state_queries import QueryResult, StateQueryRequest
from penstock.runtime.worker.supervisor.restarts import HEALTHY_MS, LONGEST_WAIT_MS, MAX_DEATHS, Restarts
from penstock.runtime.worker.supervisor.supervisor import Supervisor, SupervisorCallbacks
from penstock.runtime.worker.view import WorkerMetadata
from penstock.testing import ManualClock
from tests.support import wait_until

R = TypeVar("R")


def test_a_worker_is_restarted_at_once_after_its_first_death_and_later_after_each_further_one() -> None:
    restarts = Restarts(max_poll_ms=1_000)
    restarts.started(1, 0)
    assert [restarts.failed(1, 10) for _ in range(8)] == [0, 1_000, 2_000, 4_000, 8_000, 16_000, LONGEST_WAIT_MS, LONGEST_WAIT_MS]
    assert restarts.failed(2, 10) == 0, "each worker has a history of its own"


def test_a_death_after_a_healthy_life_counts_as_the_first() -> None:
    restarts = Restarts(max_poll_ms=1_000)
    restarts.started(1, 0)
    restarts.failed(1, 10)
    restarts.failed(1, 20)
    restarts.started(1, 1_000)
    assert restarts.failed(1, 1_000 + HEALTHY_MS) == 0
    assert restarts.failures(1) == 1


def test_a_worker_that_hangs_at_every_start_does_not_count_as_healthy() -> None:
    """It lives until the hang is detected."""
    restarts = Restarts(max_poll_ms=300_000)
    restarts.started(1, 0)
    restarts.failed(1, 301_000)
    restarts.started(1, 301_000)
    assert restarts.failed(1, 602_000) > 0


class Fake:
    """A worker that the test controls."""

    idle_ms = 0
    may_be_asked = True

    def __init__(self, number: int, halted: bool, supervisor: Supervisor) -> None:
        self.number, self.name, self.halted = number, f"one-StreamThread-{number}", halted
        self.state = State.CREATED
        self.incarnation: int | None = number * 100
        self.asked: list[tuple[Call, tuple[object, ...]]] = []
        self.stops: list[Stop] = []
        self.reported: list[tuple[State, State]] = []
        self._supervisor = supervisor

    def start(self) -> None:
        self.move(State.RUNNING)

    def move(self, state: State) -> None:
        self.state = state

    def ends(self, error: BaseException | None = None, *, died: bool = False) -> None:
        self._supervisor.ended(self, error, died=died)

    def request_stop(self, stop: Stop) -> None:
        self.stops.append(stop)

    def call(self, call: Call, *arguments: object) -> Future[object]:
        self.asked.append((call, arguments))
        answer: Future[object] = Future()
        answer.set_result(None)
        return answer

    def publish_state(self, old: State, new: State) -> None:
        self.reported.append((old, new))

    def metadata(self) -> WorkerMetadata:
        return WorkerMetadata(self.state, ())

    def find(self, parameters: StoreQueryParameters) -> Callable[[], StoreParts]:
        return lambda: StoreParts(())

    def query(self, request: StateQueryRequest[R]) -> Callable[[], dict[int | None, QueryResult[R]]]:
        return dict

    def fleet(self) -> Fleet | None:
        return None

    def metrics(self) -> Mapping[MetricName, float]:
        return {}

    def join(self, timeout_s: float | None) -> None: ...


class Client:
    """A client that records its notifications."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.replace = False
        self.failed: list[BaseException] = []
        self.over: list[BaseException | None] = []
        reported = SupervisorCallbacks(
            lambda: None, lambda timeout_ms: None, lambda error: self.replace, self.failed.append, self.over.append
        )
        self.supervisor = Supervisor(reported, self.clock, 1_000)
        self.made: list[Fake] = []
        self.former = Event()
        """Set when the previous client's workers are gone."""
        self.former.set()

    def begin(self, count: int) -> list[Fake]:
        self.supervisor.configure(count, self._make, lambda number: f"one-StreamThread-{number}")
        self.supervisor.start(lambda: cast(None, self.former.wait()))
        if self.former.is_set():
            wait_until(lambda: len(self.supervisor.workers) == count, 5)
        return list(self.made)

    def _make(self, number: int, halted: bool) -> Fake:
        self.made.append(Fake(number, halted, self.supervisor))
        return self.made[-1]

    def numbers(self) -> list[int]:
        return [worker.number for worker in self.supervisor.workers]


@pytest.fixture
def owner() -> Client:
    return Client()


def test_a_sibling_announces_a_death_and_the_worker_is_restarted(owner: Client) -> None:
    first, second = owner.begin(2)
    second.ends(died=True)
    assert first.asked == [(Call.ANNOUNCE_DEATH, (2, 200))]
    wait_until(lambda: owner.numbers() == [1, 2], 5, "the second, again")
    assert len(owner.made) == 3 and not owner.failed


def test_a_worker_that_dies_repeatedly_stops_the_client(owner: Client) -> None:
    first, _ = owner.begin(2)
    for deaths in range(1, MAX_DEATHS + 1):
        owner.made[-1].ends(died=True)
        if deaths < MAX_DEATHS:
            owner.clock.advance(LONGEST_WAIT_MS)
            wait_until(lambda deaths=deaths: len(owner.made) == 2 + deaths, 5, "another start")  # type: ignore[misc]
    assert [str(error) for error in owner.failed] == ["one-StreamThread-2 has died 6 times in a row: the log says of what"]
    assert len(first.stops) == 1 and not owner.over, "the others close in order"
    first.ends()
    assert owner.over == owner.failed


def test_the_exception_handler_decides_whether_a_failed_worker_is_replaced(owner: Client) -> None:
    first, second = owner.begin(2)
    owner.replace = True
    first.ends(ValueError("once"))
    wait_until(lambda: owner.numbers() == [1, 2], 5, "the first, again")
    owner.replace = False
    error = ValueError("twice")
    owner.made[-1].ends(error)
    assert owner.failed == [error] and second.stops
    second.ends()
    assert owner.over == [error]


def test_the_first_error_ends_the_client_and_later_ones_of_siblings_do_not_replace_it(owner: Client) -> None:
    """A sibling that hears the request to shut the application down fails with that, after the worker whose error was the reason."""
    first, second = owner.begin(2)
    first.ends(error := ValueError("the reason"))
    second.ends(ApplicationShutdownError("heard"))
    assert owner.failed == [error] and owner.over == [error]


def test_no_worker_is_restarted_while_the_client_closes(owner: Client) -> None:
    first, second = owner.begin(2)
    owner.supervisor.request_stop(Stop(1_000))
    first.ends(died=True)
    second.ends()
    assert owner.over == [None] and len(owner.made) == 2 and not owner.failed


def test_the_state_is_the_union_of_the_workers(owner: Client) -> None:
    first, second = owner.begin(2)
    seen = [owner.supervisor.state]
    second.move(State.REBALANCING)
    seen.append(owner.supervisor.state)
    first.move(State.RESTORING)
    seen.append(owner.supervisor.state)
    assert seen == [State.RUNNING, State.REBALANCING, State.RESTORING]


def test_a_state_change_is_published_by_one_worker_or_the_next_to_start(owner: Client) -> None:
    owner.supervisor.publish_state(State.CREATED, State.REBALANCING)
    first, second = owner.begin(2)
    owner.supervisor.publish_state(State.REBALANCING, State.RUNNING)
    assert first.reported == [(State.CREATED, State.REBALANCING), (State.REBALANCING, State.RUNNING)]
    assert not second.reported


def test_numbers_are_reused_and_a_worker_added_to_a_paused_client_is_paused(owner: Client) -> None:
    first, second = owner.begin(2)
    owner.supervisor.halt(True, owner.supervisor.workers)
    assert first.asked == second.asked == [(Call.PAUSE_ALL, ())]
    assert owner.supervisor.add() == "one-StreamThread-3"
    assert owner.made[-1].halted
    second.ends(died=True)
    first.ends(died=True)
    assert owner.supervisor.add() == "one-StreamThread-4", "those that are about to be begun again keep theirs"


def test_the_last_worker_is_removed_and_its_siblings_are_its_heirs(owner: Client) -> None:
    _, second = owner.begin(2)
    with pytest.raises(TimeoutError, match="one-StreamThread-2 did not stop within 10 ms"):
        owner.supervisor.remove(10)
    assert second.stops == [Stop(10, siblings_stay=True)]
    second.ends()
    assert owner.numbers() == [1]
    assert not owner.over, "a client may be without workers, and is given some again"


def test_a_worker_added_before_the_first_start_gets_its_own_number_and_waits_like_them(owner: Client) -> None:
    owner.former.clear()
    owner.begin(2)
    assert [owner.supervisor.add(), owner.supervisor.add()] == ["one-StreamThread-3", "one-StreamThread-4"]
    assert owner.supervisor.remove(None) == "one-StreamThread-4", "who is not there yet need not end"
    assert not owner.made
    owner.former.set()
    wait_until(lambda: owner.numbers() == [1, 2, 3], 5, "all three")
    assert [worker.number for worker in owner.made] == [1, 2, 3]


def test_a_worker_added_to_a_single_one_waits_for_the_previous_clients_workers(owner: Client) -> None:
    owner.former.clear()
    owner.begin(1)
    assert owner.supervisor.add() == "one-StreamThread-2"
    assert owner.numbers() == [1]
    owner.former.set()
    wait_until(lambda: owner.numbers() == [1, 2], 5, "the second")
