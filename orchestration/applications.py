"""What is declared to run: `streams.toml`.

    [applications.flight-board]                          # the application.id
    factory = "examples.flight_board.topology:build"     # a function without arguments that returns the Topology
    instances = ["flight-board-1"]                       # one process each; names are unique over all applications

    [applications.flight-board.config]                   # keys of StreamsConfig; quoted, since they hold dots
    "bootstrap.servers" = "127.0.0.1:9092"               # the default: the embedded broker

    [applications.flight-board.paused]                   # what follows a pause, after the alert
    run-book = "skip-record"                             # or "none", the default: somebody decides
    budget-per-hour = 5                                  # records skipped without asking; then alerts only

    [applications.flight-board.checkpoint-freshness]
    warn-seconds = 600
    error-seconds = 1200

    [applications.flight-board.tables.hourly_delay]      # tables that Spark makes of the stores
    store = "hourly-delay"

    [[notifications]]                                    # who is told of alerts (apprise URLs; ${NAME} is read from the environment)
    urls = ["slack://${SLACK_TOKEN}"]
    severity = "WARN"                                    # this one and worse; default WARN
    kinds = ["TASK_PAUSED"]                              # default: all
    applications = ["flight-board"]                      # default: all

Everything is checked when the file is read, and a mistake is reported with the file, the line, the key and what would be right. Only the
factories are not imported: that is the instance's own first step, and code that fails must not take the control plane with it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from orchestration.declarations import Table, WrongDeclarationError
from runtime.config import StreamsConfig
from runtime.errors import StreamsConfigError

__all__ = [
    "Application",
    "Applications",
    "Freshness",
    "NotificationRule",
    "PausedPolicy",
    "RunBook",
    "Severity",
    "StateTable",
    "WrongDeclarationError",
]

EMBEDDED_BROKER = "127.0.0.1:9092"
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"  # what may be a topic's name, a folder's and a partition key's at once
_FACTORY = r"[A-Za-z_][\w.]*:[A-Za-z_]\w*"


class RunBook(Enum):
    """What is done to a paused task without asking."""

    NONE = "none"
    SKIP_RECORD = "skip-record"


class Severity(Enum):
    """How bad an alert is; ordered."""

    INFO = "INFO"
    WARN = "WARN"
    ERROR = "ERROR"

    @property
    def rank(self) -> int:
        return list(Severity).index(self)


@dataclass(frozen=True, slots=True)
class PausedPolicy:
    """What follows a pause: the run-book, and how many records an hour it may skip in the whole application."""

    run_book: RunBook = RunBook.NONE
    budget_per_hour: int = 5


@dataclass(frozen=True, slots=True)
class Freshness:
    """From which age (seconds) of unsaved work a task's checkpoint is a warning, and an error."""

    warn_seconds: int = 600
    error_seconds: int = 1200


