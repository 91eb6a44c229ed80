"""`penstock alerts` where no sensor runs: what Kafka shows to be wrong is listed all the same, once, with the command to type next."""

from __future__ import annotations

import json
import time
from datetime import timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.orchestration.alerts import raw_bytes
from penstock.orchestration.cli import app
from penstock.orchestration.commands.common import clock, out
from penstock.orchestration.database import ControlPlane, audit
from penstock.orchestration.database.models import Alert, AlertState, Task, from_ms
from penstock.orchestration.kafka.observer import Condition, Observer, Picture, of_events
from penstock.runtime.kafka.connection import Connection
from penstock.runtime.model.events import Event, EventKind

NOW_MS = int(time.time() * 1000)
NOW = from_ms(NOW_MS)
GROWN = {"topic": "in", "read": 2, "partitions": 5, "reason": "state"}


def event(kind: EventKind, payload: dict[str, object], instance: str = "a-1", at_ms: int = NOW_MS) -> Event:
    return Event(
        id=f"{instance}/{at_ms}", application="a", instance=instance, incarnation=1, kind=kind, task=None, at_ms=at_ms, payload=payload
    )


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, control_plane: ControlPlane) -> ControlPlane:
    (tmp_path / "streams.toml").write_text('[applications.a]\nfactory = "m:f"\ninstances = 1\n')
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PENSTOCK_STREAMS", str(tmp_path / "streams.toml"))
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", f"sqlite:///{tmp_path / 'control-plane.db'}")
    monkeypatch.setattr("penstock.orchestration.commands.alerts.catch_up", lambda *_: None)
    return control_plane


def wrong(monkeypatch: pytest.MonkeyPatch, *conditions: Condition) -> None:
    monkeypatch.setattr(Observer, "conditions", lambda self, now_ms: list(conditions))


def alert(kind: str, subject: str, seen_ms: int, state: AlertState = AlertState.OPEN) -> Alert:
    at = from_ms(seen_ms)
    return Alert(
        occurrence=f"{kind}/{subject}",
        kind=kind,
        severity="WARN",
        state=state.value,
        application="a",
        instance="a-1",
        subject=subject,
        title="t",
        detail={},
        opened_at=at - timedelta(hours=1),
        last_seen_at=at,
    )


def test_events_of_all_instances_about_one_topic_are_one_condition() -> None:
    found = of_events([event(EventKind.INPUT_PARTITIONS_ADDED, {**GROWN, "partitions": n}, f"a-{n}", NOW_MS + n) for n in (3, 4, 5)])
    assert [(each.kind, each.subject, each.since_ms) for each in found] == [("INPUT_PARTITIONS_ADDED", "in", NOW_MS + 5)]
    assert "partitions 5" in found[0].what
    assert of_events([event(EventKind.INPUT_PARTITIONS_ADDED, {**GROWN, "reason": reason}) for reason in ("state", None)]) == []


