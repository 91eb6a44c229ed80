"""The state of an application in one sentence, and the figures of each of its instances, at the moment of its checks."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from penstock.orchestration.database.models import Instance, Task, is_global
from penstock.orchestration.declarations.applications import Application
from penstock.orchestration.declarations.policies import Severity
from penstock.orchestration.health.checks import (
    FRESHNESS,
    LAG,
    LIVENESS,
    OPEN,
    TOTAL,
    TRANSACTIONS,
    UNANSWERED,
    CheckResult,
    Known,
    open_since,
)
from penstock.runtime.model.states import State, TaskKind, TaskState

READ, WRITTEN, SENTENCE = "read", "written", "sentence"
"""Kinds of samples that are compared with those of the next look: the sum of a task's committed offsets and the number of records that a
worker has written, from which rates are computed, and the checksum of the sentence and of the instances' states."""
_SHOWN = 3
DOES_NOT_RUN, STOPPED, NEVER_STARTED, UNKNOWN, SILENT = "does not run", "stopped", "never started", "unknown", "silent"
"""States of instances that are not the engine's. `SILENT`: it is to run, its last report is old, and nothing says that its process has
ended: after an outage of the brokers an instance may take a minute until it reports again."""
_NOT_RUNNING = (DOES_NOT_RUN, STOPPED, NEVER_STARTED, UNKNOWN, SILENT)
_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of an instance, or of all of them together. None: unknown, as all of them are if the state is `UNKNOWN` or `SILENT`.

    `tasks`: by kind, those that it runs now. `lag`: records that wait, and `lag_per_minute` their trend. `restore_debt`: records that
    would have to be restored if its machine were lost now. `in_per_s`, `out_per_s`: records read from source and repartition
    topics, and written to output and repartition topics, per second since the previous look, as far as they are committed.
    `resident_bytes`: resident memory of its processes.
    """

    state: str
    tasks: Mapping[str, int]
    paused: int = 0
    lag: int | None = None
    lag_per_minute: float | None = None
    oldest_checkpoint_s: float | None = None
    restore_debt: int | None = None
    in_per_s: float | None = None
    out_per_s: float | None = None
    resident_bytes: int | None = None

    @property
    def runs(self) -> bool:
        return self.state not in _NOT_RUNNING

    @property
    def known(self) -> bool:
        return self.state not in (UNKNOWN, SILENT)

    @property
    def numbers(self) -> dict[str, int | float | None]:
        """All figures, by the stable names under which they are reported."""
        kinds = {f"{kind.value.lower()}_tasks": self.tasks.get(kind.value, 0) if self.known else None for kind in TaskKind}
        return {
            **kinds,
            "paused_tasks": self.paused if self.known else None,
            "lag": self.lag,
            "lag_per_minute": self.lag_per_minute,
            "records_in_per_s": self.in_per_s,
            "records_out_per_s": self.out_per_s,
            "oldest_checkpoint_age_s": self.oldest_checkpoint_s,
            "restore_debt": self.restore_debt,
            "resident_bytes": self.resident_bytes,
        }


@dataclass(frozen=True, slots=True)
class Report:
    """`sentence`: what is wrong, else that all is well, without figures that change by themselves. `changed`: the sentence, or the state of
    an instance, is not the one of the previous look. `samples`: to compare the next look with, by kind and subject."""

    at: datetime
    sentence: str
    total: Figures
    instances: Mapping[str, Figures]
    changed: bool
    samples: Mapping[tuple[str, str], int]

    @property
    def rates_of(self) -> str:
        """Instances whose rates are in the totals, of those that run: a rate is unknown before the second look, for example."""
        if not self.total.known:
            return "unknown"
        running = [each for each in self.instances.values() if each.runs]
        read = sum(each.in_per_s is not None or not each.tasks.get(TaskKind.ACTIVE.value) for each in running)
        written = sum(each.out_per_s is not None for each in running)
        of = _plural(len(running), "instance")
        return f"{read} of {of}" if read == written else f"in: {read} of {of}; out: {written} of {of}"


def report(known: Known, results: Sequence[CheckResult], dead: frozenset[str] = frozenset()) -> Report:
    """Return the report on an application. `results`: of the checks on the same facts. `dead`: instances whose process is known to have
    ended, although their last heartbeat is recent."""
    checked = {result.name: result for result in results}
    unknown = next((result.unknown for result in results if result.unknown), "")
    states = {name: _state(known, known.instances.get(name), name in dead, unknown) for name in _names(known)}
    figures = {name: _figures(known, checked, name, state) for name, state in states.items()}
    sentence = _sentence(known, results, states, unknown)
    # with the states: while a task is paused, the sentence is the same before and after another instance was drained
    checksum = zlib.crc32("\n".join((sentence, *(f"{name} {state}" for name, state in states.items()))).encode())
    changed = known.counters.get((SENTENCE, TOTAL), (known.at, -1))[1] != checksum
    if unknown:
        samples = {(SENTENCE, TOTAL): checksum, (UNANSWERED, TOTAL): int(known.as_last_heard().at.timestamp())}
        return Report(known.at, sentence, Figures(UNKNOWN, {}), figures, changed, samples)
    lags = checked[LAG].numbers
    total = Figures(
        state=", ".join(f"{number} {state}" for state, number in _counts(states.values()).items()) or "none",
        tasks=_counts(kind for each in figures.values() for kind, number in each.tasks.items() for _ in range(number)),
        paused=sum(each.paused for each in figures.values()),
        lag=int(lags["lag"]) + sum(task.lag or 0 for task in known.active() if task.state == TaskState.PAUSED.value),
        lag_per_minute=lags["lag_per_minute"],
        oldest_checkpoint_s=max(_known(each.oldest_checkpoint_s for each in figures.values()), default=None),
        restore_debt=_sum(each.restore_debt for each in figures.values()),
        in_per_s=_sum(each.in_per_s for each in figures.values()),
        out_per_s=_sum(each.out_per_s for each in figures.values()),
        resident_bytes=_sum(each.resident_bytes for each in figures.values()),
    )
    samples = {(SENTENCE, TOTAL): checksum, **_positions(known), **_written(known), **_open_transactions(known)}
    return Report(known.at, sentence, total, figures, changed, samples)


def unknown_report(application: Application, why: str, at: datetime) -> Report:
    """Return the report on an application about which nothing could be found out."""
    sentence = f"cannot be known: {why}"
    unknown = Figures(UNKNOWN, {})
    samples = {(SENTENCE, TOTAL): zlib.crc32(sentence.encode())}
    return Report(at, sentence, unknown, dict.fromkeys(application.instances, unknown), True, samples)


def _names(known: Known) -> list[str]:
    """Return the declared instances, and others that are wanted or run."""
    more = [name for name, row in sorted(known.instances.items()) if row.wanted or known.lives(name)]
    return list(dict.fromkeys((*known.application.instances, *more)))


def _state(known: Known, row: Instance | None, dead: bool, unknown: str) -> str:
    if row is None or (row.state is None and row.heartbeat_at is None and not row.wanted):
        return NEVER_STARTED
    ended = dead or row.state in (State.NOT_RUNNING.value, State.ERROR.value)
    if unknown and not ended:
        return UNKNOWN
    if not ended and known.lives(row.name):
        return row.state or UNKNOWN
    if not row.wanted:
        return STOPPED
    return DOES_NOT_RUN if ended or row.heartbeat_at is None else SILENT


def _figures(known: Known, checked: Mapping[str, CheckResult], name: str, state: str) -> Figures:
    if state in (UNKNOWN, SILENT):
        return Figures(state, {})
    if state in _NOT_RUNNING:
        return not_running(state)
    row = known.instances[name]
    tasks = [task for task in known.tasks if task.instance == name and task.state != TaskState.CLOSED.value]
    fresh = [each.cells for each in checked[FRESHNESS].rows if each.cells["instance"] == name]
    lags = [each.cells for each in checked[LAG].rows if each.cells["instance"] == name]
    active = [task for task in tasks if task.kind == TaskKind.ACTIVE.value]
    return Figures(
        state=state,
        tasks=_counts(task.kind for task in tasks if not is_global(task.task)),
        paused=sum(task.state == TaskState.PAUSED.value for task in active),
        lag=_sum(task.lag for task in active) or 0,
        lag_per_minute=round(sum(_numbers(cells["lag_per_minute"] for cells in lags)), 2),
        oldest_checkpoint_s=max(_numbers(cells["checkpoint_age_s"] for cells in fresh), default=None),
        restore_debt=_sum(int(debt) for debt in _numbers(cells["restore_debt"] for cells in fresh)),
        in_per_s=_sum(_rate(known, READ, task.task, task.offset_sum) for task in active if task.offset_sum is not None),
        out_per_s=_sum(_rate(known, *counter, number) for counter, number in _written(known, name).items()),
        resident_bytes=sum(int(size) for size in _numbers((row.resident or {}).values())) or None,
    )


def not_running(state: str = STOPPED) -> Figures:
    """Return the figures of an instance that does not run: it has no tasks, and uses no memory."""
    return Figures(state, {}, 0, 0, 0.0, 0.0, 0, 0.0, 0.0, 0)


def _positions(known: Known) -> dict[tuple[str, str], int]:
    active = (task for task in known.tasks if task.kind == TaskKind.ACTIVE.value and task.state != TaskState.CLOSED.value)
    return {(READ, task.task): task.offset_sum for task in active if task.offset_sum is not None}


def _written(known: Known, instance: str | None = None) -> dict[tuple[str, str], int]:
    """Return the number of records that each worker has written; None: of all instances."""
    rows = known.instances.values() if instance is None else (known.instances[instance],)
    counters = {(WRITTEN, f"{row.name}/{worker}"): number for row in rows for worker, number in (row.written or {}).items()}
    return {counter: number for counter, number in counters.items() if isinstance(number, int)}


def _open_transactions(known: Known) -> dict[tuple[str, str], int]:
    """Return when each open transaction was first seen, in seconds."""
    found = {} if known.broker is None else known.broker.open_transactions
    return {(OPEN, f"{at.topic}-{at.partition}@{offset}"): open_since(known, at, offset) for at, offset in found.items()}


def _rate(known: Known, kind: str, subject: str, value: int) -> float | None:
    """Return the records per second since the previous look; None if there was none, or the counter went back."""
    before = known.counters.get((kind, subject))
    if before is None or value < before[1] or (seconds := (known.at - before[0]).total_seconds()) <= 0:
        return None
    return round((value - before[1]) / seconds, 1)


def _sentence(known: Known, results: Sequence[CheckResult], states: Mapping[str, str], unknown: str) -> str:
    said = list(_said(known, results, states))
    if unknown:
        return f"cannot be known: {unknown}" + (f"; as last known: {'; '.join(said)}" if said else "")
    if said:
        return "; ".join(said)
    if idle := known.idle():
        return idle
    running = sum(state == State.RUNNING.value for state in states.values())
    tasks = sum(task.state == TaskState.RUNNING.value for task in _open(known, states))
    return f"{_plural(tasks, 'task')} run{'s' if tasks == 1 else ''} on {_plural(running, 'instance')}, nothing is wrong"


def _said(known: Known, results: Sequence[CheckResult], states: Mapping[str, str]) -> Iterator[str]:
    """Yield the problems, the most urgent first."""
    if reset := known.unfinished_reset:
        yield reset
    tasks = list(_open(known, states))
    if paused := sorted((task for task in tasks if task.state == TaskState.PAUSED.value), key=lambda task: task.task):
        places = "; ".join(_place(known, task) for task in paused[:_SHOWN]) + _more(paused)
        yield f"{_plural(len(paused), 'task')} {'is' if len(paused) == 1 else 'are'} paused: {places}"
    if down := [name for name, state in states.items() if state == DOES_NOT_RUN]:
        verb = "is to run and does" if len(down) == 1 else "are to run and do"
        yield f"{', '.join(down[:_SHOWN])}{_more(down)} {verb} not"
    if silent := [name for name, state in states.items() if state == SILENT]:
        last = {name: known.instances[name].heartbeat_at or known.at for name in silent[:_SHOWN]}
        yield ", ".join(f"{name} has reported nothing since {_time(known, at)}" for name, at in last.items()) + _more(silent)
    said = [LIVENESS] if reset or down or silent else []
    if failing := [result.name for result in results if result.severity is not Severity.INFO and result.name not in said]:
        yield f"{'check' if len(failing) == 1 else 'checks'} {', '.join(failing)} {'fails' if len(failing) == 1 else 'fail'}"
    changing = [f"{name} is {state}" for name, state in states.items() if state in (State.REBALANCING.value, State.CREATED.value)]
    if changing:
        yield ", ".join(changing[:_SHOWN]) + _more(changing)
    for row in (row for result in results if result.name == TRANSACTIONS for row in result.rows if row.problem):
        yield f"a transaction hangs in {row.cells['topic']}-{row.cells['partition']} at offset {row.cells['start_offset']}"
    if restoring := [task for task in tasks if task.state == TaskState.RESTORING.value]:
        stores = [task.task for task in restoring if is_global(task.task)]
        yield (
            f"{_plural(len(restoring), 'task')} {'is' if len(restoring) == 1 else 'are'} being restored: "
            f"{', '.join(stores or [task.task for task in restoring[:_SHOWN]])}{'' if stores else _more(restoring)}"
        )


def _open(known: Known, states: Mapping[str, str]) -> Iterator[Task]:
    """Yield the active tasks, and copies of global stores, of instances that run."""
    for task in known.tasks:
        copy = task.kind in (TaskKind.STANDBY.value, TaskKind.LEARNER.value)
        runs = states.get(task.instance, STOPPED) not in (DOES_NOT_RUN, STOPPED, NEVER_STARTED)
        if runs and not copy and task.state != TaskState.CLOSED.value:
            yield task


def _place(known: Known, task: Task) -> str:
    where = "by hand" if task.paused_topic is None else f"at {task.paused_topic}-{task.paused_partition}@{task.paused_offset}"
    return f"{task.task} {where}" + (f", since {_time(known, task.paused_at)}" if task.paused_at else "")


def _time(known: Known, at: datetime) -> str:
    """Return a time, with its day if that is not today."""
    day = "" if at.date() == known.at.date() else f"{at:%Y-%m-%d} "
    return f"{day}{at:%H:%M} UTC"


def _plural(number: int, name: str) -> str:
    return f"{number} {name}{'' if number == 1 else 's'}"


def _more(items: Sequence[object]) -> str:
    return f" and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""


def _counts(names: Iterable[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name in names:
        found[name] = found.get(name, 0) + 1
    return found


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _numbers(cells: Iterable[object]) -> list[int | float]:
    return [cell for cell in cells if isinstance(cell, int | float)]


def _sum(values: Iterable[_Number | None]) -> _Number | None:
    """Return the sum of the known values; None if none is known."""
    known = [value for value in values if value is not None]
    return sum(known[1:], known[0]) if known else None
