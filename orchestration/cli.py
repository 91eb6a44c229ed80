"""`penstock`: the command line. Each group of commands is a module in `orchestration/commands/`.

With the core's packages alone, those commands run that read Kafka or the project; the others say which extra they need.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Annotated

import typer

from penstock.runtime.instance import run_command
from penstock.runtime.model.errors import MissingExtraError
from penstock.runtime.model.extras import extra

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="""Stateful Kafka streams in Python: run them, watch them, repair them.

**Where to begin**

`penstock init shop` makes a project. `penstock dev` starts a Kafka and opens Dagster's UI on the applications that `streams.toml`
declares; `penstock where` shows which file that is.

**Examples**

`penstock broker start` starts a real Kafka on 127.0.0.1:9092.

`penstock broker tool kafka-topics -- --list` runs one of Kafka's own tools.

`penstock deploy flight-board` checks new code, then replaces one instance after the other.

`penstock reset flight-board --dry-run` shows what a start without state would delete.

Files are kept in `.penstock/` in the project's folder, the nearest upwards with a `streams.toml`, or in the folder that
`PENSTOCK_HOME` names.
""",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"penstock {importlib.metadata.version('penstock')}")
        raise typer.Exit()


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Options of `penstock` itself."""


_INSTANCES, _INSPECT, _REPAIR, _STATE, _MACHINE = "Instances", "Inspect", "Repair", "State", "This machine"
_COMMANDS: Sequence[tuple[str, str, Sequence[str]]] = (
    (_INSTANCES, "instances", ("start", "stop", "restart", "deploy", "scale", "drain")),
    (_INSPECT, "inspection", ("status", "tasks", "events", "describe")),
    (_INSPECT, "doctor", ("doctor",)),
    (_INSPECT, "topology", ("topology",)),
    (_INSPECT, "board", ("board",)),
    (_INSPECT, "trail", ("audit", "run_books")),
    (_REPAIR, "instances", ("pause", "resume")),
    (_STATE, "query", ("query",)),
    (_STATE, "tables", ("tables",)),
    (_STATE, "reset", ("reset",)),
    (_STATE, "backfill", ("backfill",)),
    (_STATE, "audit_state", ("audit_state",)),
    (_INSTANCES, "rehearse", ("rehearse",)),
    (_MACHINE, "init", ("init",)),
    (_MACHINE, "dev", ("dev",)),
    (_MACHINE, "where", ("where",)),
    (_MACHINE, "docs", ("docs",)),
    (_MACHINE, "acls", ("acls",)),
    (_REPAIR, "run_book", ("skip_record",)),
)
"""Panel of the help, module in `orchestration/commands/`, its functions."""
_ANYTHING = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
"""Settings of a command that parses its arguments itself."""
_RENAMED = {"skip_record": "skip"}
_GROUPS = {
    "alerts": (_REPAIR, "List, acknowledge, comment and resolve alerts."),
    "run_book": (_REPAIR, "Repairs, step by step: skip a record, resume, replay, rebuild, restart; approve one."),
    "snapshot": (_STATE, ""),
    "broker": (_MACHINE, "The embedded Kafka: start it, stop it, run Kafka's own tools on it."),
}
"""Modules whose `app` is a group of commands: panel, and help where the group has none of its own."""


def _load(module: str) -> ModuleType | MissingExtraError:
    """Import a module of commands. Return the error if it is one of the control plane's, whose packages are not installed."""
    try:
        with extra("dagster", "the control plane"):
            return importlib.import_module(f"penstock.orchestration.commands.{module}")
    except MissingExtraError as error:
        return error


def _refusal(name: str, missing: MissingExtraError) -> Callable[[], None]:
    """Return what stands for a command, or a group of them, that cannot be imported."""

    def refuse() -> None:
        typer.secho(f"penstock {name}: {missing}", fg="red", err=True)
        raise typer.Exit(1)

    refuse.__doc__ = f"Not installed: {missing}"
    return refuse


def _add(panel: str, name: str, loaded: ModuleType | MissingExtraError, function: str) -> None:
    if isinstance(loaded, MissingExtraError):
        app.command(name, rich_help_panel=panel, context_settings=_ANYTHING)(_refusal(name, loaded))
    else:
        app.command(name, rich_help_panel=panel)(getattr(loaded, function))


for panel, module, functions in _COMMANDS:
    for function in functions:
        _add(panel, _RENAMED.get(function, function.replace("_", "-")), _load(module), function)
for module, (panel, described) in _GROUPS.items():
    loaded, name = _load(module), module.replace("_", "-")
    if isinstance(loaded, MissingExtraError):
        _add(panel, name, loaded, "")
    else:
        app.add_typer(loaded.app, name=name, rich_help_panel=panel, help=described or loaded.app.info.help)


def run(context: typer.Context) -> None:
    raise typer.Exit(run_command.main(context.args))


app.command(rich_help_panel=_INSTANCES, help=run_command.SUMMARY, context_settings=_ANYTHING)(run)
