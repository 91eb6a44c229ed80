"""The checks: one function each, from the facts about an application to a row for each checked object.

A checkpoint's age alone says little: a task without work since its last checkpoint has nothing to lose. The checks use the age of *unsaved
work*: the time since the last checkpoint, if the task's offsets moved after it; without a checkpoint, the time since the offsets first
moved. The *restore debt* is the number of records that a task would read if its machine were lost now: from the offsets of its last
checkpoint to the end of its changelogs (transaction markers count as records).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import pairwise

from penstock.orchestration.database.models import Checkpoint, Instance, Task, is_global
from penstock.orchestration.declarations.applications import Application
from penstock.orchestration.declarations.policies import Severity
from penstock.orchestration.health.broker_facts import BrokerFacts
from penstock.runtime.kafka.offsets_topic import OFFSETS_TOPIC
from penstock.runtime.kafka.throttling import quotas_shown, throttled
from penstock.runtime.model.ids import TopicPartition
from penstock.runtime.model.states import TaskKind, TaskState

Cell = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Row:
    """Result for one checked object. `problem` is empty if there is none. `commands`: the next ones, if the kind of the alert does not
    determine them; a line that begins with # says when to use the following ones."""

    cells: Mapping[str, Cell]
    severity: Severity = Severity.INFO
    problem: str = ""
    commands: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of one check of one application. `alert`: the kind of alert to open for a problem; None if another alert covers it.
    `unknown`: why it is from the last known state only, whose problems may be over and which may hide others; empty if it is current.
    `idle`: that nothing runs, if so. `at`: as of when it is."""

    name: str
    application: str
    rows: tuple[Row, ...]
    numbers: Mapping[str, int | float] = field(default_factory=dict)
    problems: tuple[tuple[Severity, str], ...] = ()
    alert: str | None = None
    unknown: str = ""
    idle: str = ""
    at: datetime | None = None

    @property
    def severity(self) -> Severity:
        """The worst severity of the rows and of the application as a whole."""
        return worst([*(row.severity for row in self.rows), *(severity for severity, _ in self.problems)])

    @property
    def texts(self) -> list[str]:
        """Sentences about the problems."""
        own = [text for _, text in self.problems]
        return [*own, *(row.problem for row in self.rows if row.problem)]

    @property
    def passed(self) -> bool:
        """True if the check has found no problem, and its result is current."""
        return self.severity is Severity.INFO and not self.unknown

    @property
    def summary(self) -> str:
        """The result in one line."""
        texts = self.texts
        found = "; ".join(texts[:5]) + (f"; and {len(texts) - 5} more" if len(texts) > 5 else "")
        if self.unknown:
            return f"cannot be known: {self.unknown}" + (f"; as last known: {found}" if found else "")
        return found or self.idle or f"{len(self.rows)} looked at, all well"


def worst(severities: Iterable[Severity]) -> Severity:
    return max(severities, key=lambda severity: severity.rank, default=Severity.INFO)


def beyond(value: float, warn: float, error: float) -> Severity:
    """Return the severity of a number; a limit of 0 means no limit."""
    if error and value >= error:
        return Severity.ERROR
    return Severity.WARN if warn and value >= warn else Severity.INFO


def by_name(results: Sequence[CheckResult]) -> dict[str, list[CheckResult]]:
    """Return the results grouped by check, over all applications."""
    found: dict[str, list[CheckResult]] = {}
    for result in results:
        found.setdefault(result.name, []).append(result)
    return found


FRESHNESS, LIVENESS, LAG = "checkpoint_freshness", "instances_alive", "consumer_lag"
STANDBYS, DEAD_LETTERS, EXPIRY, COMPACTION = "standby_replicas", "dead_letter_growth", "offset_expiry", "global_topics_compacted"
PARTITIONS, TRANSACTIONS = "input_partitions", "hanging_transactions"
DESCRIPTIONS: Mapping[str, str] = {
    FRESHNESS: "The oldest work that is in no checkpoint, and what would have to be restored, are below the limits in `streams.toml`.",
    LIVENESS: "Every instance that should run has reported in the last 30 seconds, and no reset is unfinished, which would keep it out.",
    LAG: "Records that wait to be processed are below the limits in `streams.toml` and do not grow all the time.",
    STANDBYS: "Every task with state has `num.standby.replicas` standbys on living instances.",
    DEAD_LETTERS: "Fewer records were skipped in the last hour than the limit in `streams.toml`.",
    EXPIRY: "Committed offsets are far from the broker's `offsets.retention.minutes`.",
    COMPACTION: "Every global topic is compacted.",
    PARTITIONS: "Every partition of the input topics has a task that reads it.",
    TRANSACTIONS: "Transactions in the topics of the application end in time.",
}
HEARTBEAT_SECONDS = 30.0
"""Silence after which a wanted instance is stale."""
SILENT_ALERT_SECONDS = 120.0
"""Silence after which an alert is opened; until then its supervisor may have restarted it."""
REPORTED_LATE = timedelta(seconds=10)
"""Tolerance for late reports: offsets are reported every few seconds, so a checkpoint may contain work that is reported only after it."""
UNANSWERED = "unanswered"
"""Kind of the sample of the last look at which no broker answered. Its value: the last report of any instance, in seconds."""
OPEN = "open"
"""Kind of the samples of open transactions, by partition and first offset. Their value: when each was first seen, in seconds."""
_END_SECONDS = 60
"""Time beyond `transaction.timeout.ms` after which a transaction hangs: brokers look every 10 s for those that are over."""
TOTAL = "*"
"""Subject of the samples of an application's total lag."""


