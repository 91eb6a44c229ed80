"""Sessions and migrations, on SQLite; on PostgreSQL in tests/dagster/test_postgresql.py."""

from __future__ import annotations

import multiprocessing
import sqlite3
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from itertools import count
from pathlib import Path

import pytest
import sqlalchemy
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from penstock.orchestration.database import ControlPlane, ControlPlaneError, migrate
from penstock.orchestration.database.models import Base, Instance
from tests.support.old_database import check_nothing_is_lost, check_old_database_is_migrated

WRITERS, UPDATES = 4, 25


def count_deaths(url: str) -> None:
    """In a process of its own: reads a number, adds one, writes it back, many times; the first of all makes the tables."""
    control_plane = ControlPlane(url)
    for _ in range(UPDATES):
        with control_plane.writing() as session:
            row = session.get(Instance, ("a", "a-1"), with_for_update=True)
            if row is None:
                session.add(Instance(application="a", name="a-1", deaths=1))
            else:
                row.deaths += 1
    control_plane.close()


def test_processes_that_come_first_together_make_the_tables_once_and_lose_no_update(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'control-plane.db'}"
    with ProcessPoolExecutor(WRITERS, mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(count_deaths, [url] * WRITERS))
    control_plane = ControlPlane(url)
    with control_plane.reading() as session:
        row = session.get(Instance, ("a", "a-1"))
        assert row is not None
        assert row.deaths == WRITERS * UPDATES
    control_plane.close()


def test_the_migrations_make_the_tables_of_the_models(control_plane: ControlPlane) -> None:
    with control_plane.reading() as session:
        connection = session.connection()
        assert migrate.is_current(connection)
        assert MigrationContext.configure(connection).get_current_revision() == migrate.newest()
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []


def test_a_database_without_tables_is_migrated_and_one_that_is_up_to_date_is_left_alone(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'deep' / 'control-plane.db'}"
    for _ in range(2):
        control_plane = ControlPlane(url)
        with control_plane.writing() as session:
            assert session.scalar(sqlalchemy.text("SELECT version_num FROM alembic_version")) == migrate.newest()
        control_plane.close()


def test_a_database_of_the_first_version_is_migrated(tmp_path: Path) -> None:
    check_old_database_is_migrated(f"sqlite:///{tmp_path / 'control-plane.db'}")


def test_nothing_is_lost_by_the_migration_of_an_earlier_version_also_if_it_is_killed(tmp_path: Path) -> None:
    numbers = count()
    check_nothing_is_lost(lambda: f"sqlite:///{tmp_path / f'{next(numbers)}.db'}")


def test_a_reader_does_not_wait_for_a_writer(control_plane: ControlPlane) -> None:
    with control_plane.writing() as writer:
        writer.add(Instance(application="a", name="a-1"))
        writer.flush()
        with control_plane.reading() as reader:
            assert reader.get(Instance, ("a", "a-1")) is None


def test_an_exception_rolls_back(control_plane: ControlPlane) -> None:
    with pytest.raises(RuntimeError), control_plane.writing() as session:
        session.add(Instance(application="a", name="a-1"))
        session.flush()
        raise RuntimeError
    with control_plane.reading() as session:
        assert session.get(Instance, ("a", "a-1")) is None


def test_times_come_back_with_their_zone(control_plane: ControlPlane) -> None:
    east = datetime(2013, 1, 1, 14, 30, tzinfo=timezone(timedelta(hours=9)))
    with control_plane.writing() as session:
        session.add(Instance(application="a", name="a-1", heartbeat_at=east))
    with control_plane.reading() as session:
        row = session.get(Instance, ("a", "a-1"))
        assert row is not None
        assert row.heartbeat_at == east
        assert row.heartbeat_at.tzinfo is UTC


def test_a_time_without_zone_is_refused(control_plane: ControlPlane) -> None:
    with pytest.raises(sqlalchemy.exc.StatementError, match="no time zone"), control_plane.writing() as session:
        session.add(Instance(application="a", name="a-1", heartbeat_at=datetime(2013, 1, 1)))


@pytest.mark.parametrize(("url", "says"), [("nonsense", "is not a database URL"), ("mysql://u:secret@h/d", "mysql is not supported")])
def test_a_url_that_cannot_be_used_is_explained_without_its_password(url: str, says: str) -> None:
    with pytest.raises(ControlPlaneError, match=says) as caught:
        ControlPlane(url)
    assert "secret" not in str(caught.value)


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    path = tmp_path / "control-plane.db"
    path.write_text("no database" * 100)
    with pytest.raises(ControlPlaneError, match=r"control-plane\.db: file is not a database"), ControlPlane(f"sqlite:///{path}").reading():
        pass


def test_a_locked_database_ends_in_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "control-plane.db"
    control_plane = ControlPlane(f"sqlite:///{path}")
    with control_plane.reading():
        pass
    control_plane.close()
    monkeypatch.setattr("penstock.orchestration.database.sessions._BUSY_SECONDS", 0)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(ControlPlaneError, match=r"control-plane\.db: database is locked"), control_plane.writing() as session:
        session.add(Instance(application="a", name="a-1"))
    holder.execute("ROLLBACK")
    holder.close()
    control_plane.close()
