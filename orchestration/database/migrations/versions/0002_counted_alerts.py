"""Occurrences of alerts; run-books of all kinds; samples"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "alert_sightings",
        sa.Column("occurrence", sa.String(length=767), nullable=False),
        sa.Column("alert_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["alert_id"], ["alerts.id"], name=op.f("fk_alert_sightings_alert_id")),
        sa.PrimaryKeyConstraint("occurrence", name=op.f("pk_alert_sightings")),
    )
    with op.batch_alter_table("alert_sightings", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_alert_sightings_alert_id"), ["alert_id"], unique=False)
    op.execute("INSERT INTO alert_sightings (occurrence, alert_id, at) SELECT occurrence, id, opened_at FROM alerts")

    op.create_table(
        "samples",
        sa.Column("application", sa.String(length=255), nullable=False),
        sa.Column("kind", sa.String(length=255), nullable=False),
        sa.Column("subject", sa.String(length=255), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("value", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("application", "kind", "subject", "at", name=op.f("pk_samples")),
    )

    with op.batch_alter_table("alerts", schema=None) as batch_op:
        batch_op.add_column(sa.Column("subject", sa.String(length=767), nullable=True))
        batch_op.add_column(sa.Column("last_seen_at", sa.DateTime(timezone=True), nullable=True))
        batch_op.add_column(sa.Column("count", sa.Integer(), nullable=True))
    op.execute("UPDATE alerts SET subject = COALESCE(task, instance, application), last_seen_at = opened_at, count = 1")
    with op.batch_alter_table("alerts", schema=None) as batch_op:
        for column, kind in (("subject", sa.String(length=767)), ("last_seen_at", sa.DateTime(timezone=True)), ("count", sa.Integer())):
            batch_op.alter_column(column, existing_type=kind, nullable=False)

    with op.batch_alter_table("run_book_runs", schema=None) as batch_op:
        batch_op.add_column(sa.Column("subject", sa.String(length=767), nullable=True))
        batch_op.add_column(sa.Column("attempts", sa.Integer(), nullable=True))
    op.execute("UPDATE run_book_runs SET subject = task, attempts = 1")
    with op.batch_alter_table("run_book_runs", schema=None) as batch_op:
        batch_op.alter_column("subject", existing_type=sa.String(length=767), nullable=False)
        batch_op.alter_column("attempts", existing_type=sa.Integer(), nullable=False)
        for column, kind in (
            ("task", sa.String(length=255)),
            ("topic", sa.String(length=255)),
            ("partition", sa.Integer()),
            ("offset", sa.BigInteger()),
        ):
            batch_op.alter_column(column, existing_type=kind, nullable=True)
