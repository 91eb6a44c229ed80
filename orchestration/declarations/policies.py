"""Policies in `streams.toml`: the reaction to a pause and to a global recovery, the limits of the checks, notifications."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum

from penstock.orchestration.declarations.rehearsal_limits import AUTO, ENGINES, allowances, span_ms
from penstock.orchestration.declarations.toml_table import Table
from penstock.orchestration.declarations.unknown_names import unknown

EXPORT = r"(\$\{|/|[A-Za-z][A-Za-z0-9+.-]*://).+"
"""Pattern of an export's target: a URI, an absolute path, or a variable of the environment."""


class RunBook(Enum):
    """Run-book that a policy starts: for a paused task, or for a global table whose topic has lost records."""

    NONE = "none"
    SKIP_RECORD = "skip-record"
    RESTORE_GLOBAL_TOPIC = "restore-global-topic"


class Start(Enum):
    """Start of the policy's run-book: automatic, or after an approval."""

    AUTOMATIC = "automatic"
    AFTER_APPROVAL = "after-approval"


class Severity(Enum):
    """Severity of an alert; ordered."""

    INFO = "INFO"
    WARN = "WARN"
    ERROR = "ERROR"

    @property
    def rank(self) -> int:
        return list(Severity).index(self)


@dataclass(frozen=True, slots=True)
class PausedPolicy:
    """Policy for paused tasks: the run-book, how it starts, how many of the application's records it may skip per hour, for which errors.

    If `bad_deploy_tasks` tasks pause on the same type of error within `bad_deploy_seconds`, it is a bad deploy, not bad records.
    """

    run_book: RunBook = RunBook.NONE
    start: Start = Start.AUTOMATIC
    budget_per_hour: int = 5
    skip_errors: tuple[str, ...] = ()
    bad_deploy_tasks: int = 3
    bad_deploy_seconds: int = 60

    @classmethod
    def read(cls, table: Table) -> PausedPolicy:
        default = cls()
        policy = cls(
            run_book=_run_book(table, RunBook.SKIP_RECORD),
            start=Start(table.choice("start", [start.value for start in Start], default.start.value)),
            budget_per_hour=table.whole("budget-per-hour", default=default.budget_per_hour, least=0),
            skip_errors=table.texts("skip-errors", default=()),
            bad_deploy_tasks=table.whole("bad-deploy-tasks", default=default.bad_deploy_tasks, least=2),
            bad_deploy_seconds=table.whole("bad-deploy-seconds", default=default.bad_deploy_seconds, least=1),
        )
        table.reject_unknown()
        for pattern in policy.skip_errors:
            try:
                re.compile(pattern)
            except re.error as error:
                raise table.wrong(("skip-errors",), f"{pattern!r} is not a regular expression: {error}") from error
        _require_run_book(table, RunBook.SKIP_RECORD)
        return policy

    def may_skip(self, error_type: str, error: str) -> bool:
        """Return True if records with an error may be skipped: there is no pattern, or one matches the whole `type: message`."""
        return not self.skip_errors or any(re.fullmatch(pattern, f"{error_type}: {error}", re.DOTALL) for pattern in self.skip_errors)


def _require_order(table: Table, warn_key: str, warn: int, error_key: str, error: int) -> None:
    """Raise unless the limit for an error is at least that for a warning. 0 is no limit for an error."""
    if 0 < error < warn:
        raise table.wrong((error_key,), f"must be at least {warn_key} ({warn})")


def _numbers(table: Table, default: object, **least: int) -> dict[str, int]:
    """Read whole numbers by field, given the smallest allowed value of each. Their keys are the fields' names with hyphens."""
    return {name: table.whole(name.replace("_", "-"), default=getattr(default, name), least=at) for name, at in least.items()}


def _require_run_book(table: Table, possible: RunBook) -> None:
    """Raise for keys that have no effect, since no run-book is named."""
    for key in ("start", "budget-per-hour", "skip-errors"):
        if table.has(key) and not table.has("run-book"):
            raise table.wrong((key,), f'says how a run-book starts, and none is named: add run-book = "{possible.value}" (or "none")')


def _run_book(table: Table, possible: RunBook) -> RunBook:
    return RunBook(table.choice("run-book", [RunBook.NONE.value, possible.value], RunBook.NONE.value))


@dataclass(frozen=True, slots=True)
class GlobalRecoveryPolicy:
    """Policy for recoveries of global stores: the run-book for a topic that has lost records unread, how it starts, and from which recovery
    in a row (within ten minutes of each other) the alert is an error."""

    run_book: RunBook = RunBook.NONE
    start: Start = Start.AFTER_APPROVAL
    error_attempts: int = 3

    @classmethod
    def read(cls, table: Table) -> GlobalRecoveryPolicy:
        default = cls()
        policy = cls(
            run_book=_run_book(table, RunBook.RESTORE_GLOBAL_TOPIC),
            start=Start(table.choice("start", [start.value for start in Start], default.start.value)),
            error_attempts=table.whole("error-attempts", default=default.error_attempts, least=1),
        )
        table.reject_unknown()
        _require_run_book(table, RunBook.RESTORE_GLOBAL_TOPIC)
        return policy

    def severity(self, attempt: int) -> Severity:
        """Return the severity of a recovery, by its number in a row from 1."""
        return Severity.ERROR if attempt >= self.error_attempts else Severity.WARN