@dataclass(frozen=True, slots=True)
class Known:
    """Facts about one application at a moment. `lags`: samples by task (`TOTAL`: all), oldest first, without the current one. `counters`:
    time and value of the previous sample of each counter, by kind and subject."""

    application: Application
    at: datetime
    instances: Mapping[str, Instance]
    tasks: Sequence[Task]
    checkpoints: Mapping[tuple[str, str], Checkpoint]
    global_topics: frozenset[str] = frozenset()
    skipped_hour: int = 0
    skipped_day: int = 0
    lags: Mapping[str, Sequence[tuple[datetime, int]]] = field(default_factory=dict)
    broker: BrokerFacts | None = None
    counters: Mapping[tuple[str, str], tuple[datetime, int]] = field(default_factory=dict)
    partitions_added: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """Payloads of the last INPUT_PARTITIONS_ADDED whose alert is not resolved, by topic."""

    def open_tasks(self) -> Iterator[Task]:
        """Return the tasks that a wanted instance runs."""
        for task in self.tasks:
            instance = self.instances.get(task.instance)
            if instance is not None and instance.wanted and task.state != TaskState.CLOSED.value:
                yield task

    def active(self) -> Iterator[Task]:
        return (task for task in self.open_tasks() if task.kind == TaskKind.ACTIVE.value)

    def lives(self, instance: str) -> bool:
        row = self.instances.get(instance)
        silent = None if row is None else self.silent_seconds(row)
        return silent is not None and silent <= HEARTBEAT_SECONDS

    def silent_seconds(self, row: Instance) -> float | None:
        """Return the seconds since the last report of an instance; None if there was none. For one that ran when the brokers went away, the
        time until they are back does not count: its reports could not arrive."""
        since = row.heartbeat_at
        if since is None:
            return None
        outage = self.counters.get((UNANSWERED, TOTAL))
        if outage is not None and since.timestamp() >= outage[1] - HEARTBEAT_SECONDS:
            since = max(since, outage[0])
        return max(0.0, (self.at - since).total_seconds())

    def as_last_heard(self) -> Known:
        """Return the facts as of the last report of any instance: while no broker answers, time says nothing about them."""
        return replace(self, at=max((row.heartbeat_at for row in self.instances.values() if row.heartbeat_at), default=self.at))

    def idle(self) -> str:
        """Return that no instance is wanted and none runs; empty otherwise."""
        if any(row.wanted or self.lives(row.name) for row in self.instances.values()):
            return ""
        started = any(row.started_at is not None or row.heartbeat_at is not None for row in self.instances.values())
        return "nothing runs: every instance is stopped" if started else "nothing runs yet"

    @property
    def unfinished_reset(self) -> str:
        """Sentence on a reset that has begun and not ended: until then, no instance starts. Empty if there is none."""
        return "" if self.broker is None else self.broker.unfinished_reset

    def changelogs(self, task: str) -> dict[TopicPartition, int | None]:
        """Return the task's changelogs, as named in any checkpoint of it or of its sub-topology, without offsets; of a global store, its
        topic's partitions."""
        if is_global(task):
            store = task.partition(" (worker ")[0]
            copies = [checkpoint for (of, _), checkpoint in self.checkpoints.items() if of.partition(" (worker ")[0] == store]
            return {log: None for checkpoint in copies for log in saved_offsets(checkpoint)}
        subtopology, _, number = task.partition("_")
        found: dict[TopicPartition, int | None] = {}
        for (of, _), checkpoint in self.checkpoints.items():
            if of.partition("_")[0] == subtopology:
                found |= dict.fromkeys((TopicPartition(each.topic, int(number)) for each in saved_offsets(checkpoint)), None)
        return found


