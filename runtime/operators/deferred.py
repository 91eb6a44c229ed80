"""Deferred records: those whose result an operator computes later, together with the results of others (`map_batches`, `map_async`).

Problem: an operator that calls a model with many values at once, or makes many calls concurrently, must take further records before it
forwards the first. Everything below it must still see one record after the other, as if each had been computed at once.

Solution: the operator puts the record into a queue, with its place in the input, its headers and stream time. Between two records, and at
the end of each `ActiveTask.process`, the pipeline takes records from the head, waits for the result and forwards it with the context of its
own record. Commits, punctuators and flushes thus find the queues empty.

Records that bypass the operator, and meet its results further down, wait in the same queue (`gate`). A node is *below* a deferring operator
if a path leads to it, or if it shares a store or an output topic with such a node: the table that is joined with the results changes only
after the records before it were joined. Operators in a row have a queue each (`Levels`).

An operator whose own input depends on its results, through a store, cannot take a record before the previous one is done: it defers none.

Rejected: to start calls while records are decoded, before they are processed (nothing is known there of operators behind a store, and
functions in front of the call would run twice); a commit that leaves calls pending (state in front of the operator would be ahead of the
committed offsets).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from penstock.runtime.model.record import Headers

Forward = Callable[[object, object, int], None]
Finish = Callable[["Deferred"], None]
"""Waits for the result of a record and forwards it."""


class Place:
    """The input record that is being processed: its coordinates, its row in the run, its batch, and the stream time with it."""

    __slots__ = ("batch", "failed", "offset", "partition", "row", "stream_time", "topic")

    def __init__(self, topic: str, partition: int, offset: int, row: int, batch: object, stream_time: int) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.row = row
        self.batch = batch
        self.stream_time = stream_time
        self.failed = False
        """True if a handler skipped it: what else was deferred for it is dropped."""


class CurrentHeaders(Protocol):
    """The part of a task's context that is kept with a record."""

    headers: Headers | None
    offset: int


class Deferred:
    """A record that waits in a queue. `place` is None for the output of a punctuator or cache, which has no input record."""

    __slots__ = ("began", "done", "error", "finish", "headers", "key", "node", "offset", "place", "result", "timestamp", "value", "work")

    def __init__(
        self,
        node: DeferringNode | None,
        finish: Finish,
        key: object,
        value: object,
        timestamp: int,
        task: CurrentHeaders,
        place: Place | None,
    ) -> None:
        self.node = node
        self.finish = finish
        self.key = key
        self.value = value
        self.timestamp = timestamp
        self.headers: Headers | None = task.headers
        self.offset = task.offset
        self.place = place
        self.done = False
        self.result: object = None
        self.error: BaseException | None = None
        self.began = 0.0
        self.work: object = None
        """The running call, as the node has it."""


class DeferringNode(ABC):
    """The state of a deferring operator in one task."""

    __slots__ = ("open",)

    turn: float = 1
    """Records that a task should process in one turn, for the operator to be efficient."""
    most: float = math.inf
    """Records that a turn may process although their results take long: the operator waits for twice its timeout then."""

    def __init__(self) -> None:
        self.open = 0
        """Records of this operator in its queue."""

    @abstractmethod
    def is_full(self) -> bool:
        """Return True if the head must be finished before another record."""

    @abstractmethod
    def forget(self, record: Deferred) -> None:
        """Drop a record, which is this operator's first in the queue, without its result."""


class DeferredQueue:
    """The records of one level in the order of the input. `nodes`: the operators of the level."""

    __slots__ = ("_deferrals", "nodes", "records")

    def __init__(self, deferrals: Deferrals) -> None:
        self.records: deque[Deferred] = deque()
        self.nodes: list[DeferringNode] = []
        self._deferrals = deferrals

    def defer(self, node: DeferringNode | None, finish: Finish, key: object, value: object, timestamp: int) -> Deferred:
        """Append a record. Its headers and place are those of the task's context now."""
        record = Deferred(node, finish, key, value, timestamp, self._deferrals.task, self._deferrals.place)
        self.records.append(record)
        if node is not None:
            node.open += 1
        return record

    def is_full(self) -> bool:
        """Return True if the head must be finished before another record."""
        return any([node.is_full() for node in self.nodes])  # noqa: C419 (a generator costs more)

    def forget(self, record: Deferred) -> None:
        """Drop a record that was taken from the head."""
        if record.node is not None:
            record.node.forget(record)


class Deferrals:
    """The queues of one task, parents first."""

    def __init__(self, task: CurrentHeaders, levels: int) -> None:
        self.task = task
        self.place: Place | None = None
        """The record that is being processed; None in punctuators and flushes."""
        self.queues = [DeferredQueue(self) for _ in range(levels)]

    @property
    def turn(self) -> int:
        """Records that the task should process in one turn, however long that takes."""
        nodes = [node for queue in self.queues for node in queue.nodes]
        return int(min([max([node.turn for node in nodes]), *[node.most for node in nodes]]))

    @property
    def most_open(self) -> int:
        """The largest number of records that wait for one operator."""
        return max(node.open for queue in self.queues for node in queue.nodes)

    def drop(self) -> None:
        """Drop all records: their task goes back to its last commit."""
        for queue in self.queues:
            while queue.records:
                queue.forget(queue.records.popleft())


def gate(queue: DeferredQueue, forward: Forward) -> Forward:
    """Return a function that forwards a record after all that are in the queue."""
    records, defer = queue.records, queue.defer

    def pass_on(record: Deferred) -> None:
        forward(record.key, record.value, record.timestamp)

    def after_deferred(key: object, value: object, timestamp: int) -> None:
        if records:
            defer(None, pass_on, key, value, timestamp)
        else:
            forward(key, value, timestamp)

    return after_deferred


class Levels:
    """The level of each node of a sub-topology: the number of queues that a record has passed on its way to the node."""

    def __init__(self, deferring: Iterable[str], children: Mapping[str, Iterable[str]], tied: Mapping[str, Iterable[str]]) -> None:
        """`tied`: by node, the nodes with which it shares a store or an output topic."""
        below = {name: _below(name, children, tied) for name in deferring}
        self.at_once = [name for name, nodes in below.items() if name in nodes]
        """Deferring operators whose input depends on their results: they defer nothing."""
        self._below = {name: nodes for name, nodes in below.items() if name not in nodes}
        self._levels: dict[str, int] = {}

    def __getitem__(self, node: str) -> int:
        """Return a node's level. For a deferring operator it is that of its results."""
        level = self._levels.get(node)
        if level is None:
            above = max((self[name] for name, nodes in self._below.items() if node in nodes), default=0)
            level = self._levels[node] = above + (node in self._below)
        return level

    @property
    def most(self) -> int:
        """The largest level."""
        return max((self[name] for name in self._below), default=0)

    def defers(self, node: str) -> bool:
        """Return True if the node is an operator that defers records."""
        return node in self._below


def _below(name: str, children: Mapping[str, Iterable[str]], tied: Mapping[str, Iterable[str]]) -> set[str]:
    found: set[str] = set()
    heads = list(children[name])
    while heads:
        node = heads.pop()
        if node not in found:
            found.add(node)
            heads += [*children[node], *tied[node]]
    return found
