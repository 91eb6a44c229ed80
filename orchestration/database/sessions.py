"""Sessions on the control plane's database: SQLite beside the project, or PostgreSQL by its URL.

Several processes write concurrently (Dagster's runs and sensors, the command line), so both databases are configured to behave alike:

- A writing session holds its locks from the start. By default SQLite takes the write lock at the first write, after the reads: if two
  sessions read a counter and write it back, one update is lost silently. So a writing transaction is BEGIN IMMEDIATE; a reading one
  (`reading()`) is a plain BEGIN and, with the write-ahead log, never waits for a writer. On PostgreSQL, code that reads a row in order to
  update it uses `with_for_update()`, which SQLite ignores.
- Waiting is limited to 15 s, then ControlPlaneError is raised.
- The first process creates and migrates the tables (Alembic), under a lock: a file lock beside a SQLite database, an advisory lock in
  PostgreSQL. (Rejected: `create_all` on each start. With four processes at once it failed one time in 24, and it cannot change a table.)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

import sqlalchemy
from filelock import FileLock
from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DatabaseError, OperationalError
from sqlalchemy.orm import Session, sessionmaker

from penstock.orchestration.database import migrate
from penstock.orchestration.declarations.errors import ExpectedError

_BUSY_SECONDS = 15
_READING = "penstock_reading"
_ADVISORY_LOCK = 0x50454E53  # any number that is not used for another lock in this database


class ControlPlaneError(ExpectedError):
    """The database cannot be reached, used or migrated; the message names it (without password) and a remedy."""


class ControlPlane:
    """The database behind one URL. Cheap to create: it connects and migrates at first use. Safe to share between threads."""

    def __init__(self, url: str) -> None:
        try:
            parsed = make_url(url)
        except ArgumentError as error:
            raise ControlPlaneError(f"PENSTOCK_DATABASE_URL is not a database URL, for example sqlite:////path/file.db: {error}") from error
        backend = parsed.get_backend_name()
        if backend not in ("sqlite", "postgresql"):
            raise ControlPlaneError(f"database {parsed.render_as_string()}: {backend} is not supported, sqlite and postgresql are")
        if backend == "postgresql":
            parsed = parsed.set(drivername="postgresql+psycopg")
        self.url: URL = parsed
        self._engine: Engine | None = None
        self._lock = Lock()

    @property
    def name(self) -> str:
        """The URL without its password."""
        return self.url.render_as_string(hide_password=True)

    @contextmanager
    def writing(self) -> Iterator[Session]:
        """Open a session in one transaction that may write; committed at the end of the block, rolled back by an exception."""
        with self._session(reading=False) as session, session.begin():
            yield session

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """Open a session in one transaction that sees one consistent state and does not write."""
        with self._session(reading=True) as session, session.begin():
            yield session

    def close(self) -> None:
        """Close all connections; the next use opens new ones."""
        with self._lock:
            if self._engine is not None:
                self._engine.dispose()
                self._engine = None

    @contextmanager
    def _session(self, *, reading: bool) -> Iterator[Session]:
        try:
            engine = self._ready()
            bound = engine.execution_options(**{_READING: True}) if reading else engine
            with sessionmaker(bound, expire_on_commit=False)() as session:
                yield session
        except DatabaseError as error:
            if type(error) not in (OperationalError, DatabaseError):  # a wrong statement is a programming error: not translated
                raise
            raise ControlPlaneError(f"database {self.name}: {error.orig}") from error

    def _ready(self) -> Engine:
        with self._lock:
            if self._engine is None:
                engine = self._create_engine()
                try:
                    self._migrate(engine)
                except BaseException:
                    engine.dispose()  # each later use would leave one more connection open
                    raise
                self._engine = engine
            return self._engine

    def _create_engine(self, *, migrating: bool = False) -> Engine:
        if self.url.get_backend_name() == "postgresql":
            return sqlalchemy.create_engine(self.url, pool_pre_ping=True)
        if self.url.database and self.url.database != ":memory:":
            try:
                Path(self.url.database).parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ControlPlaneError(f"database {self.name}: its folder cannot be made: {error.strerror}") from error
        engine = sqlalchemy.create_engine(self.url, connect_args={"timeout": _BUSY_SECONDS})
        event.listen(engine, "connect", _prepare_sqlite_for_migration if migrating else _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine

    def _migrate(self, engine: Engine) -> None:
        """Migrate the tables to the newest revision. One process does so while others wait; if they are up to date, none waits."""
        with engine.execution_options(**{_READING: True}).connect() as connection:
            if migrate.is_current(connection):
                return
        if self.url.get_backend_name() == "postgresql":
            with engine.begin() as connection:
                connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_ADVISORY_LOCK})")
                migrate.upgrade(connection)
            return
        with FileLock(f"{self.url.database}.migration.lock", timeout=60):
            own = self._create_engine(migrating=True)
            try:
                with own.begin() as connection:
                    migrate.upgrade(connection)
            finally:
                own.dispose()


def _prepare_sqlite(connection: object, _record: object) -> None:
    connection.isolation_level = None  # type: ignore[attr-defined]  # sqlite3's; transactions are begun by `_begin_sqlite`
    for pragma in ("journal_mode=WAL", f"busy_timeout={_BUSY_SECONDS * 1000}", "synchronous=NORMAL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")  # type: ignore[attr-defined]  # as above


def _prepare_sqlite_for_migration(connection: object, record: object) -> None:
    """Disable foreign keys: SQLite changes a table by replacing it, and foreign keys on it would prevent that."""
    _prepare_sqlite(connection, record)
    connection.execute("PRAGMA foreign_keys=OFF")  # type: ignore[attr-defined]  # sqlite3's; has no effect within a transaction


def _begin_sqlite(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN" if connection.get_execution_options().get(_READING) else "BEGIN IMMEDIATE")
