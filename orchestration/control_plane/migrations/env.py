"""Run by Alembic for each command; `migrate.py` gives the connection.

To add a migration after a change of `models.py`: `make migration NAME="what changes"`.
"""

from alembic import context

from orchestration.control_plane.models import Base

context.configure(connection=context.config.attributes["connection"], target_metadata=Base.metadata, render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
