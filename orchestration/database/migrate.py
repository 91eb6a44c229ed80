"""Alembic, called by the program: the scripts are part of the package, the caller provides the connection.

Alembic takes a fifth of the start of most commands, and nearly all find their tables up to date. So that question is answered without it.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, column, create_engine, inspect, select, table

if TYPE_CHECKING:
    from alembic.config import Config

_FOLDER = Path(__file__).parent / "migrations"
_VERSION = table("alembic_version", column("version_num"))


@cache
def newest() -> str:
    """Return the revision that this version of the program requires: scripts are numbered, `0007_delays_by_quotas.py`."""
    return max(script.name.partition("_")[0] for script in (_FOLDER / "versions").glob("[0-9]*.py"))


def is_current(connection: Connection) -> bool:
    """Return True if the tables are of the newest revision."""
    if not inspect(connection).has_table(_VERSION.name):
        return False
    return connection.execute(select(_VERSION.c.version_num)).scalar() == newest()


def upgrade(connection: Connection, revision: str = "head") -> None:
    """Apply missing migrations within the caller's transaction; do nothing if the tables are up to date."""
    from alembic import command

    command.upgrade(_config_for(connection), revision)


def write(message: str) -> None:
    """Generate a migration from the newest tables to those of `models.py`, with the next number."""
    from alembic import command

    engine = create_engine("sqlite://")
    with engine.begin() as connection:
        upgrade(connection)
        command.revision(_config_for(connection), message, autogenerate=True, rev_id=f"{int(newest()) + 1:04}")
    engine.dispose()


def _config_for(connection: Connection) -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_FOLDER).replace("%", "%%"))  # configparser interpolates %
    config.attributes["connection"] = connection
    return config
