"""Observations that are deleted after a day, in Dagster's SQLite storage."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg

from penstock.orchestration.dagster import day_events

START = datetime(2026, 11, 21, 22, 30, tzinfo=UTC)
ASSET = dg.AssetKey(["flights", "status"])


def report_hours(dagster: dg.DagsterInstance, first: int, last: int) -> None:
    """Report an observation of some KiB in each of these hours, as the schedule does, and one that is kept."""
    for hour in range(first, last):
        at = START + timedelta(hours=hour)
        day_events.delete_old(dagster, at)
        day_events.report(dagster, dg.AssetObservation(ASSET, description=f"hour {hour}", metadata={"text": "x" * 20_000}), at)


def shown(dagster: dg.DagsterInstance) -> list[str | None]:
    records = dagster.fetch_observations(ASSET, limit=1000).records
    return [record.asset_observation.description for record in records if record.asset_observation is not None]


def bytes_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*.db"))


def test_observations_are_kept_for_23_hours_and_the_files_stop_growing(tmp_path: Path) -> None:
    with dg.DagsterInstance.local_temp(str(tmp_path)) as dagster:
        dagster.report_runless_asset_event(dg.AssetObservation(ASSET, description="kept"))
        report_hours(dagster, 0, 26)
        assert shown(dagster) == [*(f"hour {hour}" for hour in range(25, 2, -1)), "kept"], "the newest first"
        size = bytes_of(tmp_path)
        report_hours(dagster, 26, 74)
        assert shown(dagster) == [*(f"hour {hour}" for hour in range(73, 50, -1)), "kept"]
        assert bytes_of(tmp_path) <= 1.1 * size


def test_a_day_without_dagster_loses_nothing_that_is_not_old(tmp_path: Path) -> None:
    """Nothing is deleted meanwhile; the hour after the first tick is the oldest that is left."""
    with dg.DagsterInstance.local_temp(str(tmp_path)) as dagster:
        report_hours(dagster, 0, 3)
        report_hours(dagster, 24 * 3, 24 * 3 + 1)
        assert shown(dagster) == ["hour 72", "hour 2", "hour 0"]
