"""Starts and ends of instances in Dagster, however they come about: a start is a materialisation of the instance's partition, a stop or a
death an observation of it.

A run that materialises the partition reports its start itself. A start by `scale`, by the command line or by another process manager is
seen here: each tick of the sensor on instances compares them with the state that it reported last, which its cursor holds.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from datetime import datetime

import dagster as dg
import msgspec
from sqlalchemy import select

from penstock.orchestration.alerts.incidents import INSTANCE_DIED
from penstock.orchestration.dagster import live_metadata
from penstock.orchestration.dagster.live_metadata import instance_metadata
from penstock.orchestration.dagster.names import RUNNING, instances_key
from penstock.orchestration.database.models import Alert, Instance, to_ms
from penstock.orchestration.declarations.applications import Application
from penstock.orchestration.health.checks import HEARTBEAT_SECONDS
from penstock.orchestration.health.figures import DOES_NOT_RUN, STOPPED, not_running
from penstock.orchestration.instances.operations import RETIRED, Operations
from penstock.runtime.model.states import State

_UNDER_WAY = [dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.NOT_STARTED, dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED]

LifeEvent = dg.AssetMaterialization | dg.AssetObservation


class Life(msgspec.Struct, frozen=True):
    """State of an instance that was reported last: its process, and whether it ran."""

    process: str
    runs: bool


def parse(cursor: str | None) -> dict[str, Life]:
    """Return the states that a cursor holds, by instance; none for an unknown form (an older version's)."""
    try:
        return msgspec.json.decode(cursor or "{}", type=dict[str, Life])
    except msgspec.DecodeError:
        return {}


def cursor_of(lives: Mapping[str, Life]) -> str:
    return msgspec.json.encode(lives, order="sorted").decode()


def follow(
    dagster: dg.DagsterInstance, operations: Operations, application: Application, seen: dict[str, Life], at: datetime
) -> list[LifeEvent]:
    """Return the events for the instances of an application that have started or ended since `seen`, which is updated."""
    events: list[LifeEvent] = []
    current = operations.instances(application)
    for name in (*current, *(name for name in _reported(operations, application, seen) if name not in current)):
        row, _ = operations.rows(name)
        before, now = seen.get(name), _life(operations, row, at)
        if now is None or now == before:
            continue
        if before is not None and before.runs:
            events.append(_end(operations, application, row, at))
            seen[name] = Life(before.process, False)
            if name not in current:  # its partition is deleted
                del seen[name]
                continue
        if now.runs:
            if dagster.get_runs(dg.RunsFilter(tags={"dagster/partition": name}, statuses=_UNDER_WAY), limit=1):
                continue  # the run reports it when it ends
            if not _is_reported(dagster, application, row):
                events.append(_start(application, row))
        seen[name] = now
    return events


def _reported(operations: Operations, application: Application, seen: Mapping[str, Life]) -> list[str]:
    """Return the instances of an application that were reported to run, also those that were drained since and are not declared."""
    of = select(Instance.name).where(Instance.application == application.id, Instance.name.in_(name for name in seen if seen[name].runs))
    with operations.control_plane.reading() as session:
        return sorted(session.scalars(of))


def _life(operations: Operations, row: Instance, at: datetime) -> Life | None:
    """Return the state of an instance; None if it never ran, or is starting."""
    if row.pid is None or row.started_at is None:
        return None
    process = f"{row.pid}-{to_ms(row.started_at)}"
    last = operations.launcher.last(row.name)
    if last is not None and last.pid == row.pid:
        alive = last.alive
    else:
        alive = row.heartbeat_at is not None and (at - row.heartbeat_at).total_seconds() <= HEARTBEAT_SECONDS
    if not alive or row.state in (State.NOT_RUNNING.value, State.ERROR.value):
        return Life(process, False)
    return Life(process, True) if row.state == State.RUNNING.value else None


def _is_reported(dagster: dg.DagsterInstance, application: Application, row: Instance) -> bool:
    """Return True if the last materialisation of the partition is of this process."""
    of = dg.AssetRecordsFilter(asset_key=instances_key(application.id), asset_partitions=[row.name])
    for record in dagster.fetch_materializations(of, limit=1).records:
        made = record.asset_materialization
        pid = None if made is None else made.metadata.get("pid")
        return pid is not None and pid.value == row.pid and row.started_at is not None and record.timestamp >= row.started_at.timestamp()
    return False


def _start(application: Application, row: Instance) -> dg.AssetMaterialization:
    metadata: dict[str, dg.MetadataValue] = {
        "state": live_metadata.text(str(row.state)),
        "pid": dg.MetadataValue.int(row.pid or 0),
        "host": live_metadata.text(row.host or "unknown"),
        "started_by_this_run": dg.MetadataValue.bool(False),
        "next_command": live_metadata.lines(f"penstock status {shlex.quote(row.name)}"),
    }
    if row.log_path:
        metadata["log"] = live_metadata.path(row.log_path)
    return dg.AssetMaterialization(
        instances_key(application.id),
        description=live_metadata.sentence(f"{row.name} runs as process {row.pid}; it was not started by a run of Dagster"),
        partition=row.name,
        metadata=metadata,
        tags={"dagster/data_version": RUNNING.value},
    )


def _end(operations: Operations, application: Application, row: Instance, at: datetime) -> dg.AssetObservation:
    text = live_metadata.sentence(_how(operations, application, row))
    metadata = {
        **instance_metadata(not_running(DOES_NOT_RUN if row.wanted else STOPPED), (), at),
        "wanted": dg.MetadataValue.bool(row.wanted),
    }
    return dg.AssetObservation(instances_key(application.id), description=text, partition=row.name, metadata=metadata)


def _how(operations: Operations, application: Application, row: Instance) -> str:
    """Return how an instance has ended, as far as it is known."""
    if not row.wanted:
        return f"{row.name} was stopped by {(row.wanted_by or 'someone').removeprefix(RETIRED)}"
    deaths = select(Alert).where(Alert.application == application.id, Alert.instance == row.name, Alert.kind == INSTANCE_DIED)
    with operations.control_plane.reading() as session:
        alert = session.scalars(deaths.order_by(Alert.id.desc()).limit(1)).first()
        if alert is not None and row.died_at is not None and alert.last_seen_at >= row.died_at:
            return alert.title
    return f"{row.name} has ended, and is to run again"
