"""The checks: from what is known of an application to what is wrong, and the alerts that follow. The clock is in the test's hand."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest
from sqlalchemy import select

from penstock.assets import checks as asset_checks
from penstock.assets.status import observations
from penstock.orchestration.alerts.alert_text import next_commands
from penstock.orchestration.database import ControlPlane
from penstock.orchestration.database.models import Alert, Checkpoint, Instance, Sample, Task
from penstock.orchestration.declarations.applications import Applications
from penstock.orchestration.declarations.policies import Severity
from penstock.orchestration.health import CheckResult, checks, examine_one, facts, remember, report, results_of
from penstock.orchestration.health.broker_facts import BrokerFacts
from penstock.orchestration.health.checks import LIVENESS, TOTAL, Known
from penstock.orchestration.health.figures import READ, SENTENCE, WRITTEN, Report
from penstock.runtime.model.ids import TopicPartition

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
TOML = """
[applications.a]
factory = "m:f"
instances = ["a-1", "a-2"]
[applications.a.config]
"num.standby.replicas" = 1
[applications.a.checkpoint-freshness]
warn-records = 100
error-records = 1000
[applications.a.health]
lag-warn-records = 50
lag-error-records = 500
lag-grows-minutes = 10
dead-letters-per-hour = 3
offset-expiry-percent = 50
"""
(A,) = Applications.parse(TOML, Path("streams.toml")).applications
LOG = TopicPartition("a-counts-changelog", 0)


def instance(name: str = "a-1", silent_s: float = 1) -> Instance:
    return Instance(application="a", name=name, wanted=True, state="RUNNING", heartbeat_at=NOW - timedelta(seconds=silent_s), deaths=0)


def task(
    name: str = "0_0", on: str = "a-1", kind: str = "ACTIVE", state: str = "RUNNING", lag: int | None = 0, told: datetime = NOW
) -> Task:
    return Task(application="a", task=name, instance=on, kind=kind, state=state, lag=lag, updated_at=told)


def checkpoint(offset: int, name: str = "0_0", on: str = "a-1") -> Checkpoint:
    stores: dict[str, object] = {"counts": {f"a-counts-changelog-{name[-1]}": offset}}
    return Checkpoint(application="a", task=name, instance=on, at=NOW, stores=stores)


def known(
    *tasks: Task,
    saved: tuple[Checkpoint, ...] = (),
    instances: tuple[Instance, ...] = (),
    broker: BrokerFacts | None = None,
    global_topics: frozenset[str] = frozenset(),
    skipped_hour: int = 0,
    lags: dict[str, list[tuple[datetime, int]]] | None = None,
) -> Known:
    return Known(
        A,
        NOW,
        {row.name: row for row in instances or (instance(),)},
        tasks,
        {(row.task, row.instance): row for row in saved},
        global_topics,
        skipped_hour,
        skipped_hour,
        lags or {},
        broker,
    )


@pytest.mark.parametrize(("end", "severity"), [(99, Severity.INFO), (140, Severity.WARN), (1_040, Severity.ERROR)])
def test_restore_debt_is_from_the_checkpoint_to_the_changelogs_end(end: int, severity: Severity) -> None:
    result = checks.freshness(known(task(), saved=(checkpoint(40),), broker=BrokerFacts(starts={LOG: 0}, ends={LOG: end})))
    assert (result.rows[0].cells["restore_debt"], result.numbers["restore_debt"]) == (end - 40, end - 40)
    assert result.severity is severity


def test_without_a_checkpoint_the_whole_changelog_is_debt_and_what_retention_removed_is_not() -> None:
    """The task's changelogs are known from another task of its sub-topology."""
    other = TopicPartition("a-counts-changelog", 1)
    broker = BrokerFacts(starts={LOG: 0, other: 30}, ends={LOG: 40, other: 90})
    result = checks.freshness(known(task(), task("0_1"), saved=(checkpoint(40),), broker=broker))
    assert [row.cells["restore_debt"] for row in result.rows] == [0, 60]


