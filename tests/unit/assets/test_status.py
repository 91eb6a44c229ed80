"""Observations of applications: how many a minute has, and that no old value stays on an instance's page."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import dagster as dg

from penstock.assets.status import A_MINUTE, is_due, observations
from penstock.orchestration.dagster.live_metadata import instance_metadata
from penstock.orchestration.database.models import Task
from penstock.orchestration.health.figures import UNKNOWN, Figures, Report, not_running

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
RUNNING = Figures("RUNNING", {"ACTIVE": 4}, 1, 10, 0.5, 3.0, 100, 7.5, None, 1 << 28)


def report(*instances: Figures, changed: bool = False, at: datetime = NOW) -> Report:
    figures = {f"a-{number}": each for number, each in enumerate(instances, 1)}
    return Report(at, "all is well", RUNNING, figures, changed, {})


def test_many_applications_take_turns_and_one_that_has_changed_does_not_wait() -> None:
    applications = [f"app-{number}" for number in range(50)]
    turns = dict.fromkeys(applications, 0)
    for minute in range(60):
        found = report(at=NOW + timedelta(minutes=minute))
        for application in applications:
            turns[application] += is_due(found, application, 350)
    assert set(turns.values()) == {10}, "each once in 6 minutes"
    assert all(is_due(report(at=NOW + timedelta(minutes=minute)), "app-0", A_MINUTE) for minute in range(5)), "each minute"
    assert all(is_due(replace(report(), changed=True), application, 10_000) for application in applications)


def test_an_instance_that_does_not_run_is_observed_when_something_has_changed_only() -> None:
    def partitions(found: Report, *, everything: bool = False) -> list[str | None]:
        return [observation.partition for observation in observations("a", found, {}, everything=everything)]

    instances = (RUNNING, not_running(), not_running("never started"))
    assert partitions(report(*instances)) == [None, "a-1"]
    assert partitions(report(*instances, changed=True)) == [None, "a-1", "a-2"]
    assert partitions(report(*instances), everything=True) == [None, "a-1", "a-2"], "another look may have seen the change first"


def test_what_an_instance_did_is_overwritten_when_it_stops() -> None:
    """The page of a partition shows the newest value of each name."""
    states = (RUNNING, not_running(), Figures(UNKNOWN, {}), Figures("CREATED", {}))
    assert len({tuple(instance_metadata(figures, (), NOW)) for figures in states}) == 1
    assert {
        name: value.value for name, value in instance_metadata(not_running(), (), NOW).items() if name in ("state", "lag", "task_count")
    } == {
        "state": "stopped",
        "lag": 0,
        "task_count": 0,
    }


def test_nothing_is_shown_as_a_figure_while_it_is_not_known() -> None:
    task = Task(task="0_1", kind="ACTIVE", state="RUNNING", worker=1, lag=5)
    page = instance_metadata(Figures(UNKNOWN, {}), [task], NOW)
    tables = [value for value in page.values() if isinstance(value, dg.TableMetadataValue)]
    assert [table.records for table in tables] == [[]], "a task that it ran last"
    others = {name: value.value for name, value in page.items() if name != "as_of" and not isinstance(value, dg.TableMetadataValue)}
    assert set(others.values()) == {"unknown"}
    overview, *_ = observations("a", report(Figures(UNKNOWN, {})), {})
    table = overview.metadata["2 instances"]
    assert isinstance(table, dg.TableMetadataValue)
    assert [record.data for record in table.records] == [{"instance": "a-1", "state": UNKNOWN, "tasks": UNKNOWN, "lag": None, "MiB": None}]


def test_tables_have_room_on_a_page_and_name_the_record_at_which_a_task_is_paused() -> None:
    at = {"paused_topic": "flights", "paused_partition": 4, "paused_offset": 15535}
    paused = Task(task="0_4", kind="ACTIVE", state="PAUSED", worker=1, lag=5, **at)
    copy = Task(task="0_1", kind="STANDBY", state="RUNNING", worker=2, lag=1, end_sum=4)
    table = instance_metadata(RUNNING, [paused, copy], NOW)["tasks"]
    assert isinstance(table, dg.TableMetadataValue)
    assert len(table.schema.columns) <= 5
    assert [(record.data["task"], record.data["state"]) for record in table.records] == [
        ("0_4 (worker 1)", "PAUSED at flights-4@15535"),
        ("0_1 (worker 2)", "RUNNING, 75.0 % read"),
    ]
