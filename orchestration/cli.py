"""`penstock`: the command line. Each group of commands is a module in `orchestration/commands/`."""

from __future__ import annotations

import typer

from orchestration.commands import alerts, broker, instances, look, run_book, snapshot, trail
from orchestration.commands.dev import dev
from orchestration.commands.query import query
from orchestration.commands.tables import tables
from orchestration.commands.topology import topology

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="""Stateful Kafka streams in Python: run them, watch them, repair them.

**Where to begin**

`make demo` runs the example application from end to end; `make dev` opens Dagster's UI on the declared applications.

**Examples**

`penstock broker start` starts a real Kafka on 127.0.0.1:9092, with nothing to install.

`penstock broker tool kafka-topics -- --list` runs one of Kafka's own tools.

What is kept goes to `.penstock/` in the project's folder, or to where the environment variable `PENSTOCK_HOME` says.
""",
)
app.add_typer(broker.app, name="broker", help="The embedded Kafka: start it, stop it, run Kafka's own tools on it.")
app.command()(dev)
for command in (
    instances.start,
    instances.stop,
    instances.restart,
    instances.scale,
    instances.drain,
    instances.pause,
    instances.resume,
    look.status,
    look.tasks,
    look.events,
    look.describe,
    query,
    topology,
    tables,
    trail.audit,
    trail.run_books,
):
    app.command()(command)
app.command("skip")(run_book.skip_record)
app.add_typer(alerts.app, name="alerts", help="What went wrong, who looks after it, what became of it.")
app.add_typer(run_book.app, name="run-book", help="Repairs, step by step: skip a record, resume, replay, rebuild, restart; approve one.")
app.add_typer(snapshot.app, name="snapshot")