def saved_offsets(checkpoint: Checkpoint) -> dict[TopicPartition, int]:
    """Return the next offsets in a checkpoint, by changelog."""
    found: dict[TopicPartition, int] = {}
    for offsets in checkpoint.stores.values():
        for name, offset in offsets.items() if isinstance(offsets, dict) else ():
            topic, _, number = str(name).rpartition("-")
            if number.isdigit() and isinstance(offset, int):
                found[TopicPartition(topic, int(number))] = offset
    return found


def freshness(known: Known) -> CheckResult:
    rows = tuple(_fresh(known, task) for task in known.open_tasks())
    ages = [age for row in rows if isinstance(age := row.cells["checkpoint_age_s"], float)]
    unsaved = [age for row in rows if isinstance(age := row.cells["unsaved_s"], float)]
    debts = [debt for row in rows if isinstance(debt := row.cells["restore_debt"], int)]
    numbers: dict[str, int | float] = {"oldest_unsaved_s": max(unsaved, default=0.0), "restore_debt": sum(debts)}
    if ages:
        numbers["oldest_checkpoint_age_s"] = max(ages)
    return CheckResult(FRESHNESS, known.application.id, rows, numbers, alert="CHECKPOINT_STALE")


def _fresh(known: Known, task: Task) -> Row:
    limits = known.application.freshness
    age = None if task.checkpoint_at is None else round(max(0.0, (known.at - task.checkpoint_at).total_seconds()), 1)
    unsaved, debt = round(_unsaved_seconds(task, known.at), 1), _restore_debt(known, task)
    by_age = beyond(unsaved, limits.warn_seconds, limits.error_seconds)
    by_debt = beyond(debt or 0, limits.warn_records, limits.error_records)
    said = []
    if by_age is not Severity.INFO:
        said.append(f"work of {unsaved:.0f} s is not in a checkpoint (limit {limits.warn_seconds} s)")
    if by_debt is not Severity.INFO:
        said.append(f"{debt} records would have to be restored (limit {limits.warn_records or limits.error_records})")
    cells: dict[str, Cell] = {"task": task.task, "instance": task.instance, "kind": task.kind, "state": task.state, "lag": task.lag}
    problem = f"{task.application} {task.task} on {task.instance}: {'; '.join(said)}" if said else ""
    return Row({**cells, "checkpoint_age_s": age, "unsaved_s": unsaved, "restore_debt": debt}, worst([by_age, by_debt]), problem)


