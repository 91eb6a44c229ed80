"""The declaration of what should run: `streams.toml`.

    [applications.flight-board]                          # the application.id
    factory = "examples.flight_board.topology:build"     # a function without arguments that returns the Topology
    instances = 2                                        # their number: flight-board-1, flight-board-2; or their names, ["flight-board-1"].
                                                         # One process each; names are unique over all applications
    description = "Departures and delays"                # on its page in Dagster (Markdown); default: the factory's docstring
    owners = ["team:flights", "ann@example.com"]         # in Dagster: e-mail addresses, teams
    tags = { domain = "aviation" }                       # in Dagster
    kinds = ["kafka", "python"]                          # in Dagster; this is the default

    [applications.flight-board.config]                   # keys of StreamsConfig; quoted, since they hold dots
    "bootstrap.servers" = "127.0.0.1:9092"               # the default: the embedded broker
    "sasl.password" = "${KAFKA_PASSWORD}"                # ${NAME} is from the environment, of instances and commands alike

    [applications.flight-board.paused]                   # reaction to a pause, after the alert
    run-book = "skip-record"                             # or "none", the default: a person decides
    start = "automatic"                                  # the default; or "after-approval": it is proposed, and waits for an approval
    budget-per-hour = 5                                  # records skipped without asking; then one alert
    skip-errors = ["JSONDecodeError: .*"]                # only errors ("type: message") that one of these matches; default: all
    bad-deploy-tasks = 3                                 # this many tasks that pause on the same type of error …
    bad-deploy-seconds = 60                              # … within this time are a bad deploy: one alert, nothing is skipped

    [applications.flight-board.global-recovery]          # reaction to a recovery of a global table, after the alert
    run-book = "restore-global-topic"                    # where its topic lost records; or "none", the default
    start = "after-approval"                             # the default; or "automatic"
    error-attempts = 3                                   # from this recovery in a row on, the alert is an error

    [applications.flight-board.checkpoint-freshness]
    warn-seconds = 600                                   # age of work that is in no checkpoint
    error-seconds = 1200
    warn-records = 1000000                               # restore debt; 0, the default: no limit
    error-records = 5000000

    [applications.flight-board.health]                   # limits of the other checks; 0: no limit
    lag-warn-records = 0                                 # of the whole application
    lag-error-records = 0
    lag-grows-minutes = 15                               # a lag that has grown for this long is a warning
    dead-letters-per-hour = 10
    offset-expiry-percent = 50                           # of the broker's offsets.retention.minutes

    [applications.flight-board.snapshots]                # copies of all state, as of a commit (docs/snapshots.md)
    every-minutes = 0                                    # 0, the default: on request only
    keep = 3                                             # complete ones that stay with the instances
    export = "s3://bucket/penstock"                      # where each is copied to; default: nowhere; ${NAME} is from the environment
    export-keep = 3                                      # complete ones that stay there

    [[tables]]                                           # tables that Spark builds from stores: see `state_tables`
    application = "flight-board"
    store = "hourly-delay"

    [spark]                                              # where Spark runs (`spark_settings`); default: this machine
    master = "spark://host:7077"

    [[notifications]]                                    # recipients of alerts (apprise URLs; ${NAME} is read from the environment)
    urls = ["slack://${SLACK_TOKEN}"]
    severity = "WARN"                                    # this one and worse; default WARN
    kinds = ["TASK_PAUSED"]                              # default: all
    applications = ["flight-board"]                      # default: all
    include-record = false                               # true: messages carry the bad record, too

Everything is checked when the file is read, and a mistake is reported with file, line, key and the expected value. Only the factories are
not imported: each instance imports its own. Dagster's code location imports them to show topics and docstrings, and loads without those
of a factory that fails.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from penstock.orchestration.declarations.backfills import BackfillPolicy
from penstock.orchestration.declarations.policies import (
    DeployPolicy,
    Freshness,
    GlobalRecoveryPolicy,
    HealthLimits,
    NotificationRule,
    PausedPolicy,
    RunBook,
    Severity,
    SnapshotPolicy,
)
from penstock.orchestration.declarations.project_paths import PYPROJECT, ProjectPaths
from penstock.orchestration.declarations.spark_settings import SparkSettings
from penstock.orchestration.declarations.state_tables import StateTable, read_tables, reject_old_form
from penstock.orchestration.declarations.toml_table import Table, WrongDeclarationError
from penstock.orchestration.declarations.unknown_names import unknown
from penstock.orchestration.embedded.ports import KAFKA_PORT, LOOPBACK
from penstock.runtime.config.environment import Value, client_config, resolved
from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.kafka.connection import Connection
from penstock.runtime.model.errors import StreamsConfigError
from penstock.runtime.model.ids import HostInfo

__all__ = [
    "Application",
    "Applications",
    "Freshness",
    "HealthLimits",
    "NotificationRule",
    "PausedPolicy",
    "RunBook",
    "Severity",
    "SnapshotPolicy",
    "StateTable",
    "WrongDeclarationError",
]

EMBEDDED_BROKER = f"{LOOPBACK}:{KAFKA_PORT}"
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"  # valid as the name of a topic, of a folder and of a partition key
_PORTS = ("metrics.port", "http.port")
_MOST_INSTANCES = 1_000
_NUMBER = re.compile("[1-9][0-9]{0,8}")
"""Number of an instance in its name."""
_OWNER = r"team:.*\S.*|[A-Za-z0-9_][A-Za-z0-9._%+-]*@[A-Za-z0-9.-]+\.[A-Za-z]{2,7}"  # as Dagster accepts them
_TAG, _TAG_VALUE = r"([A-Za-z0-9_.-]{1,63}/)?[A-Za-z0-9_.-]{1,63}", r"[A-Za-z0-9_.-]{0,63}"  # of Dagster
_KIND, _KINDS = r"[A-Za-z0-9_.-]{1,50}", ("kafka", "python")
_FACTORY = r"[A-Za-z_][\w.]*:[A-Za-z_]\w*"


@dataclass(frozen=True, slots=True)
class Application:
    """One declared application."""

    id: str
    factory: str
    instances: tuple[str, ...]
    config: Mapping[str, Value] = field(repr=False)
    paused: PausedPolicy = field(default_factory=PausedPolicy)
    global_recovery: GlobalRecoveryPolicy = field(default_factory=GlobalRecoveryPolicy)
    freshness: Freshness = field(default_factory=Freshness)
    health: HealthLimits = field(default_factory=HealthLimits)
    snapshots: SnapshotPolicy = field(default_factory=SnapshotPolicy)
    deploy: DeployPolicy = field(default_factory=DeployPolicy)
    backfill: BackfillPolicy = field(default_factory=BackfillPolicy)
    description: str | None = None
    owners: tuple[str, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    kinds: tuple[str, ...] = _KINDS
    counted: bool = False
    """True if a number of instances is declared, False if their names are."""

    @property
    def bootstrap_servers(self) -> str:
        """The brokers' addresses. Raises StreamsConfigError if a variable in them is not set."""
        return str(self.value("bootstrap.servers"))

    @property
    def connection(self) -> Connection:
        """How clients of commands, checks and jobs reach the brokers: the settings of the application's admin clients. Raises
        StreamsConfigError if a variable in them is not set; other settings are not looked at."""
        admin = {key.removeprefix("admin."): value for key, value in self.config.items() if key.startswith("admin.")}
        written = Connection.of({**self.config, **admin})
        return Connection.of(resolved({"bootstrap.servers": written.servers, **written.settings}, self.id))

    def value(self, key: str) -> Value | None:
        """Return a value of the configuration, with its variables replaced; None if the key is not set. Raises StreamsConfigError."""
        return resolved({key: self.config[key]}, self.id)[key] if key in self.config else None

    def client_config(self) -> dict[str, Value]:
        """Return the configuration with variables replaced, for commands, checks and jobs. Raises StreamsConfigError."""
        return client_config(self.config, self.id)

    def streams_config(self) -> StreamsConfig:
        """Return `client_config()` as the checked configuration of the application. Raises StreamsConfigError."""
        return StreamsConfig({**self.client_config(), "application.id": self.id})

    def number(self, instance: str) -> int | None:
        """Return the number in an instance's name, from 1, for declared instances and those that `scale` added; None for others."""
        if instance in self.instances:
            return self.instances.index(instance) + 1
        digits = instance.removeprefix(f"{self.id}-")
        return int(digits) if self.counted and digits != instance and _NUMBER.fullmatch(digits) else None

    def config_of(self, instance: str) -> Mapping[str, Value]:
        """Return the configuration of one instance. All instances of a machine share it, so each listens on the port after the previous
        one's. Variables are left for the instance to replace, except in ports and addresses."""
        behind = (self.number(instance) or 1) - 1
        ports = {key: int(port) + behind for key in _PORTS if int(port := self.value(key) or 0)}
        config = {**self.config, **ports}
        server = self.value("application.server")
        if server is not None:
            first = HostInfo.build_from_endpoint(str(server))
            config["application.server"] = str(HostInfo(first.host, first.port + behind))
        return config


