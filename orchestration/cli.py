"""`penstock`: the command line. Each group of commands is a module in `orchestration/commands/`.

With the core's packages alone, those commands run that read Kafka or the project; the others say which extra they need.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import Annotated, Any, cast

import typer
from typer.core import TyperCommand, TyperGroup

from penstock.runtime.model.errors import MissingExtraError
from penstock.runtime.model.extras import extra

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


_Add = Callable[[typer.Typer], None]
_Command = TyperCommand | TyperGroup


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


def _add(parent: typer.Typer, *, panel: str, name: str, module: str, function: str = "", described: str = "") -> None:
    """Add a command, or without `function` the module's group of commands."""
    loaded = _load(module)
    if isinstance(loaded, MissingExtraError):
        parent.command(name, rich_help_panel=panel, context_settings=_ANYTHING)(_refusal(name, loaded))
    elif function:
        parent.command(name, rich_help_panel=panel)(getattr(loaded, function))
    else:
        parent.add_typer(loaded.app, name=name, rich_help_panel=panel, help=described or loaded.app.info.help)


def _add_run(parent: typer.Typer) -> None:
    from penstock.runtime.instance import run_command

    def run(context: typer.Context) -> None:
        raise typer.Exit(run_command.main(context.args))

    parent.command("run", rich_help_panel=_INSTANCES, help=run_command.SUMMARY, context_settings=_ANYTHING)(run)


def _all() -> Iterator[tuple[str, _Add]]:
    """Yield the name of each command or group, in the order of the help, and what adds it to a program."""
    for panel, module, functions in _COMMANDS:
        for function in functions:
            name = _RENAMED.get(function, function.replace("_", "-"))
            yield name, partial(_add, panel=panel, name=name, module=module, function=function)
    for module, (panel, described) in _GROUPS.items():
        name = module.replace("_", "-")
        yield name, partial(_add, panel=panel, name=name, module=module, described=described)
    yield "run", _add_run


class _Loading(Mapping[str, _Command]):
    """Commands by name, each imported when it is asked for: all of them take a second, most of them less."""

    def __init__(self) -> None:
        self._adds: dict[str, _Add] = dict(_all())
        self._loaded: dict[str, _Command] = {}

    def __getitem__(self, name: str) -> _Command:
        if name not in self._loaded:
            program = typer.Typer(rich_markup_mode="markdown", pretty_exceptions_enable=False)
            self._adds[name](program)
            self._loaded[name] = cast(_Command, typer.main.get_group(program).commands[name])
        return self._loaded[name]

    def __contains__(self, name: object) -> bool:
        return name in self._adds

    def __iter__(self) -> Iterator[str]:
        return iter(self._adds)

    def __len__(self) -> int:
        return len(self._adds)


class _Commands(TyperGroup):
    """The program, whose commands are imported one by one."""

    def __init__(self, **given: object) -> None:
        super().__init__(**cast(dict[str, Any], {**given, "commands": None}))
        self.commands = cast(Any, _Loading())


app = typer.Typer(
    cls=_Commands,
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