def _unsaved_seconds(task: Task, at: datetime) -> float:
    if task.moved_at is None:
        return 0.0
    if task.checkpoint_at is None:
        return max(0.0, (at - (task.first_moved_at or task.moved_at)).total_seconds())
    moved_later = task.moved_at - task.checkpoint_at > REPORTED_LATE
    return max(0.0, (at - task.checkpoint_at).total_seconds()) if moved_later else 0.0


def _restore_debt(known: Known, task: Task) -> int | None:
    """Return the restore debt of a task; None if unknown: no broker answers, or no changelog is known."""
    if known.broker is None:
        return None
    checkpoint = known.checkpoints.get((task.task, task.instance))
    saved: Mapping[TopicPartition, int | None] = saved_offsets(checkpoint) if checkpoint is not None else known.changelogs(task.task)
    ends, starts = known.broker.ends, known.broker.starts
    logs = [(ends[log], starts.get(log, 0), offset) for log, offset in saved.items() if log in ends]
    return sum(max(0, end - max(start, offset or 0)) for end, start, offset in logs) if logs else None


def liveness(known: Known) -> CheckResult:
    rows = tuple(_alive(known, name) for name in known.application.instances)
    waits = [silent for row in rows if row.problem and isinstance(silent := row.cells["silent_s"], float)]
    alert = "INSTANCE_SILENT" if max(waits, default=0.0) > SILENT_ALERT_SECONDS else None
    living = sum(known.lives(name) for name in known.application.instances)
    problems = ((Severity.ERROR, reset),) if (reset := known.unfinished_reset) else ()
    return CheckResult(LIVENESS, known.application.id, rows, {"living_instances": living}, problems, alert=alert)


def _alive(known: Known, name: str) -> Row:
    row = known.instances.get(name)
    wanted = row is not None and row.wanted
    silent = None if row is None else known.silent_seconds(row)
    since = row.wanted_at if row is not None else None
    waiting = silent if silent is not None else 0.0 if since is None else max(0.0, (known.at - since).total_seconds())
    problem = f"{name}: wanted, and silent for {waiting:.0f} s" if wanted and waiting > HEARTBEAT_SECONDS else ""
    state = (row.state if row is not None else None) or "never started"
    if row is not None and row.state is not None and not wanted and not known.lives(name):
        state = "stopped"  # it has not reported the last of its states
    tasks = sum(task.instance == name and task.state != TaskState.CLOSED.value and not is_global(task.task) for task in known.tasks)
    cells: dict[str, Cell] = {"instance": name, "wanted": wanted, "state": state, "silent_s": round(waiting, 1), "tasks": tasks}
    return Row(cells, Severity.ERROR if problem else Severity.INFO, problem)


def lag(known: Known) -> CheckResult:
    """Check the lag of each task. The limits ignore paused tasks, which have their own alert. Instances whose clients a quota delays are
    named: their lag may have no other cause. A delay alone fails no check."""
    limits = known.application.health
    rows = tuple(_lag_row(known, task) for task in sorted(known.active(), key=lambda task: task.task))
    total = total_lag(known)
    problems: list[tuple[Severity, str]] = []
    by_total = beyond(total, limits.lag_warn_records, limits.lag_error_records)
    if by_total is not Severity.INFO:
        problems.append(
            (by_total, f"{known.application.id}: {total} records wait (limit {limits.lag_warn_records or limits.lag_error_records})")
        )
    delays = {name: delay for name in sorted(known.instances) if (delay := _throttled_ms(known, name))}
    problems.extend(
        (Severity.INFO, f"{throttled(name, delay)} ({quotas_shown(known.application.connection)})") for name, delay in delays.items()
    )
    per_minute = _per_minute([*known.lags.get(TOTAL, ()), (known.at, total)])
    numbers: dict[str, int | float] = {"lag": total, "lag_per_minute": per_minute, "throttled_ms": max(delays.values(), default=0)}
    return CheckResult(LAG, known.application.id, rows, numbers, tuple(problems), alert="LAG")