@dataclass(frozen=True, slots=True)
class Applications:
    """All declared applications and tables, in the order of the file."""

    applications: tuple[Application, ...] = ()
    notifications: tuple[NotificationRule, ...] = ()
    tables: tuple[StateTable, ...] = ()
    spark: SparkSettings = field(default_factory=SparkSettings, repr=False)
    source: Path | None = None

    @classmethod
    def of(cls, paths: ProjectPaths) -> Applications:
        """Read a project's declaration. Applications that name no broker use the project's embedded one. Raises WrongDeclarationError."""
        if not paths.declared:
            raise WrongDeclarationError(
                f"There is no project here: neither a streams.toml nor a pyproject.toml with [tool.penstock] in {paths.root} or a folder "
                "above it. To make one: penstock init NAME. PENSTOCK_STREAMS names a file elsewhere; penstock where shows what holds here."
            )
        return cls.read(paths.streams_toml, paths.embedded_broker)

    @classmethod
    def read(cls, path: Path, broker: str = EMBEDDED_BROKER) -> Applications:
        """Read the file: a `streams.toml`, or a `pyproject.toml` with the same below `[tool.penstock]`. `broker`: of applications that name
        none. Raises WrongDeclarationError: there is no such file, it is not TOML, or its content is wrong."""
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise WrongDeclarationError(
                f"{path}: cannot be read ({error.strerror}). It declares what runs; PENSTOCK_STREAMS names another file."
            ) from error
        except UnicodeDecodeError as error:
            raise WrongDeclarationError(f"{path}: not TOML: byte {error.start} is not UTF-8 ({error.reason})") from error
        return cls.parse(text, path, broker)

    @classmethod
    def parse(cls, text: str, path: Path, broker: str = EMBEDDED_BROKER) -> Applications:
        """Read the declaration from a string, like `read`."""
        try:
            content = tomllib.loads(text)
        except (ValueError, RecursionError) as error:  # a number with too many digits, tables nested too deeply
            raise WrongDeclarationError(f"{path}: not TOML: {error}") from error
        top = Table(content, (), path, text)
        if path.name == PYPROJECT:
            top = top.table("tool").table("penstock")
        declared = tuple(_application(table, broker) for table in top.tables("applications"))
        owners: dict[str, str] = {}
        for application in declared:
            for instance in application.instances:
                if instance in owners:
                    raise top.wrong(
                        ("applications", application.id, "instances"),
                        f"instance {instance!r} is declared twice (also by {owners[instance]!r}): names of instances are unique",
                    )
                owners[instance] = application.id
        for instance, owner in owners.items():
            scaled = next((each for each in declared if each.id != owner and each.number(instance) is not None), None)
            if scaled is not None:
                raise top.wrong(
                    ("applications", owner, "instances"),
                    f"instance {instance!r} is the name that the command penstock scale {scaled.id} {scaled.number(instance)} gives to an "
                    f"instance of {scaled.id!r}: choose another name",
                )
        names = [application.id for application in declared]
        rules = tuple(NotificationRule.read(table, names) for table in top.array("notifications"))
        tables = read_tables(top.array("tables"), names)
        spark = SparkSettings.read(top.table("spark"), [application.factory for application in declared])
        top.reject_unknown()
        return cls(declared, rules, tables, spark, path)

    @property
    def instances(self) -> tuple[str, ...]:
        """Names of all instances, in the order of the file."""
        return tuple(instance for application in self.applications for instance in application.instances)

    def of_instance(self, instance: str) -> Application:
        """Return the application of an instance that is declared, or that `scale` may add. Raises WrongDeclarationError with the declared
        names."""
        owner = self._owner(instance)
        if owner is not None:
            return owner
        raise self.unknown_instance(instance)

    def unknown_instance(self, instance: str, more: Sequence[str] = ()) -> WrongDeclarationError:
        """Return the error on an instance that is neither declared nor one of `more`, with the known names, and the nearest of them."""
        text = unknown("instance", instance, [*self.instances, *more], source=self.source)
        counted = next((each for each in self.applications if each.number(instance) is not None), None)
        if counted is not None:
            text += f"{'' if text.endswith('?') else '.'} To run more: penstock scale {counted.id} {counted.number(instance)}"
        return WrongDeclarationError(text)

    def expanded(self, names: Iterable[str], known: Iterable[str] = ()) -> tuple[str, ...]:
        """Expand the names on a command line to instances. An application's name, unless an instance has it too, means all its instances,
        including those of `known`; any other name is kept."""
        everyone = [*self.instances, *known]
        found: list[str] = []
        for name in names:
            application = None if self.knows(name) else next((each for each in self.applications if each.id == name), None)
            found += [name] if application is None else [each for each in everyone if self._owner(each) is application]
        return tuple(dict.fromkeys(found))

    def knows(self, instance: str) -> bool:
        """Return True if `of_instance` finds an application."""
        return self._owner(instance) is not None

    def _owner(self, instance: str) -> Application | None:
        declared = (application for application in self.applications if instance in application.instances)
        # More instances than are declared, because `scale` added them.
        beyond = (application for application in self.applications if application.number(instance) is not None)
        return next(declared, None) or next(beyond, None)

    def named(self, application_id: str) -> Application:
        """Return an application by its id. Raises WrongDeclarationError with the declared names."""
        for application in self.applications:
            if application.id == application_id:
                return application
        names = [application.id for application in self.applications]
        raise WrongDeclarationError(unknown("application", application_id, names, source=self.source))

    def table(self, name: str) -> StateTable:
        """Return a table by its name. Raises WrongDeclarationError with the declared names."""
        for table in self.tables:
            if table.name == name:
                return table
        raise WrongDeclarationError(unknown("table", name, [table.name for table in self.tables], source=self.source))


