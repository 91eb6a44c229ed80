"""Sensor that remakes tables automatically (`refresh` in `streams.toml`), after their stores were checkpointed.

Whether a table is due is decided from its store's progress in the database and that of the last build. A store's progress is the sum of
the next offsets of its changelog's partitions, as of the newest checkpoint of each task. (Rejected: the input's lag or the clock alone. The
first says nothing about the store, the second rebuilds tables without new data.) A store that is in no checkpoint, such as one in memory,
uses the committed input offsets of its application instead.
"""

from collections.abc import Iterable, Mapping
from datetime import date, datetime, timedelta

import dagster as dg
import msgspec
from sqlalchemy import select
from sqlalchemy.orm import Session

from penstock.orchestration.dagster.resources import PenstockResource
from penstock.orchestration.database import audit
from penstock.orchestration.database.models import Checkpoint, Task
from penstock.orchestration.declarations.applications import Application, Applications
from penstock.orchestration.declarations.state_tables import Days, Refresh, StateTable
from penstock.orchestration.instances.operations import Operations
from penstock.runtime.model.states import TaskKind
from penstock.sensors.ticks import failing_with_a_sentence, for_each_application, skip_message


class Seen(msgspec.Struct, frozen=True):
    """Progress of the store when the table was last requested, and the time of that request."""

    progress: int
    at: datetime


def store_progress(session: Session, application: str, store: str) -> int | None:
    """Return the number of records in the store's changelog, as of the checkpoints; None if there are none yet."""
    rows = session.scalars(select(Checkpoint).where(Checkpoint.application == application))
    offsets_seen = _newest([offsets for row in rows if isinstance(offsets := row.stores.get(store), Mapping)])
    if offsets_seen:
        return sum(offsets_seen.values())
    tasks = session.scalars(select(Task).where(Task.application == application, Task.kind == TaskKind.ACTIVE.value))
    sums = [task.offset_sum for task in tasks if task.offset_sum is not None]
    return sum(sums) if sums else None


def _newest(checkpoints: Iterable[Mapping[object, object]]) -> dict[str, int]:
    """Return the largest next offset of each partition: an active task and its standbys report the same partitions."""
    found: dict[str, int] = {}
    for offsets in checkpoints:
        for partition, offset in offsets.items():
            if isinstance(partition, str) and isinstance(offset, int):
                found[partition] = max(found.get(partition, 0), offset)
    return found


def why_not(refresh: Refresh, progress: int | None, seen: Seen | None, now: datetime, *, failed: bool, running: bool) -> str | None:
    """Return why a table is not rebuilt now; None if it is due.

    `failed`: the last run failed, so the table is behind whatever the progress is. `running`: a run has not ended.
    """
    if progress is None:
        return "nothing is known of the store yet"
    if running:
        return "a run of it has not ended"
    if seen is None:
        return None
    wait = seen.at + timedelta(minutes=refresh.minutes) - now
    if wait > timedelta(0):
        return f"made {(now - seen.at).total_seconds() / 60:.0f} minutes ago, at most every {refresh.minutes}"
    moved = progress - seen.progress
    # A smaller progress: the changelog was deleted and created again, so the table's rows are from before.
    if 0 <= moved < refresh.records and not failed:
        return f"{moved:,} new records in checkpoints, of {refresh.records:,}"
    return None


INTERVAL_SECONDS = 30
TAG = "penstock/table"
_RUNNING = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]


def refresh_sensors(applications: Applications) -> list[dg.SensorDefinition]:
    """Return the sensor for all tables with `refresh`; none if there is no such table."""
    tables = [table for table in applications.tables if table.refresh is not None]
    if not tables:
        return []
    targets = dg.AssetSelection.assets(*[dg.AssetKey([table.name]) for table in tables])

    @dg.sensor(
        target=targets,
        minimum_interval_seconds=INTERVAL_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Makes tables again when the checkpoints of their stores have moved on, as `refresh` in `streams.toml` says.",
    )
    @failing_with_a_sentence
    def tables_to_refresh(context: dg.SensorEvaluationContext, penstock: PenstockResource) -> dg.SensorResult:
        return evaluate(context, penstock.operations)

    return [tables_to_refresh]


def evaluate(context: dg.SensorEvaluationContext, operations: Operations) -> dg.SensorResult:
    """Return a run for each table that is due. The cursor is the known state of each store at the table's last request."""
    seen = _parse(context.cursor)
    requests: list[dg.RunRequest] = []
    reasons: list[str] = []

    def act(application: Application) -> None:
        at = audit.now()
        for table in operations.applications.tables:
            if table.refresh is None or table.application != application.id:
                continue
            with operations.control_plane.reading() as session:
                progress = store_progress(session, application.id, table.store)
            failed, running = _last_run(context.instance, table)
            reason = why_not(table.refresh, progress, seen.get(table.name), at, failed=failed, running=running)
            if reason is None and progress is not None:
                seen[table.name] = Seen(progress, at)
                requests.append(_request(table, table.refresh, progress, at))
            else:
                reasons.append(f"{table.name}: {reason}")

    away = for_each_application(operations, act)
    message = None if requests else skip_message(operations, away, "; ".join(reasons))
    return dg.SensorResult(run_requests=requests, skip_reason=message, cursor=msgspec.json.encode(seen, order="sorted").decode())


def _request(table: StateTable, refresh: Refresh, progress: int, at: datetime) -> dg.RunRequest:
    key = f"{table.name}/{progress}/{at.isoformat(timespec='seconds')}"
    asset = dg.AssetKey([table.name])
    tags = {TAG: table.name}
    if table.days is not None:
        first, last = last_days(table.days, refresh.days, at.date())
        tags |= {"dagster/asset_partition_range_start": first.isoformat(), "dagster/asset_partition_range_end": last.isoformat()}
    return dg.RunRequest(run_key=key, asset_selection=[asset], tags=tags)


def last_days(days: Days, number: int, today: date) -> tuple[date, date]:
    """Return the last days of a table, up to `number`."""
    last = max(days.first, today if days.last is None else min(days.last, today))
    return max(days.first, last - timedelta(days=number - 1)), last


def _last_run(instance: dg.DagsterInstance, table: StateTable) -> tuple[bool, bool]:
    """Return whether the last requested run failed, and whether one is still running."""
    runs = instance.get_runs(dg.RunsFilter(tags={TAG: table.name}), limit=1)
    if not runs:
        return False, False
    return runs[0].status is dg.DagsterRunStatus.FAILURE, runs[0].status in _RUNNING


def _parse(cursor: str | None) -> dict[str, Seen]:
    try:
        return msgspec.json.decode(cursor or "{}", type=dict[str, Seen])
    except msgspec.DecodeError:  # written by another version: request every table again
        return {}
