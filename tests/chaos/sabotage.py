"""An application that kills itself (-9) at an instant that is asked for, and the instants there are.

A kill from outside hits the few microseconds between the broker's commit and the stores' about never. So the process is told by its
environment (`KILL_AT`, `KILL_NTH`) at which call of which function of the engine to die: before it, in the middle of it, or after it.
Nothing of the engine knows of this: the functions are wrapped here, when the instance asks for its topology.
"""

from __future__ import annotations

import faulthandler
import itertools
import os
import random
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from penstock import serdes
from penstock.runtime.changelog.folding import FoldedBatch
from penstock.runtime.commit.exactly_once import ExactlyOnce
from penstock.runtime.dsl.builder import StreamsBuilder
from penstock.runtime.dsl.options import Consumed, Grouped, Materialized, Produced
from penstock.runtime.dsl.windows import TimeWindows
from penstock.runtime.kafka.transactions import TransactionalProducer
from penstock.runtime.model.record import Windowed
from penstock.runtime.stores.rocks import RocksStore
from penstock.runtime.stores.staging import StagedStore
from penstock.runtime.tasks import plan
from penstock.runtime.tasks.active import ActiveTask
from penstock.runtime.topology.topology import Topology

WINDOW_MS = 60_000
RETENTION_MS = 1_000 * 86_400_000
RESTORED_AT_ONCE = 500
"""Records after which a restore writes: few, so that one can be killed between two writes."""


class When(Enum):
    """Before the call, at a random moment of it (or shortly after), or after it."""

    BEFORE = "before"
    DURING = "during"
    AFTER = "after"


@dataclass(frozen=True, slots=True)
class Instant:
    """A moment in the life of the engine. `of_restore`: it comes only if there is something to restore."""

    owner: object
    function: str
    when: When
    of_restore: bool = False
    wanted: Callable[[object], bool] = lambda argument: True
    """Which calls count, by their first argument."""


def _is_checkpoint(path: object) -> bool:
    return isinstance(path, Path) and path.name.startswith(".checkpoint")


INSTANTS = {
    "before a commit": Instant(ExactlyOnce, "commit", When.BEFORE),
    "before the broker commits": Instant(TransactionalProducer, "commit", When.BEFORE),
    "while the broker commits": Instant(TransactionalProducer, "commit", When.DURING),
    "between the broker's commit and the stores'": Instant(ExactlyOnce, "commit", When.AFTER),
    "before a store's batch": Instant(RocksStore, "_write", When.BEFORE),
    "while a store commits": Instant(StagedStore, "commit", When.DURING),
    "between two stores' commits": Instant(StagedStore, "commit", When.AFTER),
    "after a task's commit": Instant(ActiveTask, "committed", When.AFTER),
    "before a checkpoint": Instant(ActiveTask, "checkpoint", When.BEFORE),
    "between a checkpoint's flush and its file": Instant(plan, "write_checkpoint", When.BEFORE),
    "before a checkpoint's file has its name": Instant(Path, "replace", When.BEFORE, wanted=_is_checkpoint),
    "after a checkpoint": Instant(ActiveTask, "checkpoint", When.AFTER),
    "before a restore's write": Instant(StagedStore, "restore", When.BEFORE, of_restore=True),
    "while a restore writes": Instant(StagedStore, "restore", When.DURING, of_restore=True),
    "after a restore's write": Instant(StagedStore, "restore", When.AFTER, of_restore=True),
}


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(instant: Instant, nth: int) -> None:
    """Wraps the function: its `nth` call that counts is this process's last."""
    real: Callable[..., object] = getattr(instant.owner, instant.function)
    calls = itertools.count(1)

    def call(*arguments: object, **named: object) -> object:
        last = instant.wanted(arguments[0] if arguments else None) and next(calls) == nth
        if last and instant.when is When.BEFORE:
            _die()
        if last and instant.when is When.DURING:
            threading.Timer(random.uniform(0, 0.004), _die).start()
        result = real(*arguments, **named)
        if last and instant.when is When.AFTER:
            _die()
        return result

    setattr(instant.owner, instant.function, call)


def topology(source: str, counts: str, groups: str, windows: str) -> Topology:
    """Counts per key, per value (by way of a repartition topic) and per key and minute; each update of each is an output."""
    builder = StreamsBuilder()
    stream = builder.stream(source, Consumed(serdes.STRING, value=serdes.STRING))
    to = Produced(serdes.STRING, value=serdes.LONG)
    by_key = stream.group_by_key()
    by_key.count(Materialized("counts", caching=False)).to_stream().to(counts, to)
    (
        by_key.windowed_by(TimeWindows.of_size_and_grace(WINDOW_MS, RETENTION_MS))
        .count(Materialized("windows", caching=False))
        .to_stream()
        .select_key(_window_name)
        .to(windows, to)
    )
    by_value = stream.group_by(lambda key, value: value, Grouped(serdes.STRING, value=serdes.STRING, name="by-value"))
    by_value.count(Materialized("groups", caching=False)).to_stream().to(groups, to)
    return builder.build()


def _window_name(key: object, value: object) -> str:
    assert isinstance(key, Windowed)
    return f"{key.key}@{key.window.start}"


def _is_due(batch: FoldedBatch, *_: object) -> bool:
    return batch.records >= RESTORED_AT_ONCE


def build() -> Topology:
    """The factory of the instances; armed if the environment says so. SIGUSR1 writes the stacks of all threads to stderr."""
    environment = os.environ
    faulthandler.register(signal.SIGUSR1)
    FoldedBatch.is_due = _is_due  # type: ignore[assignment, method-assign]  # this process only
    if environment.get("KILL_AT"):
        arm(INSTANTS[environment["KILL_AT"]], int(environment["KILL_NTH"]))
    return topology(*environment["TOPICS"].split(","))