def numbered(application_id: str, count: int) -> tuple[str, ...]:
    """Return the names of `count` instances, where a number is declared."""
    return tuple(f"{application_id}-{number}" for number in range(1, count + 1))


def _application(table: Table, broker: str) -> Application:
    application_id = table.own_name(_NAME)
    application = Application(
        id=application_id,
        factory=table.text("factory", pattern=_FACTORY, example="examples.flight_board.topology:build"),
        instances=_instances(table, application_id),
        counted=table.is_whole("instances"),
        description=table.optional_text("description", pattern=r"(?s).*\S.*", example="Departures and delays"),
        owners=table.texts("owners", pattern=_OWNER, example="team:flights", default=()),
        tags=_tags(table.table("tags")),
        kinds=table.texts("kinds", pattern=_KIND, example="kafka", default=_KINDS),
        config=_config(table, application_id, broker),
        paused=PausedPolicy.read(table.table("paused")),
        global_recovery=GlobalRecoveryPolicy.read(table.table("global-recovery")),
        freshness=Freshness.read(table.table("checkpoint-freshness")),
        health=HealthLimits.read(table.table("health")),
        snapshots=SnapshotPolicy.read(table.table("snapshots")),
        deploy=DeployPolicy.read(table.table("deploy")),
        backfill=BackfillPolicy.read(table.table("backfill")),
    )
    reject_old_form(table, application_id)
    table.reject_unknown()
    return application


