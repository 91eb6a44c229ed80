"""`map_batches`: calls a function with the values of several records at once, for models and libraries that work on vectors.

A batch has what one turn of the task has processed, at most `size` records: nothing waits for a batch to fill. If the function raises, each
record of the batch is tried alone, so that the error belongs to one record. A result of another length is a fault of the function and not
of a record; it is raised at the first record of the batch.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass

from penstock.runtime.model.user_errors import described, pass_ctrl_c
from penstock.runtime.operators.base import OperatorSupplier
from penstock.runtime.operators.context import Forward, NodeContext
from penstock.runtime.operators.deferred import Deferred, DeferringNode

logger = logging.getLogger(__name__)

BatchMapper = Callable[..., Iterable[object]]
"""Takes the list of values."""


@dataclass(frozen=True, slots=True)
class MapBatches(OperatorSupplier):
    """`map_batches`; `fn(values)` returns as many results, in the same order."""

    fn: BatchMapper
    size: int

    def keeps_key(self) -> bool:
        return True

    def defers(self) -> bool:
        return True

    def build(self, context: NodeContext, forward: Forward) -> Forward:
        queue, fn = context.deferred, self.fn
        if queue is None:

            def map_alone(key: object, value: object, timestamp: int) -> None:
                forward(key, _results(fn, [value])[0], timestamp)

            return map_alone
        batches = _Batches(context.name, fn, self.size)
        queue.nodes.append(batches)
        defer, waiting = queue.defer, batches.waiting

        def finish(record: Deferred) -> None:
            forward(record.key, batches.result(record), record.timestamp)

        named = context.hooks.mark(context.name, finish)

        def wait(key: object, value: object, timestamp: int) -> None:
            waiting.append(defer(batches, named, key, value, timestamp))

        return wait


class _Batches(DeferringNode):
    """The records of one node, in batches."""

    __slots__ = ("_alone", "_fn", "_name", "_size", "turn", "waiting")

    def __init__(self, name: str, fn: BatchMapper, size: int) -> None:
        super().__init__()
        self.waiting: deque[Deferred] = deque()
        """Records without a result."""
        self.turn = size
        self._name = name
        self._fn = fn
        self._size = size
        self._alone = 0
        """Number of records that are tried alone, since their batch has failed."""

    def is_full(self) -> bool:
        return self.open >= self._size

    def result(self, record: Deferred) -> object:
        """Return the result of a record, which is the first without one if it has none yet. Raises what the function raises, and
        ValueError for a result of another length."""
        self.open -= 1
        if not record.done:
            self._call()
        if record.error is not None:
            raise record.error
        return record.result

    def _call(self) -> None:
        waiting = self.waiting
        if not self._alone:
            batch = [waiting.popleft() for _ in range(min(self._size, len(waiting)))]
            try:
                results = _results(self._fn, [record.value for record in batch])
            except BatchResultError as error:
                waiting.extendleft(reversed(batch[1:]))
                batch[0].error = error
                return
            except BaseException as error:  # noqa: BLE001 (user code may raise anything)
                pass_ctrl_c(error, f"node {self._name}")
                if len(batch) == 1:
                    batch[0].error = error
                    return
                logger.info("node %s: a batch of %d failed, each record is tried alone: %s", self._name, len(batch), described(error))
                waiting.extendleft(reversed(batch))
                self._alone = len(batch)
            else:
                for record, result in zip(batch, results, strict=True):
                    record.result, record.done = result, True
                return
        self._alone -= 1
        first = waiting.popleft()
        try:
            first.result = _results(self._fn, [first.value])[0]
        except BaseException as error:  # noqa: BLE001 (user code may raise anything; it is raised where the record is finished)
            first.error = error

    def forget(self, record: Deferred) -> None:
        self.open -= 1
        if not record.done:
            self.waiting.popleft()
            self._alone = max(0, self._alone - 1)


class BatchResultError(ValueError):
    """The function returned another number of results than it was given values."""


def _results(fn: BatchMapper, values: list[object]) -> list[object]:
    given = len(values)
    returned = fn(values)
    if isinstance(returned, str | bytes | Mapping | Set) or hasattr(returned, "columns"):  # of these, `list` makes something else
        raise BatchResultError(
            f"map_batches: its function returned a {type(returned).__name__}, which is not a sequence of results: return a list or an "
            "array with one for each value (of a data frame, frame.to_dict('records'))"
        )
    try:
        # The elements of an array of numbers are numbers of its library, which serdes do not write.
        results = returned.tolist() if getattr(returned, "ndim", 0) == 1 and hasattr(returned, "tolist") else list(returned)
    except TypeError as error:
        if not isinstance(returned, Iterable):
            raise BatchResultError(f"map_batches: its function must return {given} results, one per value, not {returned!r}") from error
        raise
    if len(results) != given:
        raise BatchResultError(f"map_batches: its function returned {len(results)} results for {given} values: it must return one for each")
    return results
