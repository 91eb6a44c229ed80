"""Run by Alembic for each command; `migrate.py` gives the connection.

After a change of `models.py`, write a migration, and read it before you commit it:

    .venv/bin/python -c 'from orchestration.control_plane.migrate import write; write("What changes")'
"""

from typing import Literal

from alembic import context

from orchestration.control_plane.models import Base, UtcDateTime


def render(kind: str, item: object, _context: object) -> str | Literal[False]:
    """A migration stays as it was written, whatever becomes of the program: it names SQLAlchemy's types, not ours."""
    return "sa.DateTime(timezone=True)" if kind == "type" and isinstance(item, UtcDateTime) else False


connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=Base.metadata, render_as_batch=True, render_item=render)
with context.begin_transaction():
    context.run_migrations()