def test_a_copy_of_a_global_store_is_a_row_and_without_a_checkpoint_its_whole_topic_is_debt() -> None:
    logs = [TopicPartition("names", 0), TopicPartition("names", 1)]
    broker = BrokerFacts(starts={logs[0]: 5, logs[1]: 0}, ends={logs[0]: 40, logs[1]: 70})
    stores: dict[str, object] = {"my_names": {"names-0": 30, "names-1": 60}}
    saved = Checkpoint(application="a", task="global my_names", instance="a-1", at=NOW, stores=stores)
    copies = [task(name, kind="GLOBAL") for name in ("global my_names", "global my_names (worker 2)")]
    result = checks.freshness(known(*copies, saved=(saved,), broker=broker))
    assert [row.cells["restore_debt"] for row in result.rows] == [20, 105]
    assert checks.standbys(known(*copies, saved=(saved,))).rows == () and checks.lag(known(*copies)).rows == ()


def test_a_transaction_that_stays_open_is_found_and_named_with_the_commands_of_the_tool(control_plane: ControlPlane) -> None:
    """Looks come each minute. Another transaction at another offset is another one; one that ends in time is none."""
    application = replace(A, config={"bootstrap.servers": "k:9092"})
    with control_plane.writing() as session:
        session.add(instance())

    def look(minutes: int, opened: dict[TopicPartition, int]) -> tuple[CheckResult, Report]:
        at = NOW + timedelta(minutes=minutes)
        seen = replace(facts(application, control_plane, at, brokers=False), broker=BrokerFacts(open_transactions=opened))
        results = results_of(seen)
        found = report(seen, results)
        remember(control_plane, application, results, at, found.samples)
        (result,) = (each for each in results if each.name == checks.TRANSACTIONS)
        return result, found

    assert [look(minute, {LOG: 7 + minute})[0].passed for minute in range(3)] == [True, True, True]
    assert look(3, {LOG: 9})[0].passed
    result, found = look(4, {LOG: 9})
    assert result.severity is Severity.ERROR and result.numbers == {"hanging_transactions": 1}
    at = "--topic a-counts-changelog --partition 0"
    find = f"kafka-transactions --bootstrap-server k:9092 find-hanging {at} --max-transaction-timeout 1"
    abort = f"kafka-transactions --bootstrap-server k:9092 abort {at} --start-offset 9"
    assert result.texts == [
        "a: a transaction in a-counts-changelog-0 has been open for 120 s (transaction.timeout.ms: 10 s); nothing behind offset 9 is read. "
        f"See whether it hangs: `{find}`. If it is listed, with its producer's id, abort it: `{abort}` "
        "(first read `penstock docs recovery`, 'Hanging transactions')"
    ]
    assert "a transaction hangs in a-counts-changelog-0 at offset 9" in found.sentence
    with control_plane.reading() as session:
        alert = session.scalars(select(Alert).where(Alert.kind == "HANGING_TRANSACTION")).one()
        assert alert.resolved_at is None
        assert [line for line in next_commands(alert) if not line.startswith("#")] == [find, abort], "its title ends before them"
    assert look(5, {})[0].passed
    with control_plane.reading() as session:
        assert session.scalars(select(Alert).where(Alert.kind == "HANGING_TRANSACTION")).one().resolved_at is not None


def test_without_a_broker_no_debt_is_reported() -> None:
    result = checks.freshness(known(task(), saved=(checkpoint(40),)))
    assert (result.rows[0].cells["restore_debt"], result.severity) == (None, Severity.INFO)


def test_lag_is_counted_from_the_committed_offsets_without_paused_tasks() -> None:
    first, second = TopicPartition("in", 0), TopicPartition("in", 1)
    broker = BrokerFacts(committed={first: 10, second: 0}, ends={first: 70, second: 900})
    result = checks.lag(known(task(lag=60), task("0_1", state="PAUSED", lag=900), broker=broker))
    assert (result.numbers["lag"], result.severity) == (60, Severity.WARN)
    assert result.texts == ["a: 60 records wait (limit 50)"]


def test_a_lag_whose_cause_may_be_a_quota_says_so_and_a_delay_alone_fails_nothing() -> None:
    slow, silent = instance("a-1"), instance("a-2", silent_s=300)
    slow.throttled, silent.throttled = {"1": 0, "2": 2_300}, {"1": 9_000}
    text = (
        "a-1 is throttled: a quota of its clients is used up, and brokers delay each request by up to 2.3 s "
        "(`kafka-configs --bootstrap-server 127.0.0.1:9092 --describe --entity-type users --entity-type clients` shows the quotas)"
    )
    result = checks.lag(known(task(lag=60), instances=(slow, silent)))
    assert (result.texts, result.severity) == (["a: 60 records wait (limit 50)", text], Severity.WARN)
    result = checks.lag(known(task(lag=6), instances=(slow, silent)))
    assert (result.passed, result.summary, result.numbers["throttled_ms"]) == (True, text, 2_300)
    assert checks.lag(known(task(lag=60))).texts == ["a: 60 records wait (limit 50)"]


