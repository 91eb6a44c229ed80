"""The control plane's first tables"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "alerts",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("occurrence", sa.String(length=767), nullable=False),
        sa.Column("kind", sa.String(length=255), nullable=False),
        sa.Column("severity", sa.String(length=255), nullable=False),
        sa.Column("application", sa.String(length=255), nullable=False),
        sa.Column("instance", sa.String(length=255), nullable=True),
        sa.Column("task", sa.String(length=255), nullable=True),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("detail", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(length=255), nullable=False),
        sa.Column("opened_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("acknowledged_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("acknowledged_by", sa.String(length=255), nullable=True),
        sa.Column("resolved_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("resolved_by", sa.String(length=255), nullable=True),
        sa.Column("resolution", sa.Text(), nullable=True),
        sa.Column("notified_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("notify_attempts", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_alerts")),
        sa.UniqueConstraint("occurrence", name=op.f("uq_alerts_occurrence")),
    )
    with op.batch_alter_table("alerts", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_alerts_application_state"), ["application", "state"], unique=False)

    op.create_table(
        "checkpoints",
        sa.Column("application", sa.String(length=255), nullable=False),
        sa.Column("task", sa.String(length=255), nullable=False),
        sa.Column("instance", sa.String(length=255), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("stores", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("application", "task", "instance", name=op.f("pk_checkpoints")),
    )
    op.create_table(
        "events",
        sa.Column("id", sa.String(length=767), nullable=False),
        sa.Column("application", sa.String(length=255), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("instance", sa.String(length=255), nullable=False),
        sa.Column("incarnation", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.String(length=255), nullable=False),
        sa.Column("task", sa.String(length=255), nullable=True),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("payload", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
        sa.UniqueConstraint("application", "sequence", name=op.f("uq_events_application_sequence")),
    )
    with op.batch_alter_table("events", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_events_kind"), ["kind"], unique=False)

    op.create_table(
        "feed_offsets",
        sa.Column("application", sa.String(length=255), nullable=False),
        sa.Column("topic", sa.String(length=255), nullable=False),
        sa.Column("partition", sa.Integer(), nullable=False),
        sa.Column("topic_id", sa.String(length=255), nullable=False),
        sa.Column("next_offset", sa.BigInteger(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("application", "topic", "partition", name=op.f("pk_feed_offsets")),
    )
    op.create_table(
        "instances",
        sa.Column("application", sa.String(length=255), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("wanted", sa.Boolean(), nullable=False),
        sa.Column("wanted_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("wanted_by", sa.String(length=255), nullable=True),
        sa.Column("wanted_published", sa.Boolean(), nullable=False),
        sa.Column("state", sa.String(length=255), nullable=True),
        sa.Column("state_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("pid", sa.Integer(), nullable=True),
        sa.Column("host", sa.String(length=255), nullable=True),
        sa.Column("incarnation", sa.BigInteger(), nullable=True),
        sa.Column("member_id", sa.String(length=255), nullable=True),
        sa.Column("log_path", sa.Text(), nullable=True),
        sa.Column("state_dir", sa.Text(), nullable=True),
        sa.Column("metrics_port", sa.Integer(), nullable=True),
        sa.Column("heartbeat_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("start_requested_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("start_replaces", sa.String(length=255), nullable=True),
        sa.Column("deaths", sa.Integer(), nullable=False),
        sa.Column("died_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("dead_process", sa.String(length=255), nullable=True),
        sa.PrimaryKeyConstraint("application", "name", name=op.f("pk_instances")),
    )
    op.create_table(
        "run_book_runs",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("run_book", sa.String(length=255), nullable=False),
        sa.Column("application", sa.String(length=255), nullable=False),
        sa.Column("task", sa.String(length=255), nullable=False),
        sa.Column("topic", sa.String(length=255), nullable=False),
        sa.Column("partition", sa.Integer(), nullable=False),
        sa.Column("offset", sa.BigInteger(), nullable=False),
        sa.Column("occurrence", sa.String(length=767), nullable=True),
        sa.Column("by_policy", sa.Boolean(), nullable=False),
        sa.Column("requested_by", sa.String(length=255), nullable=False),
        sa.Column("requested_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("state", sa.String(length=255), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("dagster_run_id", sa.String(length=255), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_run_book_runs")),
    )
    with op.batch_alter_table("run_book_runs", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_run_book_runs_application_requested_at"), ["application", "requested_at"], unique=False)
        batch_op.create_index(batch_op.f("ix_run_book_runs_occurrence"), ["occurrence"], unique=False)

    op.create_table(
        "tasks",
        sa.Column("application", sa.String(length=255), nullable=False),
        sa.Column("task", sa.String(length=255), nullable=False),
        sa.Column("instance", sa.String(length=255), nullable=False),
        sa.Column("kind", sa.String(length=255), nullable=False),
        sa.Column("state", sa.String(length=255), nullable=False),
        sa.Column("lag", sa.BigInteger(), nullable=True),
        sa.Column("offset_sum", sa.BigInteger(), nullable=True),
        sa.Column("end_sum", sa.BigInteger(), nullable=True),
        sa.Column("moved_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("first_moved_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("checkpoint_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("paused_topic", sa.String(length=255), nullable=True),
        sa.Column("paused_partition", sa.Integer(), nullable=True),
        sa.Column("paused_offset", sa.BigInteger(), nullable=True),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("application", "task", "instance", name=op.f("pk_tasks")),
    )
    op.create_table(
        "audit",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("actor", sa.String(length=255), nullable=False),
        sa.Column("action", sa.String(length=255), nullable=False),
        sa.Column("application", sa.String(length=255), nullable=True),
        sa.Column("instance", sa.String(length=255), nullable=True),
        sa.Column("task", sa.String(length=255), nullable=True),
        sa.Column("alert_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("run_book_run_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("detail", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["alert_id"], ["alerts.id"], name=op.f("fk_audit_alert_id")),
        sa.ForeignKeyConstraint(["run_book_run_id"], ["run_book_runs.id"], name=op.f("fk_audit_run_book_run_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
    )
    with op.batch_alter_table("audit", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_audit_alert_id"), ["alert_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_audit_at"), ["at"], unique=False)
        batch_op.create_index(batch_op.f("ix_audit_run_book_run_id"), ["run_book_run_id"], unique=False)

    op.create_table(
        "run_book_steps",
        sa.Column("run_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("state", sa.String(length=255), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("detail", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run_book_runs.id"], name=op.f("fk_run_book_steps_run_id")),
        sa.PrimaryKeyConstraint("run_id", "number", name=op.f("pk_run_book_steps")),
    )


def downgrade() -> None:
    op.drop_table("run_book_steps")
    with op.batch_alter_table("audit", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_audit_run_book_run_id"))
        batch_op.drop_index(batch_op.f("ix_audit_at"))
        batch_op.drop_index(batch_op.f("ix_audit_alert_id"))

    op.drop_table("audit")
    op.drop_table("tasks")
    with op.batch_alter_table("run_book_runs", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_run_book_runs_occurrence"))
        batch_op.drop_index(batch_op.f("ix_run_book_runs_application_requested_at"))

    op.drop_table("run_book_runs")
    op.drop_table("instances")
    op.drop_table("feed_offsets")
    with op.batch_alter_table("events", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_events_kind"))

    op.drop_table("events")
    op.drop_table("checkpoints")
    with op.batch_alter_table("alerts", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_alerts_application_state"))

    op.drop_table("alerts")