def _throttled_ms(known: Known, name: str) -> int:
    """Return the longest delay that a quota has imposed on a request of a living instance lately, in ms."""
    delays = (known.instances[name].throttled or {}).values() if known.lives(name) else ()
    return max((delay for delay in delays if isinstance(delay, int)), default=0)


def measured_lag(task: Task, broker: BrokerFacts) -> int | None:
    """Return the lag of a task. While it is paused it reports nothing, and the records behind the one in the way are more each minute: then
    it is that of their partition as the broker knows it."""
    if task.state != TaskState.PAUSED.value or task.paused_topic is None or task.paused_partition is None or task.paused_offset is None:
        return task.lag
    end = broker.ends.get(TopicPartition(task.paused_topic, task.paused_partition), 0)
    return max(task.lag or 0, end - task.paused_offset)


def total_lag(known: Known) -> int:
    """Return the records between the committed offsets and the ends, without those of paused tasks; as reported by the instances if no
    broker answers."""
    paused = sum(task.lag or 0 for task in known.active() if task.state == TaskState.PAUSED.value)
    if known.broker is None or not known.broker.committed:
        return sum(task.lag or 0 for task in known.active()) - paused
    ends = known.broker.ends
    return max(0, sum(max(0, ends[each] - offset) for each, offset in known.broker.committed.items() if each in ends) - paused)


def _lag_row(known: Known, task: Task) -> Row:
    samples = [*known.lags.get(task.task, ()), *([(known.at, task.lag)] if task.lag is not None else [])]
    paused = task.state == TaskState.PAUSED.value
    minutes = known.application.health.lag_grows_minutes
    grows = not paused and minutes > 0 and _grows(samples, known.at - timedelta(minutes=minutes))
    problem = f"{task.application} {task.task}: its lag of {task.lag} has grown for {minutes} minutes" if grows else ""
    cells: dict[str, Cell] = {
        "task": task.task,
        "instance": task.instance,
        "state": task.state,
        "lag": task.lag,
        "lag_per_minute": _per_minute(samples),
    }
    return Row(cells, Severity.WARN if grows else Severity.INFO, problem)


def _grows(samples: Sequence[tuple[datetime, int]], since: datetime) -> bool:
    """Return True if the samples reach back to `since`, never decrease from then on, and the last one is larger than the first."""
    before = [sample for sample in samples if sample[0] <= since]
    values = [value for _, value in [*before[-1:], *(sample for sample in samples if sample[0] > since)]]
    if not before or len(values) < 3:
        return False
    return values[-1] > values[0] and all(later >= earlier for earlier, later in pairwise(values))


def _per_minute(samples: Sequence[tuple[datetime, int]]) -> float:
    """Return the trend over all samples, by least squares: records per minute; 0 for fewer than two."""
    if len(samples) < 2:
        return 0.0
    minutes = [(at - samples[0][0]).total_seconds() / 60 for at, _ in samples]
    mean_at, mean = sum(minutes) / len(samples), sum(value for _, value in samples) / len(samples)
    spread = sum((minute - mean_at) ** 2 for minute in minutes)
    if spread == 0:
        return 0.0
    return round(sum((minute - mean_at) * (value - mean) for minute, (_, value) in zip(minutes, samples, strict=True)) / spread, 2)


def standbys(known: Known) -> CheckResult:
    wanted = int(known.application.value("num.standby.replicas") or 0)
    rows = tuple(_standby_row(known, task, wanted) for task in known.active() if wanted and known.changelogs(task.task))
    return CheckResult(
        STANDBYS, known.application.id, rows, {"under_replicated_tasks": sum(bool(row.problem) for row in rows)}, alert="UNDER_REPLICATED"
    )