def test_the_lag_of_an_application_without_instances_is_counted() -> None:
    broker = BrokerFacts(committed={TopicPartition("in", 0): 10}, ends={TopicPartition("in", 0): 610})
    assert checks.lag(known(broker=broker)).severity is Severity.ERROR


@pytest.mark.parametrize(
    ("values", "grows"),
    [([1, 2, 2, 5], True), ([1, 9, 3, 5], False), ([5, 5, 5, 5], False), ([9, 7, 5, 3], False)],
)
def test_a_lag_that_keeps_growing_is_a_warning_with_its_trend(values: list[int], grows: bool) -> None:
    times = [NOW - timedelta(minutes=minutes) for minutes in (12, 8, 4)]
    result = checks.lag(known(task(lag=values[-1]), lags={"0_0": list(zip(times, values[:-1], strict=True))}))
    assert (result.severity is Severity.WARN) is grows
    assert (float(str(result.rows[0].cells["lag_per_minute"])) > 0) is (values[-1] > values[0])


def test_a_lag_is_not_said_to_grow_before_the_time_is_over() -> None:
    times = [NOW - timedelta(minutes=minutes) for minutes in (6, 3)]
    assert checks.lag(known(task(lag=9), lags={"0_0": [(times[0], 1), (times[1], 5)]})).severity is Severity.INFO


def test_a_task_with_state_and_without_a_living_standby_is_under_replicated() -> None:
    both = (instance("a-1"), instance("a-2"))
    standby = task(on="a-2", kind="STANDBY", lag=4)
    good = checks.standbys(known(task(), standby, saved=(checkpoint(1),), instances=both))
    assert (good.severity, good.rows[0].cells["on"], good.rows[0].cells["largest_lag"]) == (Severity.INFO, "a-2", 4)
    silent = checks.standbys(known(task(), standby, saved=(checkpoint(1),), instances=(both[0], instance("a-2", silent_s=31))))
    assert silent.texts == ["a 0_0: 0 of 1 standbys; only 1 instances live"]
    assert silent.numbers["under_replicated_tasks"] == 1
    assert checks.standbys(known(task("1_0"), saved=(checkpoint(1),))).rows == (), "a task without state wants none"


@pytest.mark.parametrize(("skipped", "severity"), [(2, Severity.INFO), (3, Severity.WARN), (30, Severity.ERROR)])
def test_dead_letters_of_an_hour_have_a_limit(skipped: int, severity: Severity) -> None:
    assert checks.dead_letters(known(skipped_hour=skipped)).severity is severity


@pytest.mark.parametrize(("idle_hours", "severity"), [(1, Severity.INFO), (13, Severity.WARN), (20, Severity.ERROR)])
def test_expiring_offsets_of_idle_tasks_are_reported(idle_hours: int, severity: Severity) -> None:
    broker = BrokerFacts(offsets_retention_minutes=24 * 60)
    closed = task(state="CLOSED", told=NOW - timedelta(hours=idle_hours))
    assert checks.expiry(known(closed, broker=broker)).severity is severity
    assert checks.expiry(known(closed, task(on="a-1", state="PAUSED"), broker=broker)).severity is Severity.INFO, "it lives elsewhere"


def test_a_global_topic_that_is_not_compacted_is_a_warning() -> None:
    broker = BrokerFacts(cleanup_policies={"airports": "compact", "carriers": "delete"})
    result = checks.compaction(known(broker=broker, global_topics=frozenset({"airports", "carriers", "gone"})))
    assert result.texts == ["a: global topic carriers is not compacted (cleanup.policy=delete)"]


def test_a_problem_opens_one_alert_that_counts_gets_worse_and_is_closed_when_all_is_well(control_plane: ControlPlane) -> None:
    def alert() -> Alert:
        with control_plane.reading() as session:
            (found,) = session.scalars(select(Alert))
        return found

    def look(minutes: int, skipped: int) -> None:
        results: list[CheckResult] = [checks.dead_letters(known(skipped_hour=skipped))]
        remember(control_plane, A, results, NOW + timedelta(minutes=minutes))

    look(0, 1)
    look(1, 3)
    look(2, 40)
    assert (alert().kind, alert().severity, alert().count, alert().state) == ("DEAD_LETTERS", "ERROR", 2, "OPEN")
    assert (alert().opened_at, alert().last_seen_at) == (NOW + timedelta(minutes=1), NOW + timedelta(minutes=2))
    assert alert().title.startswith("a: 40 records were skipped in the last hour")
    look(3, 0)
    assert (alert().state, alert().resolution) == ("RESOLVED", "all is well again")