def _instances(table: Table, application_id: str) -> tuple[str, ...]:
    if table.is_whole("instances"):
        count = table.whole("instances", default=1, least=1, most=_MOST_INSTANCES)
        return numbered(application_id, count)
    return table.texts("instances", pattern=_NAME, example=f"{application_id}-1")


def _tags(table: Table) -> Mapping[str, str]:
    found = table.scalars()
    for name, value in found.items():
        if not isinstance(value, str) or not re.fullmatch(_TAG, name) or not re.fullmatch(_TAG_VALUE, value):
            raise table.wrong((name,), 'expected letters, digits, _ . - in name and text, at most 63 each, for example domain = "aviation"')
        if name.startswith("dagster/"):
            raise table.wrong((name,), "tags that begin with dagster/ are Dagster's own")
    return {name: str(value) for name, value in found.items()}


def _config(table: Table, application_id: str, broker: str) -> Mapping[str, Value]:
    settings = table.table("config")
    config = {"bootstrap.servers": broker, **settings.scalars()}
    for key, why in (("application.id", "it is the name of the table"), ("client.id", "it is the name of the instance")):
        if key in config:
            raise settings.wrong((key,), f"cannot be set here: {why}")
    if "state.dir" in config:
        raise settings.wrong(("state.dir",), "cannot be set here: each instance has its own, under PENSTOCK_HOME")
    try:  # a value whose variable is not set here is checked where it is
        known = resolved(config, optional=config)
        StreamsConfig({"bootstrap.servers": config["bootstrap.servers"], **known, "application.id": application_id})
    except StreamsConfigError as error:
        named = next((key for key in sorted(config, key=len, reverse=True) if key in str(error)), None)
        raise settings.wrong((named,) if named else (), str(error)) from error
    return config