def _standby_row(known: Known, task: Task, wanted: int) -> Row:
    copies = [
        each for each in known.open_tasks() if each.task == task.task and each.kind == TaskKind.STANDBY.value and known.lives(each.instance)
    ]
    living = sum(known.lives(name) for name in known.instances)
    why = f"; only {living} instances live" if living <= wanted else ""
    problem = f"{task.application} {task.task}: {len(copies)} of {wanted} standbys{why}" if len(copies) < wanted else ""
    lags = [copy.lag for copy in copies if copy.lag is not None]
    cells: dict[str, Cell] = {"task": task.task, "instance": task.instance, "standbys": len(copies), "wanted": wanted}
    where = ", ".join(sorted(copy.instance for copy in copies))
    return Row({**cells, "on": where, "largest_lag": max(lags, default=None)}, Severity.WARN if problem else Severity.INFO, problem)


def dead_letters(known: Known) -> CheckResult:
    limit = known.application.health.dead_letters_per_hour
    bad = beyond(known.skipped_hour, limit, 10 * limit)
    problem = (
        f"{known.application.id}: {known.skipped_hour} records were skipped in the last hour (limit {limit})"
        if bad is not Severity.INFO
        else ""
    )
    row = Row({"last_hour": known.skipped_hour, "last_day": known.skipped_day}, bad, problem)
    numbers = {"dead_letters_last_hour": known.skipped_hour, "dead_letters_last_day": known.skipped_day}
    return CheckResult(DEAD_LETTERS, known.application.id, (row,), numbers, alert="DEAD_LETTERS")


def expiry(known: Known) -> CheckResult:
    """Check for expiring offsets. Instances commit offsets periodically, also those of paused tasks; those of a task without an owner may
    expire."""
    newest: dict[str, Task] = {}
    for task in sorted((each for each in known.tasks if each.kind == TaskKind.ACTIVE.value), key=lambda each: each.updated_at):
        newest[task.task] = task
    retention = None if known.broker is None else known.broker.offsets_retention_minutes
    rows = tuple(_expiry_row(known, task, retention) for _, task in sorted(newest.items())) if retention else ()
    ages = [age for row in rows if isinstance(age := row.cells["percent"], float)]
    return CheckResult(EXPIRY, known.application.id, rows, {"oldest_offsets_percent": max(ages, default=0.0)}, alert="OFFSETS_EXPIRE")


def _expiry_row(known: Known, task: Task, retention_minutes: int) -> Row:
    limit = known.application.health.offset_expiry_percent
    minutes = (
        0.0 if task.state != TaskState.CLOSED.value and known.lives(task.instance) else (known.at - task.updated_at).total_seconds() / 60
    )
    percent = round(max(0.0, 100 * minutes / retention_minutes), 1)
    bad = beyond(percent, limit, (100 + limit) / 2 if limit else 0)
    left = timedelta(minutes=round(max(0.0, retention_minutes - minutes)))
    problem = (
        f"{task.application} {task.task}: no instance has it open, and its committed offsets expire in {left}: start an instance"
        if bad is not Severity.INFO
        else ""
    )
    return Row({"task": task.task, "instance": task.instance, "idle_minutes": round(minutes, 1), "percent": percent}, bad, problem)


def compaction(known: Known) -> CheckResult:
    checked = str(known.application.value("global.topic.compaction.check") or "warn") != "off"
    policies = {} if known.broker is None else known.broker.cleanup_policies
    rows = []
    for topic in sorted(known.global_topics & policies.keys()):
        wrong = checked and "compact" not in policies[topic]
        problem = f"{known.application.id}: global topic {topic} is not compacted (cleanup.policy={policies[topic]})" if wrong else ""
        rows.append(Row({"topic": topic, "cleanup_policy": policies[topic]}, Severity.WARN if wrong else Severity.INFO, problem))
    return CheckResult(COMPACTION, known.application.id, tuple(rows), {"topics_not_compacted": sum(bool(row.problem) for row in rows)})