def test_lags_are_kept_for_a_day(control_plane: ControlPlane) -> None:
    for days in (2, 0):
        at = NOW - timedelta(days=days)
        remember(control_plane, A, [checks.lag(known(task(lag=5)))], at)
    with control_plane.reading() as session:
        assert {(row.subject, row.value, row.at) for row in session.scalars(select(Sample))} == {("0_0", 5, NOW), ("*", 5, NOW)}
    assert {result.name for result in examine_one(A, control_plane, NOW, brokers=False)} == set(checks.DESCRIPTIONS)


def test_a_check_says_that_nothing_runs_and_that_it_cannot_know(control_plane: ControlPlane) -> None:
    def said(**unknown: str) -> set[tuple[bool, str]]:
        results = examine_one(A, control_plane, NOW, brokers=False, **unknown)
        return {(result.passed, result.summary) for result in results}

    assert said() == {(True, "nothing runs yet")}
    assert said(unknown="no broker answers at x:1") == {(False, "cannot be known: no broker answers at x:1")}
    with control_plane.writing() as session:
        session.add(Instance(application="a", name="a-1", wanted=False, heartbeat_at=NOW - timedelta(hours=1), deaths=0))
    assert said() == {(True, "nothing runs: every instance is stopped")}
    for unknown, at, figures in (("", NOW, {0}), ("no broker answers at x:1", NOW - timedelta(hours=1), {"unknown"})):
        results = examine_one(A, control_plane, NOW, brokers=False, unknown=unknown)
        shown = asset_checks.as_dagster(next(result for result in results if result.name == checks.LAG), NOW).metadata
        assert shown["3 as of"] == dg.MetadataValue.timestamp(at), "no old state is shown as the state now"
        assert {shown[name].value for name in ("lag", "lag_per_minute")} == figures, "nor is it a point of a plot"
    with control_plane.writing() as session:
        session.get_one(Instance, ("a", "a-1")).heartbeat_at = NOW
    assert "2 looked at, all well" in {text for _, text in said()}, "it runs, although it is not wanted"


def test_an_alert_is_not_resolved_while_no_broker_answers(control_plane: ControlPlane) -> None:
    def look(skipped: int, unknown: str) -> str:
        result = replace(checks.dead_letters(known(skipped_hour=skipped)), unknown=unknown)
        remember(control_plane, A, [result], NOW)
        with control_plane.reading() as session:
            return session.scalars(select(Alert)).one().state

    assert [look(9, ""), look(0, "no broker answers"), look(0, "")] == ["OPEN", "OPEN", "RESOLVED"]


def test_an_instance_that_stopped_without_reporting_its_last_state_is_shown_as_stopped() -> None:
    closing = instance(silent_s=100)
    closing.wanted, closing.state = False, "PENDING_SHUTDOWN"
    result = checks.liveness(known(instances=(closing,)))
    assert result.passed and result.rows[0].cells["state"] == "stopped"
    closing.wanted = True
    assert checks.liveness(known(instances=(closing,))).rows[0].cells["state"] == "PENDING_SHUTDOWN", "it is to run: what was heard last"


def test_no_instance_is_silent_because_no_broker_answers(control_plane: ControlPlane) -> None:
    """Nobody is heard during an outage; the alert of an instance that was silent before it stays open."""
    with control_plane.writing() as session:
        for name, silent_s in (("a-1", 1), ("a-2", 200)):
            session.add(instance(name, silent_s=silent_s))

    def look(seconds: int, unknown: str = "") -> tuple[str, list[str], list[str]]:
        at = NOW + timedelta(seconds=seconds)
        there = facts(A, control_plane, at, brokers=False)
        results = results_of(there, unknown)
        found = report(there, results)
        remember(control_plane, A, results, at, found.samples)
        (alive,) = (result for result in results if result.name == LIVENESS)
        with control_plane.reading() as session:
            return found.sentence, alive.texts, [alert.title for alert in session.scalars(select(Alert).where(Alert.state == "OPEN"))]

    before = ["a-2: wanted, and silent for 200 s"]
    assert look(0) == ("a-2 has reported nothing since 11:56 UTC", before, before)
    away = "cannot be known: no broker answers; as last known: check instances_alive fails"
    for minute in (1, 10, 60):
        assert look(60 * minute, "no broker answers") == (away, ["a-2: wanted, and silent for 199 s"], before)
    back = ["a-2: wanted, and silent for 3810 s"]
    assert look(3_610) == ("a-2 has reported nothing since 11:56 UTC", back, back), "a-1 has had no time to report"
    both = ["a-1: wanted, and silent for 130 s; a-2: wanted, and silent for 3930 s"]
    assert look(3_730)[1:] == (both[0].split("; "), both)


