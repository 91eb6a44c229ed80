"""The turns of a worker's tasks: equal shares of few, a run of some records for each of many, and nobody is left out."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.runtime.kafka.input_reader import Polled
from penstock.runtime.model.ids import TaskId, TopicPartition
from penstock.runtime.model.metrics import Metrics
from penstock.runtime.tasks.active import TURN_MS
from penstock.runtime.worker.task_manager import SHORTEST_RUN, TaskManager


@dataclass(slots=True)
class Task:
    """A task that takes records and counts what it is asked for."""

    id: TaskId
    log: list[tuple[int, int]]
    buffered: int = 0
    turn: int = 0
    ms_each: int = 0
    """Time that each of its records takes; more than a turn's, so that it processes one at a time."""
    clock: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(ms=0))

    def enqueue(self, partition: TopicPartition, messages: list[object]) -> None:
        self.buffered += len(messages)

    def process(self, limit: int, now_ms: int) -> int:
        done = min(limit, self.buffered, 1 if self.ms_each else limit)
        self.clock.ms += done * self.ms_each
        self.buffered -= done
        self.log.append((self.id.partition, done))
        return done

    @property
    def plan(self) -> SimpleNamespace:
        return SimpleNamespace(clock=SimpleNamespace(monotonic_ms=lambda: self.clock.ms))


@dataclass(slots=True)
class Search:
    """How many records may be processed before the next commit."""

    limit: int | None = None

    def remaining(self, most: int) -> int:
        return most if self.limit is None else min(most, self.limit)

    def count_records(self, records: int) -> None:
        if self.limit is not None:
            self.limit -= records


@dataclass(slots=True)
class Worker:
    """A task manager with such tasks. `log`: the partition of each task that was asked, and how many records it processed."""

    tasks: int
    search: Search = field(default_factory=Search)
    closed_to: set[TaskId] = field(default_factory=set)
    log: list[tuple[int, int]] = field(default_factory=list)
    made: dict[TaskId, Task] = field(default_factory=dict)
    manager: TaskManager = field(init=False)

    def __post_init__(self) -> None:
        factory = SimpleNamespace(incidents=SimpleNamespace(search=self.search))
        global_task = SimpleNamespace(may_process=lambda task: task not in self.closed_to)
        none = cast(Any, None)
        self.manager = TaskManager(cast(Any, factory), none, none, cast(Any, global_task), none, none, none, none, none, Metrics(), none)
        for number in range(self.tasks):
            task = self.made[TaskId(0, number)] = Task(TaskId(0, number), self.log)
            self.manager._tasks[task.id] = self.manager._by_partition[TopicPartition("in", number)] = cast(Any, task)

    def give(self, *records: tuple[int, int]) -> None:
        """Give tasks so many records, by partition."""
        runs = [(TopicPartition("in", number), cast(Any, [None] * count)) for number, count in records]
        self.manager.enqueue(Polled(runs, [], []))

    def process(self, limit: int) -> list[tuple[int, int]]:
        """Return who was asked now, and what it processed."""
        self.log.clear()
        done = self.manager.process(limit, 0)
        assert done == sum(records for _, records in self.log)
        return list(self.log)


def test_few_tasks_have_equal_shares() -> None:
    worker = Worker(4)
    worker.give(*((number, 10_000) for number in range(4)))
    assert worker.process(8_000) == [(number, 2_000) for number in range(4)]
    assert worker.manager.buffered == 32_000


def test_only_tasks_with_records_have_a_share() -> None:
    """A busy partition beside hundreds of quiet ones takes the whole turn."""
    worker = Worker(200)
    worker.give((7, 10_000))
    assert worker.process(8_000) == [(7, 8_000)]
    assert worker.process(8_000) == [(7, 2_000)]
    assert worker.process(8_000) == []


def test_of_many_tasks_some_process_a_run_and_the_others_come_next() -> None:
    worker = Worker(20)
    worker.give(*((number, 600) for number in range(20)))
    assert worker.process(1_000) == [(number, SHORTEST_RUN) for number in range(4)]
    assert worker.process(1_000) == [(number, SHORTEST_RUN) for number in range(4, 8)]
    worker.give((0, 1), (19, 1))  # nobody's place changes
    asked = [number for _ in range(3) for number, _ in worker.process(1_000)]
    assert asked == list(range(8, 20))
    assert [number for number, _ in worker.process(1_000)] == [0, 1, 2, 3]
    while worker.process(1_000):
        pass
    assert worker.manager.buffered == 0


def test_a_task_whose_records_come_later_is_behind_those_that_wait() -> None:
    worker = Worker(3)
    worker.give((1, 1_000), (2, 1_000))
    assert worker.process(300) == [(1, 250), (2, 250)]
    worker.give((0, 1_000))
    assert [number for number, _ in worker.process(250)] == [1]
    assert [number for number, _ in worker.process(250)] == [2]
    assert [number for number, _ in worker.process(250)] == [0]


def test_no_task_takes_more_than_a_small_limit() -> None:
    """Slow records, or a quota: the limit of a turn is smaller than a run."""
    worker = Worker(3)
    worker.give(*((number, 100) for number in range(3)))
    assert [worker.process(10) for _ in range(4)] == [[(0, 10)], [(1, 10)], [(2, 10)], [(0, 10)]]


def test_while_a_record_is_searched_every_task_gets_its_turn() -> None:
    worker = Worker(3, Search(1))
    worker.give(*((number, 5) for number in range(3)))
    asked = []
    for _ in range(6):
        asked += worker.process(1_000)
        worker.search.limit = 1  # a commit
    assert asked == [(0, 1), (1, 1), (2, 1)] * 2


def test_a_task_that_waits_for_a_global_table_keeps_its_place() -> None:
    worker = Worker(3)
    worker.closed_to.add(TaskId(0, 0))
    worker.give(*((number, 300) for number in range(3)))
    assert worker.process(1_000) == [(1, 300), (2, 300)]
    worker.closed_to.clear()
    worker.give((2, 1_000))
    assert worker.process(250) == [(0, 250)]


def test_an_operator_that_computes_many_at_once_gets_as_many_and_ends_the_turn_when_it_took_long() -> None:
    worker = Worker(3)
    worker.made[TaskId(0, 0)].turn = 4_000
    worker.give(*((number, 9_000) for number in range(3)))
    worker.made[TaskId(0, 0)].clock.ms = TURN_MS + 1
    assert worker.process(300) == [(0, 4_000)]
    worker.made[TaskId(0, 0)].clock.ms = 0
    assert worker.process(9_000) == [(1, 4_000), (2, 4_000), (0, 4_000)]


def test_a_task_with_slow_records_ends_the_turn_and_the_others_come_next() -> None:
    worker = Worker(3)
    worker.made[TaskId(0, 1)].ms_each = 60
    worker.give(*((number, 1_000) for number in range(3)))
    assert worker.process(900) == [(0, 300), (1, 1)]
    worker.made[TaskId(0, 1)].clock.ms = 0
    assert worker.process(900) == [(2, 300), (0, 300), (1, 1)]


@pytest.mark.parametrize("seen", [0, 1])
def test_a_task_that_has_gone_is_not_asked(seen: int) -> None:
    worker = Worker(2)
    worker.give((0, 300), (1, 300))
    for _ in range(seen):
        worker.process(10)
    gone = worker.made[TaskId(0, 1)]
    gone.buffered = 0  # as after its close, or while it is paused
    asked = Counter(number for _ in range(40) for number, _ in worker.process(10))
    assert set(asked) == {0}
