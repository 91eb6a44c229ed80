"""The worker of each task"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("tasks", schema=None) as batch_op:
        batch_op.add_column(sa.Column("worker", sa.Integer(), nullable=False, server_default="1"))
        batch_op.add_column(sa.Column("incarnation", sa.BigInteger(), nullable=True))
