"""Path of a record through the files of the engine, as a real worker takes it, and as docs/architecture.md lists it.

The list must contain exactly the files that a record passes, so it is compared with a trace.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import pytest

import penstock.runtime
from penstock.runtime.worker.loop import Worker
from tests.support import Kafka
from tests.support.engine import count_topology, counts_become, on_worker, running, worker_of

Topic = Callable[..., str]
ROOT = Path(penstock.runtime.__file__).resolve().parent
ARCHITECTURE = ROOT.parent / "docs" / "architecture.md"
STEPS = ("poll", "enqueue", "process", "commit")
ENTRIES = {
    ("kafka/input_reader.py", "poll"),
    ("worker/task_manager.py", "enqueue"),
    ("worker/task_manager.py", "process"),
    ("worker/committer.py", "commit"),
}
CALLBACKS = {
    ("commit/exactly_once.py", "_do"),
    ("tasks/active.py", "prepare"),
    ("stores/staging.py", "<genexpr>"),
    ("commit/exactly_once.py", "_taken"),
}
"""Calls that are made while the Kafka client waits for the broker: the only ones that the docs allow to go back."""


class Place(NamedTuple):
    """A function of the engine."""

    file: str
    function: str


@dataclass(slots=True)
class Step:
    """One call of the loop: the entry of `STEPS`, and the calls below it with their callers."""

    name: str
    calls: list[tuple[Place, Place]] = field(default_factory=list)

    def until(self, function: str) -> list[tuple[Place, Place]]:
        """Return the calls up to and including the first one of a function."""
        names = [called.function for _, called in self.calls]
        return self.calls[: names.index(function) + 1]

    def has(self, file: str, function: str) -> bool:
        return any(called == (file, function) for _, called in self.calls)


class Trace:
    """Records the steps of the thread on which it is set as profile function."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._stack: list[Place] = []
        self._files: dict[str, str | None] = {}

    def _file(self, name: str) -> str | None:
        if name not in self._files:
            path = Path(name).resolve()
            inside = path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] != "model"
            self._files[name] = path.relative_to(ROOT).as_posix() if inside else None
        return self._files[name]

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if event not in ("call", "return"):
            return
        file = self._file(frame.f_code.co_filename)
        if file is None:
            return
        place = Place(file, frame.f_code.co_name)
        if event == "return":
            if self._stack:
                self._stack.pop()
        elif self._stack:
            self.steps[-1].calls.append((self._stack[-1], place))
            self._stack.append(place)
        elif place in ENTRIES:
            self.steps.append(Step(place.function, [(place, place)]))
            self._stack.append(place)


def listed(heading: str) -> dict[str, list[str]]:
    """Return the functions that docs/architecture.md names below a heading, by file, in the order of the list."""
    section = ARCHITECTURE.read_text().split(f"### {heading}\n", 1)[1].split("\n#", 1)[0]
    lines = re.findall(r"^\d+\. `([\w/]+\.py)`: (.+)$", section, re.MULTILINE)
    return {file: re.findall(r"`(?:\w+\.)?(\w+)`", rest) for file, rest in lines}


def trace(worker: Worker, act: Callable[[], None]) -> list[Step]:
    """Record the calls of a worker during an action."""
    seen = Trace()
    on_worker(worker, lambda: sys.setprofile(seen))
    act()
    on_worker(worker, lambda: sys.setprofile(None))
    return seen.steps


def the_steps_of_a_record(steps: list[Step]) -> dict[str, Step]:
    """Return the poll that returned the record, the steps after it, and the commit that wrote its store."""
    first = next(number for number, step in enumerate(steps) if step.has("kafka/input_reader.py", "_split"))
    marks = {
        "poll": ("kafka/input_reader.py", "_split"),
        "enqueue": ("tasks/active.py", "enqueue"),
        "process": ("stores/staging.py", "update"),
        "commit": ("stores/rocks.py", "_write"),
    }
    return {name: next(step for step in steps[first:] if step.name == name and step.has(*marks[name])) for name in STEPS}


def check(calls: list[tuple[Place, Place]], way: dict[str, list[str]], most: int) -> None:
    passed = {called for _, called in calls}
    assert {place.file for place in passed} == set(way), "the list in docs/architecture.md and the way of a record differ"
    assert len(way) <= most
    order = list(way)
    back = {(caller, called) for caller, called in calls if order.index(called.file) < order.index(caller.file) and called not in CALLBACKS}
    assert back == set(), "a record's way has one direction"
    unseen = [(file, name) for file, names in way.items() for name in names if (file, name) not in passed]
    assert unseen == [], "these functions are listed and not called"


@pytest.fixture(scope="module")
def steps(broker: Kafka, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Step]:
    """Return the steps of one record of a count per key, without a cache, in a worker that has run before."""
    source, output = broker.create_topic("in"), broker.create_topic("out")
    topology = count_topology(source, output, caching=False)
    state_dir = tmp_path_factory.mktemp("state")
    broker.produce(source, [("k", "v")])
    with running(broker, topology, f"way-{source}", state_dir, **{"commit.interval.ms": 100}) as streams:
        counts_become(broker, output, {"k": 1})

        def one_more() -> None:
            broker.produce(source, [("k", "v")])
            counts_become(broker, output, {"k": 2})

        return the_steps_of_a_record(trace(worker_of(streams), one_more))


def test_a_record_passes_the_files_that_are_listed_from_the_poll_to_the_store(steps: dict[str, Step]) -> None:
    calls = [*steps["poll"].calls, *steps["enqueue"].calls, *steps["process"].until("update")]
    check(calls, listed("From the poll to the store"), 8)


def test_a_record_passes_the_files_that_are_listed_on_to_the_durable_commit(steps: dict[str, Step]) -> None:
    check(steps["commit"].calls, listed("On to the durable commit"), 16)
