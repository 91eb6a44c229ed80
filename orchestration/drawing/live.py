"""Notes in the diagram of a running application: tasks and record rate of each sub-topology."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from penstock.orchestration.drawing.description import Level, Note
from penstock.orchestration.kafka.observer import Picture
from penstock.runtime.coordination.records import Member, TaskReport
from penstock.runtime.model.states import TaskKind, TaskState

LAGGING_SECONDS = 60
"""A reader lags if it needs longer than this for what it has not read yet."""
_LAGGING_RECORDS = 10_000
"""The same, in records, where the rate is unknown."""


def lags(lag: int, per_second: float | None) -> bool:
    """Return True if a reader lags: by its rate, which counts as at least one record per second."""
    return lag > (_LAGGING_RECORDS if per_second is None else LAGGING_SECONDS * max(1.0, per_second))


def newest_text(picture: Picture) -> str | None:
    """Return the description of the topology that the application runs; None if none was published."""
    newest = max(picture.members.values(), key=lambda member: member.heartbeat_ms, default=None)
    return None if newest is None else picture.topologies.get(newest.topology_hash)


def newest_call_sites(picture: Picture) -> dict[str, str]:
    """Return the call and line that made each node with a generated name, of the topology that the application runs."""
    newest = max(picture.members.values(), key=lambda member: member.heartbeat_ms, default=None)
    version = None if newest is None else picture.versions.get(newest.topology)
    return {} if version is None else version.call_sites


def notes(now: Picture, before: Picture | None = None, behind: Mapping[int, int] | None = None) -> dict[int, Note]:
    """Return for each sub-topology with tasks: their number, the number of paused ones, their lag; the records per second since `before`,
    according to the committed offsets (which count transaction markers too); and what is wrong with it. `behind`: lags by sub-topology, if
    they were measured; without them, that of a paused task is the one at which it paused.
    """
    found: dict[int, list[tuple[Member, TaskReport, float | None]]] = {}
    for member, task, report in _active(now):
        found.setdefault(int(task.split("_")[0]), []).append((member, report, _pace(before, member, task, report)))
    return {number: _note(entries, (behind or {}).get(number)) for number, entries in found.items()}


def have_reported_again(now: Picture, before: Picture) -> bool:
    """Return True once every worker with tasks in `before` has reported again, or is gone."""
    return all(
        identity not in now.members or now.members[identity].heartbeat_ms > member.heartbeat_ms
        for identity, member in before.members.items()
        if member.active
    )


def _active(picture: Picture) -> Iterator[tuple[Member, str, TaskReport]]:
    for instance in picture.instances():
        for member in picture.workers(instance):
            for task, report in member.tasks.items():
                if report.kind is TaskKind.ACTIVE:
                    yield member, task, report


def _pace(before: Picture | None, member: Member, task: str, report: TaskReport) -> float | None:
    """Return the records per second of a task that the same worker had in `before`; None if unknown."""
    then = None if before is None else before.members.get(member.identity)
    if then is None or task not in then.tasks or member.heartbeat_ms <= then.heartbeat_ms:
        return None
    return max(0, report.offset_sum - then.tasks[task].offset_sum) * 1000 / (member.heartbeat_ms - then.heartbeat_ms)


def _note(entries: list[tuple[Member, TaskReport, float | None]], behind: int | None) -> Note:
    parts = [f"{len(entries)} task{'s' * (len(entries) > 1)}"]
    if paused := sum(report.state is TaskState.PAUSED for _, report, _ in entries):
        parts.append(f"{paused} paused")
    known = [pace for _, _, pace in entries if pace is not None]
    if known:
        parts.append(f"{sum(known):,.0f} records/s")
    lag = sum(report.lag or 0 for _, report, _ in entries) if behind is None else behind
    parts.append(f"lag {'≥ ' if paused and behind is None else ''}{lag:,}")
    level = Level.PAUSED if paused else Level.LAGGING if lags(lag, sum(known) if known else None) else Level.GOOD
    return Note(", ".join(parts), level)
