"""Output and declarations of the demo, without running it."""

from __future__ import annotations

from collections.abc import Hashable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console

from examples.flight_board import topology
from examples.flight_board.report import carriers, speed, worst_hours
from examples.flight_board.stage import APPLICATION, Stage, StageError
from examples.flight_board.truth import Truth
from examples.flight_board.watch import Progress, entry_line, event_line
from penstock.orchestration.database.models import AuditEntry, Event
from penstock.orchestration.declarations.applications import Applications, RunBook
from penstock.orchestration.declarations.project_paths import STREAMS_TOML, ProjectPaths, default_database_url
from tests.support import ROOT

AT = datetime(2013, 1, 1, tzinfo=UTC)


@pytest.fixture
def project(tmp_path: Path) -> ProjectPaths:
    return ProjectPaths(ROOT, tmp_path, ROOT / STREAMS_TOML, default_database_url(tmp_path))


def shown(what: object) -> str:
    """As rich prints it on a wide terminal."""
    console = Console(width=200)
    with console.capture() as captured:
        console.print(what)
    return captured.get()


def test_the_demo_declares_what_the_project_declares_but_on_its_own_broker(project: ProjectPaths) -> None:
    with Stage(project) as stage:
        operations = stage.declare()
        demo, own = operations.applications.named(APPLICATION), Applications.read(project.streams_toml).named(APPLICATION)
        assert [application.id for application in operations.applications.applications] == [APPLICATION]
        assert demo.bootstrap_servers == stage.broker.bootstrap_servers != own.bootstrap_servers
        assert {**demo.config, "bootstrap.servers": own.bootstrap_servers} == own.config
        assert (demo.factory, demo.instances, demo.paused) == (own.factory, own.instances, own.paused)
        assert operations.applications.tables == Applications.read(project.streams_toml).tables
        assert demo.paused.run_book is RunBook.SKIP_RECORD
        assert operations.paths.home == project.home / "demo"


def test_a_second_demo_in_the_same_home_is_refused(project: ProjectPaths) -> None:
    with Stage(project), pytest.raises(StageError, match=r"another demo runs in .*demo: end it with Ctrl-C"), Stage(project):
        pass


def test_a_project_without_the_flight_board_is_refused(project: ProjectPaths, tmp_path: Path) -> None:
    path = tmp_path / STREAMS_TOML
    path.write_text('[applications.other]\nfactory = "a.b:c"\ninstances = ["other-1"]\n')
    with (
        Stage(ProjectPaths(tmp_path, tmp_path, path, project.database_url)) as stage,
        pytest.raises(StageError, match=r"no application 'flight-board' is declared; declared are other"),
    ):
        stage.declare()


def test_each_demo_begins_with_an_empty_home(project: ProjectPaths) -> None:
    with Stage(project) as stage:
        (stage.paths.home / "left.over").write_text("")
    with Stage(project) as stage:
        assert list(stage.paths.home.iterdir()) == []


def test_progress_counts_flights_and_leaves_out_the_time_of_waiting() -> None:
    progress = Progress(flights=100)
    first = {(topology.FLIGHTS, 0): 10, (topology.WEATHER, 0): 500}
    assert progress.update(first, 1.0, ())
    assert not progress.update(first, 2.0, ("0_3",))
    assert progress.update({**first, (topology.FLIGHTS, 1): 5}, 1.0, ())
    assert (progress.done, progress.whole_s, progress.working_s, progress.paused) == (15, 4.0, 2.0, ())


def test_speed_is_of_the_time_in_which_there_was_work() -> None:
    lines = speed(Progress(flights=10_001, done=10_001, working_s=10.0, whole_s=30.0))
    assert "in 30 s, of which 20 s were waiting" in lines[0]
    assert "1,000 flights/s" in lines[1]
    assert "6,612 records/s" in lines[1]  # and the rows of weather


def test_the_worst_hours_are_busy_ones_and_in_the_time_of_new_york() -> None:
    hour = {"airport": "La Guardia", "flights": 20, "cancelled": 1, "delay_minutes": 1900, "mean_delay": 100.0}
    rows: dict[Hashable, dict[str, object]] = {
        ("LGA", 1357074000000): hour,
        ("JFK", 1357074000000): {**hour, "airport": "John F Kennedy Intl", "mean_delay": 50.0},
        ("EWR", 1357074000000): {**hour, "airport": "Newark Liberty Intl", "flights": 2, "mean_delay": 900.0},
        ("EWR", 1357077600000): {**hour, "airport": "Newark Liberty Intl", "mean_delay": None},
    }
    lines = shown(worst_hours(Truth({}, rows, {}))).splitlines()
    assert [line.split()[4] for line in lines[1:]] == ["La", "John"]
    assert lines[1].startswith("Tue 01 Jan 16:00")


def test_carriers_are_shown_by_their_flights() -> None:
    rows: dict[Hashable, dict[str, object]] = {
        "AA": {"name": "American", "flights": 5, "cancelled": 0},
        "UA": {"name": "United", "flights": 58_665, "cancelled": 686},
    }
    lines = shown(carriers(Truth(rows, {}, {}))).splitlines()
    assert lines[1].split() == ["UA", "United", "58,665", "686"]
    assert lines[2].split() == ["AA", "American", "5", "0"]


def test_lines_of_the_trail_leave_out_raw_bytes_and_keep_brackets() -> None:
    entry = AuditEntry(at=AT, actor="demo", action="step close done", detail={"alerts": [1], "value_base64": "AAAA", "reason": ""})
    assert "alerts [1]" in shown(entry_line(entry))
    assert "AAAA" not in shown(entry_line(entry)) and "reason" not in shown(entry_line(entry))
    payload: dict[str, object] = {"topic": "flights", "partition": 3, "offset": 7, "error": "expected [ at byte 3"}
    event = Event(kind="TASK_PAUSED", task="0_3", instance="one", payload=payload, at=AT)
    assert "task 0_3 of one at flights-3@7: expected [ at byte 3; it keeps its place" in shown(event_line(event))
