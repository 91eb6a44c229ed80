"""A database written by the program's first version, for the tests with SQLite and with PostgreSQL."""

from __future__ import annotations

import sqlalchemy

from penstock.orchestration.alerts.alerts import NewAlert, open_alert
from penstock.orchestration.database import ControlPlane, migrate
from penstock.orchestration.database.models import Alert, RunBookRun
from penstock.orchestration.declarations.policies import Severity

FIRST_VERSION = (
    "INSERT INTO alerts (id, occurrence, kind, severity, application, instance, task, title, detail, state, opened_at, notify_attempts) "
    "VALUES (1, 'e1', 'TASK_PAUSED', 'ERROR', 'a', 'a-1', '0_0', 'paused', '{}', 'OPEN', '2026-11-21 12:00:00', 0)",
    'INSERT INTO run_book_runs (id, run_book, application, task, topic, partition, "offset", by_policy, requested_by, requested_at, state) '
    "VALUES (1, 'skip-record', 'a', '0_0', 'in', 0, 5, true, 'policy', '2026-11-21 12:00:00', 'DONE')",
    "INSERT INTO run_book_steps (run_id, number, name, state, started_at, detail) "
    "VALUES (1, 1, 'check', 'DONE', '2026-11-21 12:00:00', '{}')",
)
"""Rows as the program's first version wrote them."""


def check_old_database_is_migrated(url: str) -> None:
    """Check that a database of the first version is migrated without a loss of rows."""
    engine = sqlalchemy.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        migrate.upgrade(connection, "0001")
        for statement in FIRST_VERSION:
            connection.exec_driver_sql(statement)
    engine.dispose()
    control_plane = ControlPlane(url)
    with control_plane.writing() as session:
        alert, run = session.get_one(Alert, 1), session.get_one(RunBookRun, 1)
        assert (alert.subject, alert.count, alert.last_seen_at) == ("0_0", 1, alert.opened_at)
        assert (run.subject, run.attempts, [step.name for step in run.steps]) == ("0_0", 1, ["check"])
        again = NewAlert("e1", "TASK_PAUSED", Severity.ERROR, "a", "in-0@5", "paused")
        assert open_alert(session, again, actor="sensor", at=alert.opened_at) == (alert, False)
    control_plane.close()
