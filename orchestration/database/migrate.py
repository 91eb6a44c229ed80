"""Alembic, called by the program: the scripts are part of the package, the caller provides the connection."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine

_SCRIPTS = str(Path(__file__).parent / "migrations").replace("%", "%%")  # configparser interpolates %


@cache
def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", _SCRIPTS)
    return config


@cache
def newest() -> str:
    """Return the revision that this version of the program requires."""
    head = ScriptDirectory.from_config(_config()).get_current_head()
    if head is None:
        raise RuntimeError("no migration is packaged with penstock.orchestration.database")
    return head


def is_current(connection: Connection) -> bool:
    return MigrationContext.configure(connection).get_current_revision() == newest()


def upgrade(connection: Connection, revision: str = "head") -> None:
    """Apply missing migrations within the caller's transaction; do nothing if the tables are up to date."""
    command.upgrade(_config_for(connection), revision)


def write(message: str) -> None:
    """Generate a migration from the newest tables to those of `models.py`, with the next number."""
    engine = create_engine("sqlite://")
    with engine.begin() as connection:
        upgrade(connection)
        command.revision(_config_for(connection), message, autogenerate=True, rev_id=f"{int(newest()) + 1:04}")
    engine.dispose()


def _config_for(connection: Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", _SCRIPTS)
    config.attributes["connection"] = connection
    return config
