"""Alembic's environment, executed for each of its commands; `migrate.py` provides the connection.

After a change of `models.py`, generate a migration, and review it before you commit it:

    .venv/bin/python -c 'from penstock.orchestration.database.migrate import write; write("What changes")'
"""

from typing import Literal

from alembic import context

from penstock.orchestration.database.models import Base, UtcDateTime


def render(kind: str, item: object, _context: object) -> str | Literal[False]:
    """Render SQLAlchemy's types instead of ours, so that a migration does not depend on later versions of the program."""
    return "sa.DateTime(timezone=True)" if kind == "type" and isinstance(item, UtcDateTime) else False


connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=Base.metadata, render_as_batch=True, render_item=render)
with context.begin_transaction():
    context.run_migrations()
