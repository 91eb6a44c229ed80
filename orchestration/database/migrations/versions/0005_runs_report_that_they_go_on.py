"""The time at which the process of a run-book reported last that it goes on"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("run_book_runs", schema=None) as batch_op:
        batch_op.add_column(sa.Column("alive_at", sa.DateTime(timezone=True), nullable=True))