def reported(facts: Known, unknown: str = "", dead: frozenset[str] = frozenset()) -> Report:
    return report(facts, results_of(facts, unknown), dead)


def paused(name: str, offset: int, hours: int = 0) -> Task:
    found = task(name, state="PAUSED", lag=9)
    found.paused_topic, found.paused_partition, found.paused_offset = "flights", int(name[-1]), offset
    found.paused_at = NOW - timedelta(hours=hours, minutes=29)
    return found


def test_a_report_begins_with_the_paused_task_and_has_all_instances() -> None:
    drained = Instance(application="a", name="a-3", wanted=False, state="NOT_RUNNING", heartbeat_at=NOW, deaths=0)
    both = (instance(), drained)
    found = reported(known(paused("0_4", 15535), task("0_0", lag=3), task("0_1", on="a-3"), instances=both))
    assert found.sentence.split("; ")[0] == "1 task is paused: 0_4 at flights-4@15535, since 11:31 UTC"
    states = {name: (figures.state, dict(figures.tasks), figures.paused, figures.lag) for name, figures in found.instances.items()}
    assert states == {
        "a-1": ("RUNNING", {"ACTIVE": 2}, 1, 12),
        "a-2": ("never started", {}, 0, 0),
        "a-3": ("stopped", {}, 0, 0),
    }, "what a drained instance ran is not its any more"
    assert (found.total.lag, found.total.paused, dict(found.total.tasks)) == (12, 1, {"ACTIVE": 2}), "records behind a pause wait too"
    many = reported(known(*(paused(f"0_{number}", 7, hours=24) for number in range(5))))
    assert "5 tasks are paused: 0_0 at flights-0@7, since 2026-11-20 11:31 UTC; " in many.sentence and " and 2 more" in many.sentence


@pytest.mark.parametrize(
    ("rows", "dead", "sentence"),
    [
        ((), frozenset(), "nothing runs yet"),
        ((instance(silent_s=31),), frozenset(), "a-1 has reported nothing since 11:59 UTC"),
        ((instance(silent_s=31),), frozenset({"a-1"}), "a-1 is to run and does not"),
        ((instance(),), frozenset({"a-1"}), "a-1 is to run and does not"),
        ((instance(),), frozenset(), "1 task runs on 1 instance, nothing is wrong"),
    ],
)
def test_the_sentence_says_what_runs_and_what_does_not(rows: tuple[Instance, ...], dead: frozenset[str], sentence: str) -> None:
    found = reported(Known(A, NOW, {row.name: row for row in rows}, (task(),), {}), dead=dead)
    assert found.sentence == sentence
    assert {figures.state for figures in found.instances.values()} - {"RUNNING", "does not run", "silent"} == {"never started"}