def test_what_has_no_alert_is_listed_with_the_next_command(database: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong(
        monkeypatch,
        Condition("INSTANCE_SILENT", "ERROR", "a-1", "a-1 should run and has said nothing since", NOW_MS),
        Condition("INPUT_PARTITIONS_ADDED", "WARN", "in", "topic in", NOW_MS),
    )
    with database.writing() as session:
        paused = Task(application="a", instance="a-1", task="0_3", kind="ACTIVE", state="PAUSED", updated_at=from_ms(NOW_MS))
        paused.paused_topic, paused.paused_partition, paused.paused_offset = "in", 3, 7
        session.add(paused)
    shown = CliRunner().invoke(app, ["alerts"])
    assert shown.exit_code == 0
    for text in ("INSTANCE_SILENT a-1: a-1 should run", "INPUT_PARTITIONS_ADDED in: topic in", "task 0_3 on a-1 is paused at in-3@7"):
        assert f"no alert yet (Dagster's sensors open them): {text}" in shown.output
    assert shown.output.count("penstock skip a 0_3: skip the record") == 1
    assert shown.output.count("penstock describe a: ") == 1
    assert [row["kind"] for row in json.loads(CliRunner().invoke(app, ["alerts", "--json"]).stdout)] == [
        "TASK_PAUSED",
        "INSTANCE_SILENT",
        "INPUT_PARTITIONS_ADDED",
    ]


@pytest.mark.parametrize(
    ("has", "listed"),
    [
        (alert("INSTANCE_DIED", "a-1", NOW_MS - 5_000), ["INPUT_PARTITIONS_ADDED"]),
        (alert("INSTANCE_DIED", "a-1", NOW_MS, AlertState.RESOLVED), ["INSTANCE_SILENT", "INPUT_PARTITIONS_ADDED"]),
        (alert("INPUT_PARTITIONS_ADDED", "in", NOW_MS, AlertState.RESOLVED), ["INSTANCE_SILENT"]),
        (alert("INPUT_PARTITIONS_ADDED", "in", NOW_MS - 5_000), ["INSTANCE_SILENT", "INPUT_PARTITIONS_ADDED"]),
    ],
)
def test_what_an_alert_covers_is_not_listed_again(
    database: ControlPlane, monkeypatch: pytest.MonkeyPatch, has: Alert, listed: list[str]
) -> None:
    wrong(
        monkeypatch,
        Condition("INSTANCE_SILENT", "ERROR", "a-1", "silent", NOW_MS),
        Condition("INPUT_PARTITIONS_ADDED", "WARN", "in", "topic in", NOW_MS),
    )
    with database.writing() as session:
        session.merge(has)
    rows = json.loads(CliRunner().invoke(app, ["alerts", "--json"]).stdout)
    assert [row["kind"] for row in rows if row.get("source") == "kafka"] == listed


def test_a_recovery_of_one_worker_is_shown_until_that_worker_has_ended_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def of(kind: EventKind, worker: int) -> Event:
        return event(kind, {"store": "cards", "worker": worker, "reason": "truncated"})

    started, ended = EventKind.GLOBAL_RECOVERY_STARTED, EventKind.GLOBAL_RECOVERY_ENDED
    events = [of(started, 1), of(started, 2), of(ended, 1)]
    monkeypatch.setattr(Observer, "observe", lambda self: Picture("a", {}, {}, {}, None))
    monkeypatch.setattr(Observer, "events", lambda self, limit: events)
    assert [each.subject for each in Observer("a", Connection("none:9")).conditions(NOW_MS)] == ["cards on a-1"]
    events.append(of(ended, 2))
    assert Observer("a", Connection("none:9")).conditions(NOW_MS) == []


LONG = "order-enrichment-for-settlement-europe"
PLACE = "settlement-orders-validated-europe-west-v2-4@15535"


def test_an_alert_at_80_columns_is_in_the_order_of_need_and_breaks_no_name(database: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    hostile = "KeyError: '\x1b[2J\x1b]0;owned\x07' [red]not markup[/red]"
    line = '{"at":"2026-01-02T03:04:05.678Z","level":"INFO","logger":"l","message":"a line of the log"}'
    with database.writing() as session:
        found = alert("TASK_PAUSED", PLACE, NOW_MS)
        found.task, found.title = "0_4", f"task 0_4 is paused at {PLACE}, at shop/topology.py:9 in price: {hostile}"
        record = {"topic": PLACE.rpartition("-")[0], "partition": 4, "offset": 15535, "left_out_bytes": 0}
        bytes_of = {"key_base64": "a2V5", "value_base64": raw_bytes.to_base64(b"\x1b[2J" + b"v" * 100)}
        found.detail = {**record, "error": hostile, "stack": "frames\nKeyError", "log_end": line, **bytes_of}
        session.add(found)
        session.flush()
        audit.record(session, "sensor", "alert opened", at=NOW, application="a", alert_id=found.id, detail={"title": found.title})
    monkeypatch.setattr(out, "_width", 80)
    shown = CliRunner().invoke(app, ["alerts", "show", "1"], env={"COLUMNS": "80"}).stdout
    lines = shown.splitlines()
    command = f"  penstock run-book skip-record a 0_4 --record {PLACE}"
    assert command in lines, "it is copied, so it is one line"
    long = [each for each in lines if len(each) > 80 and each != command]
    assert [each.strip() for each in long] == [rf"value: \x1b[2J{'v' * 100}".removeprefix("value: ")], "bytes without a space"
    assert "\x1b" not in shown and "\x07" not in shown and "[red]not markup[/red]" in " ".join(shown.split())
    headings = [each for each in lines if each.endswith(":") and not each.startswith(" ")]
    of_log = ["last line of the log:", "bytes:", "next:", "what else:", "stack:", "log excerpt:"]
    assert headings == ["since:", "record:", "why:", *of_log]
    assert "left_out_bytes" not in shown and "  2026-01-02T03:04:05.678Z INFO a line of the log" in lines
    assert shown.count(PLACE) >= 4, "in one piece each time"


def test_the_audit_trail_at_80_columns_breaks_no_name_and_obeys_no_record(database: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its details contain errors, and the ends of logs, which may contain what a record does."""
    hostile = "KeyError: '\x1b[2J\x1b]0;owned\x07\udcff' [red]not markup[/red]"
    detail = {"record": PLACE, "error": hostile, "log_end": "line 1\nline 2", "instances": [f"{LONG}-{number}" for number in range(3)]}
    with database.writing() as session:
        for subject in (f"{LONG}-1", "elsewhere-1"):
            audit.record(
                session, "sensor instances_that_should_run", "instance died", at=NOW, application=LONG, instance=subject, detail=detail
            )
        audit.record(session, "ann", "alert acknowledged", at=NOW, application=LONG, task="0_4")
    monkeypatch.setattr(out, "_width", 80)
    shown = CliRunner().invoke(app, ["audit"], env={"COLUMNS": "80"}).stdout
    lines = shown.splitlines()
    assert all(len(line) <= 80 for line in lines) and "…" not in shown
    assert shown.count(PLACE) == 2 and sum(f"{LONG}-2" in line for line in lines) == 2, "each name is in one piece"
    assert "\x1b" not in shown and "\x07" not in shown and shown.count(r"'\x1b[2J\x1b]0;owned\x07\udcff' [red]not markup[/red]") == 2
    assert "line 1" not in shown, "the alert has the end of the log"
    assert [line for line in lines if not line.startswith(" ")] == [line for line in lines if line.startswith(f"{clock(NOW)}  ")]


@pytest.mark.usefixtures("database")
def test_an_applications_name_stands_for_the_list_of_its_alerts(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong(monkeypatch, Condition("INSTANCE_SILENT", "ERROR", "a-1", "silent", NOW_MS))
    assert [row["application"] for row in json.loads(CliRunner().invoke(app, ["alerts", "a", "--json"]).stdout)] == ["a"]
    unknown, mistyped = CliRunner().invoke(app, ["alerts", "stock"]), CliRunner().invoke(app, ["alerts", "shwo", "1"])
    assert unknown.exit_code == 1 and "no application 'stock' is declared" in unknown.output
    assert mistyped.exit_code == 2 and "No such command 'shwo'. Did you mean 'show'" in mistyped.output
