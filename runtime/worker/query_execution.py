"""Execution of a `StateQueryRequest` on one part of a store.

A store writes data and offsets in one batch, and its position is read before and after the read: if both are equal, the result is exactly
of that position. Otherwise a commit came between, and the read is repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Protocol, TypeVar, cast

from penstock.runtime.model.clock import Clock
from penstock.runtime.model.errors import StreamsError, TaskCorruptedError
from penstock.runtime.model.ids import NextOffset, TopicPartition
from penstock.runtime.model.user_errors import described
from penstock.runtime.stores.base import CommittedView, EngineStore
from penstock.runtime.worker.queries import DamageReportingView, Execute, IsolationLevel
from penstock.runtime.worker.state_queries import FailureReason, Position, QueryResult, Read, StateQueryRequest

R = TypeVar("R")
_ATTEMPTS = 20
"""A restore may write without a pause. After so many reads the position is that before the last one: the result may be newer."""


class QueriedPart(Protocol):
    """A task's part of a store. `partition` is None for a global store."""

    @property
    def store(self) -> EngineStore: ...

    @property
    def partition(self) -> int | None: ...

    @property
    def description(self) -> str:
        """The part's kind, state and task, for messages."""
        ...

    @property
    def is_running(self) -> bool:
        """True if it is complete, and updated by this worker's own processing."""
        ...

    @property
    def inputs(self) -> Collection[TopicPartition]:
        """The partitions that fill it; all of its offsets count where they are not known."""
        ...

    def processed(self) -> Mapping[TopicPartition, NextOffset]:
        """Return the next offsets of the inputs by processing, which may be ahead of the commit. Only on the worker's thread."""
        ...


class _View(Protocol):
    def committed_offsets(self) -> Mapping[TopicPartition, NextOffset]: ...


def answer(
    part: QueriedPart, request: StateQueryRequest[R], execute: Execute, report: Callable[[TaskCorruptedError], None], clock: Clock
) -> QueryResult[R]:
    """Return the answer of a part. `execute`: for reads of uncommitted data. `report` receives errors about damaged files."""
    begun_ms = clock.monotonic_ms()
    try:
        result = _answer(part, request, execute, report)
    except (StreamsError, ValueError) as error:
        result = QueryResult(failure_reason=FailureReason.STORE_EXCEPTION, failure_message=described(error))
    if not request.execution_info_enabled:
        return result
    info = f"answered by {part.description} of store {part.store.name!r} in {clock.monotonic_ms() - begun_ms} ms"
    return replace(result, execution_info=(info,))


def _answer(
    part: QueriedPart, request: StateQueryRequest[R], execute: Execute, report: Callable[[TaskCorruptedError], None]
) -> QueryResult[R]:
    if request.is_require_active and not part.is_running:
        return QueryResult(
            failure_reason=FailureReason.NOT_ACTIVE,
            failure_message=f"the query requires a running active task, and here is {part.description}",
        )
    store = part.store
    read = request.query.read(store.layout)
    if read is None:
        kind = store.layout.kind.replace("_", "-")
        return QueryResult(
            failure_reason=FailureReason.UNKNOWN_QUERY_TYPE,
            failure_message=f"store {store.name!r} is a {'timestamped ' * store.layout.timestamped}{kind} store, which does not "
            f"answer {type(request.query).__name__}",
        )
    if request.isolation_level is IsolationLevel.READ_UNCOMMITTED and part.is_running and part.partition is not None:
        uncommitted = _reported(store.query_view(timestamped=read.timestamped, uncommitted=True), report)
        return execute(lambda: _read(part, request, read, uncommitted, part.processed))
    view = store.query_view(timestamped=read.timestamped)
    return _read(part, request, read, _reported(view, report), cast(_View, view).committed_offsets)


def _reported(view: CommittedView, report: Callable[[TaskCorruptedError], None]) -> object:
    return DamageReportingView(view, report)


def _read(
    part: QueriedPart, request: StateQueryRequest[R], read: Read, view: object, offsets: Callable[[], Mapping[TopicPartition, NextOffset]]
) -> QueryResult[R]:
    for _ in range(_ATTEMPTS):
        before = _position(part, offsets())
        if not request.position_bound.allows(before, part.partition):
            return QueryResult(
                failure_reason=FailureReason.NOT_UP_TO_BOUND,
                failure_message=f"the position of {part.description} is {before}, behind the bound {request.position_bound.position}",
                position=before,
            )
        value = cast(R | None, getattr(view, read.method)(*read.arguments))
        if _position(part, offsets()) == before:
            break
    return QueryResult(value, position=before)


def _position(part: QueriedPart, offsets: Mapping[TopicPartition, NextOffset]) -> Position:
    inputs = part.inputs
    return Position.before({partition: at for partition, at in offsets.items() if not inputs or partition in inputs})