@dataclass(frozen=True, slots=True)
class StateTable:
    """A table that is made of a store: its name, the store, and settings that the maker of the table reads."""

    name: str
    store: str
    settings: Mapping[str, str | int | float | bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NotificationRule:
    """Who is told of which alerts. Empty `kinds` or `applications` means all."""

    urls: tuple[str, ...]
    severity: Severity = Severity.WARN
    kinds: frozenset[str] = frozenset()
    applications: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Application:
    """One declared application."""

    id: str
    factory: str
    instances: tuple[str, ...]
    config: Mapping[str, str | int | float | bool]
    paused: PausedPolicy = PausedPolicy()
    freshness: Freshness = Freshness()
    tables: tuple[StateTable, ...] = ()

    @property
    def bootstrap_servers(self) -> str:
        return str(self.config["bootstrap.servers"])


@dataclass(frozen=True, slots=True)
class Applications:
    """All that is declared, in the order of the file."""

    applications: tuple[Application, ...] = ()
    notifications: tuple[NotificationRule, ...] = ()
    source: Path | None = None

    @classmethod
    def read(cls, path: Path) -> Applications:
        """Raises WrongDeclarationError: no such file, not TOML, or something in it is wrong."""
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise WrongDeclarationError(
                f"{path}: cannot be read ({error.strerror}). It declares what runs; PENSTOCK_STREAMS names another file."
            ) from error
        except UnicodeDecodeError as error:
            raise WrongDeclarationError(f"{path}: not TOML: byte {error.start} is not UTF-8 ({error.reason})") from error
        return cls.parse(text, path)

    @classmethod
    def parse(cls, text: str, path: Path) -> Applications:
        """As `read`, of a text that is already there."""
        try:
            content = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise WrongDeclarationError(f"{path}: not TOML: {error}") from error
        top = Table(content, (), path, text)
        declared = tuple(_application(table) for table in top.tables("applications"))
        owners: dict[str, str] = {}
        for application in declared:
            for instance in application.instances:
                if instance in owners:
                    raise top.wrong(
                        ("applications", application.id, "instances"),
                        f"instance {instance!r} is declared twice (also by {owners[instance]!r}): names of instances are unique",
                    )
                owners[instance] = application.id
        rules = tuple(_notification(table, frozenset(a.id for a in declared)) for table in top.array("notifications"))
        top.reject_unknown()
        return cls(declared, rules, path)

    @property
    def instances(self) -> tuple[str, ...]:
        """The names of all instances, in the order of the file."""
        return tuple(instance for application in self.applications for instance in application.instances)

    def of_instance(self, instance: str) -> Application:
        """Raises WrongDeclarationError with the names that are declared."""
        for application in self.applications:
            if instance in application.instances:
                return application
        raise WrongDeclarationError(f"no instance {instance!r} is declared; declared are {_listed(self.instances)} (in {self.source})")

    def named(self, application_id: str) -> Application:
        """Raises WrongDeclarationError with the names that are declared."""
        for application in self.applications:
            if application.id == application_id:
                return application
        names = _listed([application.id for application in self.applications])
        raise WrongDeclarationError(f"no application {application_id!r} is declared; declared are {names} (in {self.source})")


def _application(table: Table) -> Application:
    application_id = table.own_name(_NAME)
    application = Application(
        id=application_id,
        factory=table.text("factory", pattern=_FACTORY, example="examples.flight_board.topology:build"),
        instances=table.texts("instances", pattern=_NAME, example=f"{application_id}-1"),
        config=_config(table, application_id),
        paused=_paused(table.table("paused")),
        freshness=_freshness(table.table("checkpoint-freshness")),
        tables=tuple(_state_table(state_table) for state_table in table.tables("tables")),
    )
    table.reject_unknown()
    return application


def _config(table: Table, application_id: str) -> Mapping[str, str | int | float | bool]:
    settings = table.table("config")
    config = {"bootstrap.servers": EMBEDDED_BROKER, **settings.scalars()}
    for key, why in (("application.id", "it is the name of the table"), ("client.id", "it is the name of the instance")):
        if key in config:
            raise settings.wrong((key,), f"cannot be set here: {why}")
    if "state.dir" in config:
        raise settings.wrong(("state.dir",), "cannot be set here: each instance has its own, under PENSTOCK_HOME")
    try:
        StreamsConfig({**config, "application.id": application_id})
    except StreamsConfigError as error:
        named = next((key for key in sorted(config, key=len, reverse=True) if key in str(error)), None)
        raise settings.wrong((named,) if named else (), str(error)) from error
    return config


def _paused(table: Table) -> PausedPolicy:
    policy = PausedPolicy(
        run_book=RunBook(table.choice("run-book", [book.value for book in RunBook], PausedPolicy().run_book.value)),
        budget_per_hour=table.whole("budget-per-hour", default=PausedPolicy().budget_per_hour, least=0),
    )
    table.reject_unknown()
    return policy


def _freshness(table: Table) -> Freshness:
    freshness = Freshness(
        warn_seconds=table.whole("warn-seconds", default=Freshness().warn_seconds, least=1),
        error_seconds=table.whole("error-seconds", default=Freshness().error_seconds, least=1),
    )
    table.reject_unknown()
    if freshness.error_seconds < freshness.warn_seconds:
        raise table.wrong(("error-seconds",), f"must be at least warn-seconds ({freshness.warn_seconds})")
    return freshness


def _state_table(table: Table) -> StateTable:
    store = table.text("store", pattern=_NAME, example="hourly-delay")
    settings = {key: value for key, value in table.scalars().items() if key != "store"}
    return StateTable(table.own_name(r"[A-Za-z_]\w*"), store, settings)


def _notification(table: Table, declared: frozenset[str]) -> NotificationRule:
    rule = NotificationRule(
        urls=table.texts("urls", pattern=r".*(://|\$\{).*", example="mailto://user:password@example.com"),
        severity=Severity(table.choice("severity", [severity.value for severity in Severity], Severity.WARN.value)),
        kinds=frozenset(table.texts("kinds", default=())),
        applications=frozenset(table.texts("applications", default=())),
    )
    table.reject_unknown()
    unknown = sorted(rule.applications - declared)
    if unknown:
        raise table.wrong(("applications",), f"no application {unknown[0]!r} is declared; declared are {_listed(sorted(declared))}")
    return rule


def _listed(names: tuple[str, ...] | list[str]) -> str:
    return ", ".join(names) or "none"
