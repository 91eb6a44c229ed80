"""Alerts on tables that are not what their changelogs say."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from penstock.orchestration.alerts import alert_text
from penstock.orchestration.alerts.incidents import TABLE_DIFFERS, DifferenceCheck, of_check
from penstock.orchestration.database import ControlPlane
from penstock.orchestration.database.models import Alert

AT = datetime(2026, 1, 1, tzinfo=UTC)
FIRST = ('surplus: {"key":"never"} in task 0_1: the store has what its topic has not', 'different: {"key":"UA"} in task 0_0: 1, 2')


def check(run: str, *, surplus: int = 0, different: int = 0, first: tuple[str, ...] = FIRST, table: str = "carriers") -> DifferenceCheck:
    return DifferenceCheck(
        TABLE_DIFFERS, "board", table, run, {"missing": 0, "surplus": surplus, "different": different}, first, "/tables/x"
    )


def test_a_table_that_differs_opens_one_alert_that_names_the_keys_and_counts(control_plane: ControlPlane) -> None:
    with control_plane.writing() as session:
        alert = of_check(session, check("r1", surplus=1, different=2), actor="dagster", at=AT)
        assert alert is not None and (alert.kind, alert.subject, alert.severity) == (TABLE_DIFFERS, "carriers", "ERROR")
        assert "(1 surplus, 2 different)" in alert.title and "never" in alert.title and "UA" in alert.title
        assert alert_text.facts(alert)["all of them are in"] == "/tables/x"
        assert alert_text.next_commands(alert)[-1] == f"penstock alerts resolve {alert.id}"


def test_the_next_checks_are_counted_in_it_and_the_last_one_is_shown(control_plane: ControlPlane) -> None:
    with control_plane.writing() as session:
        of_check(session, check("r1", surplus=1), actor="dagster", at=AT)
        of_check(session, check("r1", surplus=1), actor="dagster", at=AT)  # a run that is tried again
        of_check(session, check("r1", surplus=1, table="other"), actor="dagster", at=AT)
        alert = of_check(session, check("r2", surplus=9, first=("surplus: new",)), actor="dagster", at=AT + timedelta(hours=1))
        assert alert is not None and alert.count == 2
        assert "9 surplus" in alert.title and "surplus: new" in alert.title
        assert session.query(Alert).count() == 2


def test_a_check_that_passes_resolves_it_and_what_comes_after_is_a_new_one(control_plane: ControlPlane) -> None:
    with control_plane.writing() as session:
        first = of_check(session, check("r1", surplus=1), actor="dagster", at=AT)
        assert of_check(session, check("r2"), actor="dagster", at=AT) is None
        assert first is not None and first.state == "RESOLVED" and "r2" in str(first.resolution)
        again = of_check(session, check("r3", different=1), actor="dagster", at=AT)
        assert again is not None and again.id != first.id
