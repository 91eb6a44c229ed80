"""Warnings about probable mistakes of the application that change its results without an error. Each is logged once per node and process.

Neither costs anything per record that is processed: records without a key are dropped anyway, and an aggregator is called directly once it
has returned something other than None.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from penstock.runtime.model.metrics import NODE, Counter
from penstock.runtime.model.once import first_time
from penstock.runtime.operators.context import NodeContext

logger = logging.getLogger(__name__)

NONES = 10
"""Number of records after which an aggregator that has returned only None is reported; a task that is closed earlier reports it then."""


def dropping(context: NodeContext) -> Callable[[object], None]:
    """Return the function that counts a record as dropped. It takes the record's key."""
    dropped, without_key = context.task.dropped.add, dropping_without_key(context)

    def drop(key: object) -> None:
        dropped()
        if key is None:
            without_key()

    return drop


def dropping_without_key(context: NodeContext) -> Callable[[], None]:
    """Return the function that counts a record without a key, in the node's `dropped-records-by-reason-total` with the reason `null-key`.
    The first one is logged with its coordinates."""
    task, label = context.task, context.label
    counter: Counter | None = None

    def count() -> None:
        nonlocal counter
        if counter is None:
            of_node = {"task_id": str(task.task_id), "processor_node_id": context.name, "reason": "null-key"}
            counter = task.metrics.counter("dropped-records-by-reason-total", NODE, **of_node)
            if first_time("null-key", task.application_id, context.name):
                place = f": {task.topic}-{task.partition}@{task.offset}" if task.offset >= 0 else ""
                logger.warning(
                    "task %s, node %s: dropped a record without a key%s. Operations by key need one: select_key, group_by. Further records "
                    "are only counted, in dropped-records-by-reason-total",
                    *(task.task_id, label, place),
                    extra={"task": task.task_id},
                )
        counter.add()

    return count


def watch_results(context: NodeContext, aggregator: Callable[..., object], use: Callable[[Callable[..., object]], None]) -> None:
    """Warn if an aggregator returns None for every record. `use` sets the aggregator that the node calls: at first one that looks at the
    results, and `aggregator` itself as soon as one is not None."""
    nones = 0

    def watched(key: object, value: object, aggregate: object) -> object:
        nonlocal nones
        result = aggregator(key, value, aggregate)
        if aggregate is None and result is value:
            return result  # the first value of a reduce, whose function was not called
        nones += 1
        if result is not None:
            nones = 0
            use(aggregator)
        elif nones == NONES:
            report()
            use(aggregator)
        return result

    def report() -> None:
        nonlocal nones
        if nones and first_time("none", context.task.application_id, context.name):
            logger.warning(
                "task %s, node %s: its function returned None for every record so far (%d), which deletes the row each time. "
                "Does it lack a return?",
                *(context.task.task_id, context.label, nones),
                extra={"task": context.task.task_id},
            )
        nones = 0

    use(watched)
    context.hooks.close.append((context.name, report))