def partitions(known: Known) -> CheckResult:
    """Check for topics reported to have partitions without a task, until each has one, or a person resolves the alert. Those of a global
    table have no task: a person resolves the alert."""
    open_now = {task.task for task in known.tasks if task.kind == TaskKind.ACTIVE.value and task.state != TaskState.CLOSED.value}
    rows = []
    for topic, payload in sorted(known.partitions_added.items()):
        readers, count = payload.get("subtopologies"), payload.get("partitions")
        numbers = range(count if isinstance(count, int) else 0)
        parts = readers if isinstance(readers, list) else []
        missing = [number for number in numbers if not any(f"{part}_{number}" in open_now for part in parts)]
        if payload.get("store") is not None:
            what = f"partitions were added to global topic {topic}"
        else:
            what = f"partitions {', '.join(map(str, missing))} of input topic {topic} are read by no task"
        problem = f"{known.application.id}: {what}: {payload.get('reason')}; what to do: penstock alerts" if missing else ""
        cells: dict[str, Cell] = {"topic": topic, "partitions": len(numbers), "not_read": len(missing)}
        rows.append(Row(cells, Severity.ERROR if missing else Severity.INFO, problem))
    return CheckResult(PARTITIONS, known.application.id, tuple(rows), {"partitions_not_read": sum(bool(row.problem) for row in rows)})


def transactions(known: Known) -> CheckResult:
    """Check for transactions whose end the brokers have lost: they stay open, and no reader of committed records gets beyond them."""
    found = {} if known.broker is None else known.broker.open_transactions
    timeout = int(str(known.application.streams_config().producer_properties()["transaction.timeout.ms"])) // 1000 if found else 0
    rows = tuple(_transaction_row(known, partition, offset, timeout) for partition, offset in sorted(found.items()))
    numbers = {"hanging_transactions": sum(bool(row.problem) for row in rows)}
    return CheckResult(TRANSACTIONS, known.application.id, rows, numbers, alert="HANGING_TRANSACTION")


def _transaction_row(known: Known, partition: TopicPartition, offset: int, timeout: int) -> Row:
    topic, number = partition
    seconds = round(known.at.timestamp() - open_since(known, partition, offset))
    cells: dict[str, Cell] = {"topic": topic, "partition": number, "start_offset": offset, "seconds": seconds}
    if seconds < timeout + _END_SECONDS:
        return Row(cells)
    tool, at = known.application.connection.tool("kafka-transactions"), f"--topic {topic} --partition {number}"
    minutes = (timeout + _END_SECONDS) // 60  # the tool's own default is 15: until then it would list nothing
    find = f"{tool} find-hanging {at} --max-transaction-timeout {minutes}"
    abort = f"{tool} abort {at} --start-offset {offset}"
    waits = f"nothing behind offset {offset} is read"
    if topic == OFFSETS_TOPIC:
        waits = "it contains committed offsets, for which a task that moves to an instance waits"
    problem = (
        f"{known.application.id}: a transaction in {topic}-{number} has been open for {seconds} s (transaction.timeout.ms: {timeout} s); "
        f"{waits}. See whether it hangs: `{find}`. If it is listed, with its producer's id, abort it: "
        f"`{abort}` (first read `penstock docs recovery`, 'Hanging transactions')"
    )
    return Row(cells, Severity.ERROR, problem, (find, "# it is listed: read `penstock docs recovery`, 'Hanging transactions'; then", abort))


def open_since(known: Known, partition: TopicPartition, offset: int) -> int:
    """Return when an open transaction was first seen, in seconds."""
    seen = known.counters.get((OPEN, f"{partition.topic}-{partition.partition}@{offset}"))
    return int(known.at.timestamp()) if seen is None else seen[1]


ALL = (freshness, liveness, lag, standbys, dead_letters, expiry, compaction, partitions, transactions)
