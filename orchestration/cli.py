"""`penstock`: the command line. Each group of commands is a module in `orchestration/commands/`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import typer

from penstock.orchestration.commands import alerts, broker, inspection, instances, run_book, snapshot, trail
from penstock.orchestration.commands.dev import dev
from penstock.orchestration.commands.query import query
from penstock.orchestration.commands.reset import reset
from penstock.orchestration.commands.tables import tables
from penstock.orchestration.commands.topology import topology

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

`penstock deploy flight-board` checks new code, then replaces one instance after the other.

`penstock reset flight-board --dry-run` shows what a start without state would delete.

Files are kept in `.penstock/` in the project's folder, or in the folder that the environment variable `PENSTOCK_HOME` names.
""",
)
_INSTANCES, _INSPECT, _REPAIR, _STATE, _MACHINE = "Instances", "Inspect", "Repair", "State", "This machine"
_PANELS: Mapping[str, Sequence[Callable[..., None]]] = {
    _INSTANCES: (instances.start, instances.stop, instances.restart, instances.deploy, instances.scale, instances.drain),
    _INSPECT: (inspection.status, inspection.tasks, inspection.events, inspection.describe, topology, trail.audit, trail.run_books),
    _REPAIR: (instances.pause, instances.resume),
    _STATE: (query, tables, reset),
    _MACHINE: (dev,),
}
for panel, commands in _PANELS.items():
    for command in commands:
        app.command(rich_help_panel=panel)(command)
app.command("skip", rich_help_panel=_REPAIR)(run_book.skip_record)
app.add_typer(alerts.app, name="alerts", rich_help_panel=_REPAIR, help="List, acknowledge, comment and resolve alerts.")
app.add_typer(
    run_book.app,
    name="run-book",
    rich_help_panel=_REPAIR,
    help="Repairs, step by step: skip a record, resume, replay, rebuild, restart; approve one.",
)
app.add_typer(snapshot.app, name="snapshot", rich_help_panel=_STATE)
app.add_typer(
    broker.app, name="broker", rich_help_panel=_MACHINE, help="The embedded Kafka: start it, stop it, run Kafka's own tools on it."
)