def test_records_behind_a_pause_are_its_tasks_lag_and_no_lag_of_the_application(
    control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A paused task reports nothing: one of two was shown with the lag of the moment at which it paused, in a table below the right sum."""
    with control_plane.writing() as session:
        session.add_all([instance(), paused("0_4", 15535), task("0_0", lag=3)])
    ends = {TopicPartition("flights", 4): 15535 + 700, TopicPartition("flights", 0): 13}
    committed = {TopicPartition("flights", 4): 15535, TopicPartition("flights", 0): 10}
    monkeypatch.setattr("penstock.orchestration.health.examination.ask_broker", lambda *_: BrokerFacts(committed, ends=ends))
    there = facts(A, control_plane, NOW, brokers=True)
    found = reported(there)
    assert (found.instances["a-1"].lag, found.total.lag) == (703, 703)
    assert checks.total_lag(there) == 3, "limits are about what no alert covers"
    assert {row.task: row.lag for row in there.tasks} == {"0_0": 3, "0_4": 700}
    assert facts(A, control_plane, NOW, brokers=False).tasks[1].lag == 9, "what was reported stays"


def test_an_instance_that_was_not_heard_since_an_outage_is_not_said_to_be_down_and_its_pause_is_not_forgotten() -> None:
    """The outage was between two looks, or longer than the session, so the instance joins again before it reports. Its process lives."""
    found = reported(Known(A, NOW, {"a-1": instance(silent_s=50)}, (paused("0_4", 7),), {}))
    assert found.sentence == "1 task is paused: 0_4 at flights-4@7, since 11:31 UTC; a-1 has reported nothing since 11:59 UTC"
    assert (found.instances["a-1"].state, found.instances["a-1"].lag) == ("silent", None), "what it does is not known"


def test_nothing_is_reported_as_known_while_no_broker_answers() -> None:
    found = reported(known(paused("0_4", 1)), unknown="no broker answers at x:1")
    assert found.sentence.startswith("cannot be known: no broker answers at x:1; as last known: 1 task is paused: 0_4")
    assert found.instances["a-1"].state == found.total.state == "unknown" and found.total.lag is None
    assert not {kind for kind, _ in found.samples} & {READ, WRITTEN}, "the next rates are over the whole time"


def test_a_drained_instance_is_a_change_although_the_sentence_is_about_a_paused_task_on_another() -> None:
    drained = Instance(application="a", name="a-2", wanted=False, state="NOT_RUNNING", heartbeat_at=NOW, deaths=0)
    before = known(paused("0_4", 1), instances=(instance(), instance("a-2")))
    after = known(paused("0_4", 1), instances=(instance(), drained))
    seen = {(SENTENCE, TOTAL): (NOW, reported(before).samples[SENTENCE, TOTAL])}
    same, later = (reported(replace(facts, counters=seen)) for facts in (before, after))
    assert same.sentence == later.sentence
    assert (same.changed, later.changed) == (False, True)


def test_rates_are_over_the_time_since_the_previous_look_and_a_sentence_is_new_once(control_plane: ControlPlane) -> None:
    with control_plane.writing() as session:
        session.add(
            Instance(application="a", name="a-1", wanted=True, state="RUNNING", heartbeat_at=NOW, deaths=0, resident={"1": 5, "2": 7})
        )
        session.add(Instance(application="a", name="a-2", wanted=True, state="RUNNING", heartbeat_at=NOW, deaths=0, written={"1": None}))
        session.add(task(told=NOW))
    seen, of = [], []
    for minutes, read, written in ((0, 100, {"1": 900, "2": 100}), (1, 700, {"1": 1_200, "2": 400}), (2, 40, {"1": 1_500, "2": 12})):
        at = NOW + timedelta(minutes=minutes)
        with control_plane.writing() as session:
            session.get_one(Task, ("a", "0_0", "a-1")).offset_sum = read
            one, two = (session.get_one(Instance, ("a", name)) for name in ("a-1", "a-2"))
            one.heartbeat_at = two.heartbeat_at = at
            one.written = dict(written)
        there = facts(A, control_plane, at, brokers=False)
        results = results_of(there)
        found = report(there, results)
        remember(control_plane, A, results, at, found.samples)
        outs = [figures.out_per_s for figures in (found.instances["a-1"], found.instances["a-2"], found.total)]
        seen.append((found.instances["a-1"].in_per_s, *outs, found.changed))
        of.append(found.rates_of)
    assert seen == [
        (None, None, None, None, True),
        (10.0, 10.0, None, 10.0, False),
        (None, 5.0, None, 5.0, False),
    ], "an offset that was set back has no rate, nor a worker that was started anew, nor one of an earlier version"
    assert of == ["in: 1 of 2 instances; out: 0 of 2 instances", "in: 2 of 2 instances; out: 1 of 2 instances", "1 of 2 instances"]
    (total, *_) = observations("a", found, {})
    assert total.metadata["records_per_s_of"].value == "1 of 2 instances"
    assert found.instances["a-1"].resident_bytes == 12
    with control_plane.reading() as session:
        kept = {(row.kind, row.subject): row.value for row in session.scalars(select(Sample)) if row.kind != "lag"}
    assert (kept[READ, "0_0"], kept[WRITTEN, "a-1/1"], kept[WRITTEN, "a-1/2"]) == (40, 1_500, 12), (
        "of a counter only the last sample is kept"
    )
