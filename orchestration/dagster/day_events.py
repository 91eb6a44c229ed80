"""Observations that Dagster deletes after a day. Dagster keeps events for ever, and its storages delete them by the id of their run only.
So each hour of the day has an id of its own, which no run has: its events are deleted before the same hour of the next day writes to it.

SQLite does not return the freed pages to the file system, but uses them again: its files stop growing after a day.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import dagster as dg
from dagster._core.events import AssetObservationData, DagsterEventType

_HOUR = timedelta(hours=1)


def run_id(at: datetime) -> str:
    """Return the id under which the events of an hour are stored."""
    return f"penstock-hour-{at.hour:02}"


def report(dagster: dg.DagsterInstance, observation: dg.AssetObservation, at: datetime) -> None:
    """Report an observation that is deleted 23 hours later at the earliest, as long as `delete_old` is called each hour."""
    event = dg.DagsterEvent(
        event_type_value=DagsterEventType.ASSET_OBSERVATION.value, event_specific_data=AssetObservationData(observation), job_name=""
    )
    dagster.report_dagster_event(event, run_id=run_id(at))


def delete_old(dagster: dg.DagsterInstance, at: datetime) -> None:
    """Delete the events of the hour that comes next, which are of the day before. Cheap if there are none."""
    oldest = run_id(at + _HOUR)
    if dagster.event_log_storage.get_logs_for_run(oldest, limit=1):
        dagster.event_log_storage.delete_events(oldest)