@dataclass(frozen=True, slots=True)
class Freshness:
    """Limits of the age (seconds) of unsaved work, and of the records of restore debt (0: no limit), for a warning and for an error."""

    warn_seconds: int = 600
    error_seconds: int = 1200
    warn_records: int = 0
    error_records: int = 0

    @classmethod
    def read(cls, table: Table) -> Freshness:
        freshness = cls(**_numbers(table, cls(), warn_seconds=1, error_seconds=1, warn_records=0, error_records=0))
        table.reject_unknown()
        _require_order(table, "warn-seconds", freshness.warn_seconds, "error-seconds", freshness.error_seconds)
        _require_order(table, "warn-records", freshness.warn_records, "error-records", freshness.error_records)
        return freshness


@dataclass(frozen=True, slots=True)
class HealthLimits:
    """Limits from which a check warns or fails; 0 means no limit. Lags are in records, of the whole application."""

    lag_warn_records: int = 0
    lag_error_records: int = 0
    lag_grows_minutes: int = 15
    dead_letters_per_hour: int = 10
    offset_expiry_percent: int = 50

    @classmethod
    def read(cls, table: Table) -> HealthLimits:
        limits = cls(**_numbers(table, cls(), **dict.fromkeys((each.name for each in fields(cls)), 0)))
        table.reject_unknown()
        _require_order(table, "lag-warn-records", limits.lag_warn_records, "lag-error-records", limits.lag_error_records)
        return limits


_MINUTES = (0, 1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30, 60, 120, 180, 240, 360, 480, 720, 1440)
"""Intervals in minutes that divide an hour or a day, so that a schedule runs at the same minutes each day."""


@dataclass(frozen=True, slots=True)
class SnapshotPolicy:
    """Snapshots: the interval (0: on request only), how many are kept on the instances, the place of exports (a URI or an absolute path;
    `${NAME}` is read from the environment; None: no exports), and how many are kept there. `audit`: the state of each is computed again
    from the one before it; `audit_engine`: where."""

    every_minutes: int = 0
    keep: int = 3
    export: str | None = None
    export_keep: int = 3
    audit: bool = False
    audit_engine: str = AUTO

    @classmethod
    def read(cls, table: Table) -> SnapshotPolicy:
        default = cls()
        policy = cls(
            every_minutes=table.whole("every-minutes", default=default.every_minutes, least=0),
            keep=table.whole("keep", default=default.keep, least=1),
            export=table.optional_text("export", pattern=EXPORT, example="s3://bucket/folder"),
            export_keep=table.whole("export-keep", default=default.export_keep, least=1),
            audit=table.truth("audit", default=default.audit),
            audit_engine=table.choice("audit-engine", ENGINES, default.audit_engine),
        )
        table.reject_unknown()
        if policy.every_minutes not in _MINUTES:
            listed = ", ".join(str(minutes) for minutes in _MINUTES[1:])
            reason = f"{policy.every_minutes} does not divide an hour or a day: possible are {listed}; 0: never"
            raise table.wrong(("every-minutes",), reason)
        return policy

    @property
    def cron(self) -> str | None:
        """Cron schedule of snapshots; None if there is none."""
        minutes = self.every_minutes
        if minutes == 0:
            return None
        if minutes < 60:
            return f"*/{minutes} * * * *"
        return f"0 */{minutes // 60} * * *" if minutes < 1440 else "0 0 * * *"


@dataclass(frozen=True, slots=True)
class DeployPolicy:
    """What a deploy demands. `rehearse`: a rehearsal that begins with the newest snapshot of at least this age (`6h`); None: no rehearsal.
    `records`: at most so many records of each input partition; 0: all. `allow`: keys that may differ, by the name of a store or topic
    (`rehearsal_limits.allowances`). `rehearse_engine`: where rehearsals run."""

    rehearse: str | None = None
    records: int = 0
    allow: Mapping[str, str] = field(default_factory=dict)
    rehearse_engine: str = AUTO

    @classmethod
    def read(cls, table: Table) -> DeployPolicy:
        span, given = table.optional_text("rehearse", pattern=".+", example="6h"), table.texts("allow", example="counts=10", default=())
        records = table.whole("records", default=0, least=0)
        engine = table.choice("rehearse-engine", ENGINES, AUTO)
        table.reject_unknown()
        try:
            span_ms(span or "1s")
        except ValueError as error:
            raise table.wrong(("rehearse",), str(error)) from error
        try:
            return cls(span, records, allowances(given), engine)
        except ValueError as error:
            raise table.wrong(("allow",), str(error)) from error


@dataclass(frozen=True, slots=True)
class NotificationRule:
    """Addresses, and the alerts to send to them. Empty `kinds` or `applications` means all. Messages contain content of records only with
    `include_record`."""

    urls: tuple[str, ...] = field(repr=False)
    severity: Severity = Severity.WARN
    kinds: frozenset[str] = frozenset()
    applications: frozenset[str] = frozenset()
    include_record: bool = False

    @classmethod
    def read(cls, table: Table, declared: Sequence[str]) -> NotificationRule:
        rule = cls(
            urls=table.texts("urls", pattern=r".*(://|\$\{).*", example="mailto://user:password@example.com"),
            severity=Severity(table.choice("severity", [severity.value for severity in Severity], Severity.WARN.value)),
            kinds=frozenset(table.texts("kinds", default=())),
            applications=frozenset(table.texts("applications", default=())),
            include_record=table.truth("include-record", default=False),
        )
        table.reject_unknown()
        strangers = sorted(rule.applications - set(declared))
        if strangers:
            raise table.wrong(("applications",), unknown("application", strangers[0], sorted(declared)))
        return rule
