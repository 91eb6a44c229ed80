"""Automatic refreshes of a table: when the checkpoints of its store have advanced, and not more often than is allowed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest

from penstock.orchestration.database import ControlPlane, audit
from penstock.orchestration.database.models import Checkpoint, Task
from penstock.orchestration.declarations.applications import Applications
from penstock.orchestration.declarations.project_paths import ProjectPaths
from penstock.orchestration.declarations.state_tables import Days, Refresh
from penstock.orchestration.instances.operations import Operations
from penstock.sensors import tables
from penstock.sensors.tables import TAG, Seen, evaluate, last_days, refresh_sensors, store_progress, why_not

AT = datetime(2026, 1, 1, 12, tzinfo=UTC)
FILE = Path("streams.toml")
DECLARED = """
[applications.a]
factory = "m:f"
instances = 1
[[tables]]
application = "a"
store = "counts"
refresh = { records = 100, minutes = 10 }
[[tables]]
application = "a"
store = "hours"
partitions = "daily"
first-day = 2026-01-01
refresh = { days = 2 }
[[tables]]
application = "a"
store = "counts"
name = "by_hand"
"""


@pytest.fixture
def operations(tmp_path: Path) -> Iterator[Operations]:
    url = f"sqlite:///{tmp_path / 'control-plane.db'}"
    plane = ControlPlane(url)
    yield Operations(ProjectPaths(tmp_path, tmp_path, FILE, url), Applications.parse(DECLARED, FILE), plane)
    plane.close()


def checkpoint(operations: Operations, task: str, stores: Mapping[str, Mapping[str, int]], instance: str = "a-1") -> None:
    with operations.control_plane.writing() as session:
        session.merge(Checkpoint(application="a", task=task, instance=instance, at=AT, stores=dict(stores)))


def progress(operations: Operations, store: str = "counts") -> int | None:
    with operations.control_plane.reading() as session:
        return store_progress(session, "a", store)


def test_progress_is_what_the_newest_checkpoints_of_a_store_say(operations: Operations) -> None:
    assert progress(operations) is None
    checkpoint(operations, "0_0", {"counts": {"a-counts-changelog-0": 10}, "other": {"a-other-changelog-0": 99}})
    checkpoint(operations, "0_1", {"counts": {"a-counts-changelog-1": 20}})
    checkpoint(operations, "0_1", {"counts": {"a-counts-changelog-1": 15}}, instance="a-2")  # a standby, a little behind
    assert progress(operations) == 30


def test_a_store_without_checkpoints_goes_by_what_is_committed(operations: Operations) -> None:
    with operations.control_plane.writing() as session:
        for number, kind in enumerate(("ACTIVE", "ACTIVE", "STANDBY")):
            session.add(Task(application="a", task=f"0_{number}", instance="a-1", kind=kind, state="RUNNING", offset_sum=7, updated_at=AT))
    assert progress(operations) == 14


@pytest.mark.parametrize(
    ("progress", "seen", "failed", "running", "says"),
    [
        (None, None, False, False, "nothing is known"),
        (5, None, False, False, None),  # it was never made
        (5, None, False, True, "has not ended"),
        (199, Seen(100, AT - timedelta(hours=1)), False, False, "99 new records in checkpoints, of 100"),
        (200, Seen(100, AT - timedelta(hours=1)), False, False, None),
        (200, Seen(100, AT - timedelta(minutes=9)), False, False, "9 minutes ago, at most every 10"),
        (100, Seen(100, AT - timedelta(hours=1)), True, False, None),  # the last run failed
        (3, Seen(100, AT - timedelta(hours=1)), False, False, None),  # the changelog was created again
    ],
)
def test_reasons_why_a_table_is_not_refreshed(
    progress: int | None, seen: Seen | None, failed: bool, running: bool, says: str | None
) -> None:
    found = why_not(Refresh(records=100, minutes=10), progress, seen, AT, failed=failed, running=running)
    assert (found is None) is (says is None) and (says or "") in (found or ""), found


def test_the_sensor_asks_on_progress_and_not_without(operations: Operations, monkeypatch: pytest.MonkeyPatch) -> None:
    now = AT
    monkeypatch.setattr(audit, "now", lambda: now)
    monkeypatch.setattr(tables, "for_each_application", _each)
    with dg.DagsterInstance.ephemeral() as instance:

        def tick(cursor: str | None) -> dg.SensorResult:
            return evaluate(dg.build_sensor_context(instance=instance, cursor=cursor), operations)

        nothing = tick(None)
        assert not nothing.run_requests and "nothing is known of the store" in str(nothing.skip_reason)
        checkpoint(operations, "0_0", {"counts": {"a-counts-changelog-0": 10}})
        first = tick(nothing.cursor)
        (request,) = first.run_requests or []
        assert request.asset_selection == [dg.AssetKey(["counts"])] and request.tags == {TAG: "counts"}
        now = AT + timedelta(minutes=11)
        assert not tick(first.cursor).run_requests, "no progress, no run"
        checkpoint(operations, "0_0", {"counts": {"a-counts-changelog-0": 110}, "hours": {"a-hours-changelog-0": 1}})
        third = tick(first.cursor)
        requests = third.run_requests or []
        assert [request.tags[TAG] for request in requests] == ["counts", "hours"]
        assert requests[1].tags["dagster/asset_partition_range_start"] == "2026-01-01"
        assert len({request.run_key for request in [*requests, request]}) == 3
        assert tick("another version's").run_requests, "a cursor that cannot be read asks for all once more"


def _each(operations: Operations, act: object) -> list[str]:
    assert callable(act)
    for application in operations.applications.applications:
        act(application)
    return []


def test_there_is_a_sensor_only_where_a_table_wants_it() -> None:
    (sensor,) = refresh_sensors(Applications.parse(DECLARED, FILE))
    assert sensor.default_status is dg.DefaultSensorStatus.RUNNING
    assert refresh_sensors(Applications.parse(DECLARED.replace("refresh", "# refresh"), FILE)) == []


@pytest.mark.parametrize(
    ("days", "number", "today", "expected"),
    [
        (Days(date(2026, 1, 1)), 3, date(2026, 2, 1), (date(2026, 1, 30), date(2026, 2, 1))),
        (Days(date(2026, 1, 31)), 3, date(2026, 2, 1), (date(2026, 1, 31), date(2026, 2, 1))),
        (Days(date(2013, 1, 1), date(2013, 12, 31)), 2, date(2026, 2, 1), (date(2013, 12, 30), date(2013, 12, 31))),
        (Days(date(2027, 1, 1)), 2, date(2026, 2, 1), (date(2027, 1, 1), date(2027, 1, 1))),
    ],
)
def test_the_last_days_of_a_table(days: Days, number: int, today: date, expected: tuple[date, date]) -> None:
    assert last_days(days, number, today) == expected
