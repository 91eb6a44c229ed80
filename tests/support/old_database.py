"""Databases written by earlier versions of the program, for the tests with SQLite and with PostgreSQL.

`python -m tests.support.old_database URL STATEMENT` migrates a database, and kills itself before a statement that contains this text.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime

import sqlalchemy
from alembic.migration import MigrationContext

from penstock.orchestration.alerts.alerts import NewAlert, open_alert
from penstock.orchestration.database import ControlPlane, migrate
from penstock.orchestration.database.models import Alert, Base, RunBookRun
from penstock.orchestration.declarations.policies import Severity
from tests.support import ROOT

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
    engine = _engine(url)
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


Rows = dict[str, dict[str, object]]
"""One row of each table: its values by column."""
_AT = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
_KILLED_AT = ("UPDATE alerts SET", "ADD COLUMN resident", f"version_num='{migrate.newest()}'")
"""Texts of statements: in the middle of the migration that changes rows, later, and the last one."""


def check_nothing_is_lost(new_database: Callable[[], str]) -> None:
    """Check that a database of each earlier version, with a row in each table, is migrated without a loss, also if the migration is killed
    in the middle and started again. `new_database` returns the URL of an empty one."""
    for number in range(1, int(migrate.newest())):
        url = new_database()
        written = _fill(url, f"{number:04}")
        for statement in _KILLED_AT if number == 1 else ():
            killed = subprocess.run([sys.executable, "-m", "tests.support.old_database", url, statement], cwd=ROOT, check=False)
            assert killed.returncode == -signal.SIGKILL, statement
            assert _read(url) == (f"{number:04}", written), "it is as before"
        control_plane = ControlPlane(url)
        with control_plane.reading() as session:
            for mapper in Base.registry.mappers:
                table = str(mapper.local_table)
                assert len(session.scalars(sqlalchemy.select(mapper)).all()) == (table in written or table == "alert_sightings"), table
        control_plane.close()
        version, found = _read(url)
        kept = {table: {column: found[table][column] for column in row} for table, row in written.items()}
        assert (version, kept) == (migrate.newest(), written)


def _fill(url: str, version: str) -> Rows:
    """Make the tables of a version, insert a row into each, and return the rows."""
    engine, metadata = _engine(url), sqlalchemy.MetaData()
    with engine.begin() as connection:
        migrate.upgrade(connection, version)
        metadata.reflect(connection)
        for table in metadata.sorted_tables:
            if table.name != "alembic_version":
                connection.execute(table.insert().values({column.name: _value(column) for column in table.columns}))
    engine.dispose()
    return _read(url)[1]


def _value(column: sqlalchemy.Column[object]) -> object:
    kind = column.type
    if isinstance(kind, sqlalchemy.JSON):
        return {"a": [1, None, "\u00e4"]}
    if isinstance(kind, sqlalchemy.DateTime):
        return _AT
    if isinstance(kind, sqlalchemy.Boolean):
        return True
    return 1 if isinstance(kind, sqlalchemy.Integer) else f"{column.name} \u00e4"


def _read(url: str) -> tuple[str | None, Rows]:
    """Return the version of a database, and the row of each table that has one."""
    engine, metadata = _engine(url), sqlalchemy.MetaData()
    with engine.connect() as connection:
        version = MigrationContext.configure(connection).get_current_revision()
        metadata.reflect(connection)
        rows = {table.name: connection.execute(table.select()).mappings().all() for table in metadata.sorted_tables}
    engine.dispose()
    return version, {name: dict(found[0]) for name, found in rows.items() if found and name != "alembic_version"}


def _engine(url: str) -> sqlalchemy.Engine:
    return sqlalchemy.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))


def main(url: str, statement: str) -> None:
    def die(_connection: object, _cursor: object, sql: str, *_: object) -> None:
        if statement in sql:
            os.kill(os.getpid(), signal.SIGKILL)

    sqlalchemy.event.listen(sqlalchemy.Engine, "before_cursor_execute", die)
    with ControlPlane(url).reading():
        pass


if __name__ == "__main__":
    main(*sys.argv[1:])
