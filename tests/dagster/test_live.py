"""End to end: Dagster's daemon and webserver, a real broker, a real instance, a real browser. Only the daemon evaluates the sensors
here."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from sqlalchemy import select

from penstock.orchestration.alerts import pauses
from penstock.orchestration.dagster.jobs import title
from penstock.orchestration.database.audit import now
from penstock.orchestration.database.models import Alert, AlertState, RunBookRun, RunBookState
from penstock.orchestration.dead_letters.topic import dead_letter_topic
from penstock.orchestration.run_books import SkipRecord
from tests.dagster.browsing import NO_BROWSER, chromium, opened, picture, see, tables_fit
from tests.dagster.live import LiveDagster
from tests.dagster.telling import Project
from tests.support import wait_until
from tests.support.instances import members


@pytest.fixture
def dagster(project: Project, tmp_path: Path) -> Iterator[LiveDagster]:
    """Yield Dagster with a policy that skips truncated records, and leaves others to operators."""
    path = project.operations.paths.streams_toml
    path.write_text(path.read_text() + 'skip-errors = [".*truncated.*"]\n')
    live = LiveDagster(tmp_path / "dagster")
    try:
        yield live
    finally:
        live.stop()


def alerts(project: Project) -> dict[str, str]:
    """Return the state of the newest alert of each kind."""
    with project.control_plane.reading() as session:
        return {alert.kind: alert.state for alert in session.scalars(select(Alert).order_by(Alert.id))}


def run_books(project: Project) -> list[str]:
    """Return the states of the run-books' runs."""
    with project.control_plane.reading() as session:
        return [run.state for run in session.scalars(select(RunBookRun))]


@pytest.mark.nightly
def test_dagster_starts_watches_and_repairs_and_the_instance_outlives_it(project: Project, dagster: LiveDagster) -> None:
    application, broker = project.application, project.broker
    for end, partitions in (("in", 2), ("out", 1)):
        broker.create_topic(f"{application.id}-{end}", partitions, exact=True)
    name = application.instances[0]
    assert set(dagster.sensors().values()) == {"RUNNING"}, "sensors run by default"

    dagster.launch(project.start_job, instance=(application.id, name))
    first = project.operations.launcher.running(name)
    assert first is not None

    os.kill(first.pid, signal.SIGKILL)
    wait_until(lambda: "INSTANCE_DIED" in alerts(project), 60, "the alert of its death")
    wait_until(lambda: alerts(project)["INSTANCE_DIED"] == AlertState.RESOLVED.value, 90, "the end of the alert: it runs again")
    second = project.operations.launcher.running(name)
    assert second is not None
    assert second.pid != first.pid

    broker.produce(f"{application.id}-in", [(b"key", b"{}"), (b"key", b'{"truncated'), (b"key", b"{}")], partition=0)
    _kill_within_the_run_book(project, dagster)
    wait_until(lambda: run_books(project) == [RunBookState.DONE.value], 120, "the run-book of the policy, taken up again")
    assert alerts(project)["TASK_PAUSED"] == AlertState.RESOLVED.value
    assert [record.value for record in broker.consume(dead_letter_topic(application.id))] == [b'{"truncated']
    wait_until(lambda: dagster.runs("skip_record") == ["SUCCESS", "FAILURE"], 30, "the end of both runs, also of the one that was killed")
    wait_until(lambda: _now(dagster, application.id) is not None, 120, "a report of the checks' schedule")
    assert dagster.runs("instance_checks") == [], "it needs no run"

    broker.produce(f"{application.id}-in", [(b"k" * 300, b"nonsense \xff"), (b"key", b"{}")], partition=1)
    wait_until(lambda: alerts(project)["TASK_PAUSED"] == AlertState.OPEN.value, 60, "the alert on a record that no pattern matches")
    place = f"{application.id}-in-1@0"
    wait_until(lambda: place in str(_now(dagster, application.id)), 120, "a report that begins with the paused task")
    _repair(dagster.url, application.id, name, place)
    assert alerts(project)["TASK_PAUSED"] == AlertState.RESOLVED.value
    assert [record.value for record in broker.consume(dead_letter_topic(application.id))] == [b'{"truncated', b"nonsense \xff"], "each once"

    project.operations.stop(name, actor="ann")
    stopped = f"{name}: stopped"
    wait_until(lambda: stopped in dagster.observations(application.id, "instances"), 120, "an observation of the stop")
    project.operations.start(name, actor="ann")
    third = project.operations.launcher.running(name)

    dagster.stop()
    assert third is not None and third.alive, "the instance outlives Dagster"


@pytest.mark.nightly
def test_an_on_call_engineer_tries_approves_and_rejects_by_the_links_of_an_alert(project: Project, tmp_path: Path) -> None:
    executable = chromium()
    if executable is None:
        pytest.skip(NO_BROWSER)
    application, broker = project.application, project.broker
    streams_toml = project.operations.paths.streams_toml
    streams_toml.write_text(streams_toml.read_text() + 'start = "after-approval"\n')
    for end, partitions in (("in", 2), ("out", 1)):
        broker.create_topic(f"{application.id}-{end}", partitions, exact=True)
    project.operations.start(application.instances[0], actor="ann")
    broker.produce(f"{application.id}-in", [(b"key", b"{}"), (b"key", b"first \xff"), (b"key", b"{}")], partition=0)
    first, second = f"{application.id}-in-0@1", f"{application.id}-in-0@3"
    dagster = LiveDagster(tmp_path / "dagster")
    try:
        wait_until(lambda: run_books(project) == [RunBookState.PROPOSED.value], 120, "the proposal")
        with opened(executable) as page:
            _follow(page, dagster.url, application.id, "try", first, "would")
            assert run_books(project) == [RunBookState.PROPOSED.value], "it waits as before"
            assert alerts(project) == {"TASK_PAUSED": AlertState.OPEN.value}
            assert members(broker, application.id)[application.instances[0]]["0_0"] == "PAUSED"

            _follow(page, dagster.url, application.id, "approve", first, *(f"decide.skip_{step.name}" for step in SkipRecord.STEPS))
            assert run_books(project) == [RunBookState.DONE.value]
            wait_until(lambda: members(broker, application.id)[application.instances[0]]["0_0"] == "RUNNING", 60, "the task, which runs")
            see(page, _checks(dagster.url, application.id), "no alert is open", "Passed")
            picture(page, "decision-approved")

            broker.produce(f"{application.id}-in", [(b"key", b"second \xff")], partition=0)
            wait_until(lambda: run_books(project) == ["DONE", "PROPOSED"], 120, "the second proposal")
            _follow(page, dagster.url, application.id, "reject", second, "the code is wrong")
            assert run_books(project) == ["DONE", "REFUSED"]
            see(
                page,
                _checks(dagster.url, application.id),
                f"is paused at {second}",
                "REFUSED (rejected by Ann Lee (dagster run",
                "the code is wrong",
                "Failed",
            )
            _show_decisions(page)
            expect(page.get_by_role("link", name="repair")).to_be_visible(timeout=60_000)
            assert page.get_by_role("link", name="approve").count() == 0, "nothing waits for an approval any more"
            picture(page, "decision-rejected")
            done = {"try": first, "skip": first, "reject": second}
            see(page, f"{dagster.url}/runs", *(f"{verb}: {title(verb, place)[verb]}" for verb, place in done.items()))
            picture(page, "decision-runs")
        assert alerts(project) == {"TASK_PAUSED": AlertState.OPEN.value}
        assert members(broker, application.id)[application.instances[0]]["0_0"] == "PAUSED"
        assert [record.value for record in broker.consume(dead_letter_topic(application.id))] == [b"first \xff"], "once, by the approval"
    finally:
        dagster.stop()


def _checks(url: str, application_id: str) -> str:
    return f"{url}/assets/{application_id}/instances?view=checks&checkDetail=no_open_alerts"


def _show_decisions(page: Page) -> None:
    page.locator("tr", has_text="6.1 decisions").last.get_by_text("[Show Markdown]").click()


def _follow(page: Page, url: str, application_id: str, decision: str, place: str, *texts: str) -> None:
    """Follow an alert's link to a form that is filled in, launch it by a click, and wait for the run's end and these texts on its time
    line. Give a reason where nothing else would say why."""
    see(page, _checks(url, application_id), f"is paused at {place}")
    _show_decisions(page)
    page.get_by_role("link", name=decision, exact=True).click()
    expect(page.get_by_text("# first bytes of the value").first).to_be_visible(timeout=60_000)
    if decision == "reject":
        page.get_by_text("reason").last.click()
        page.keyboard.press("End")
        page.keyboard.press("ArrowLeft")
        page.keyboard.type("the code is wrong")
        page.keyboard.press("ArrowDown")  # to the next field, `by`
        page.keyboard.press("End")
        page.keyboard.press("ArrowLeft")
        page.keyboard.type("Ann Lee")
    picture(page, f"decision-{decision}-form")
    page.get_by_role("button", name="Launch run").first.click(timeout=60_000)
    expect(page.get_by_text("RUN_SUCCESS").first).to_be_visible(timeout=120_000)
    for text in texts:
        expect(page.get_by_text(text).first).to_be_visible(timeout=60_000)
    picture(page, f"decision-{decision}-run")


def _now(dagster: LiveDagster, application_id: str) -> str | None:
    """Return the sentence with which the application's overview begins."""
    return next(iter(dagster.observations(application_id, "status")), None)


def _kill_within_the_run_book(project: Project, dagster: LiveDagster) -> None:
    """Kill all of Dagster as soon as the policy's run-book has started, and start it again; let the time pass after which a run counts as
    killed."""
    wait_until(lambda: run_books(project) == [RunBookState.RUNNING.value], 120, "the start of the run-book")
    dagster.kill()
    with project.control_plane.writing() as session:
        (run,) = session.scalars(select(RunBookRun))
        assert run.state == RunBookState.RUNNING.value, "killed in the middle"
        earlier = 2 * pauses.PATIENCE
        run.requested_at, run.started_at = run.requested_at - earlier, now() - earlier
        for step in run.steps:
            step.started_at, step.ended_at = step.started_at - earlier, step.ended_at and step.ended_at - earlier
    dagster.start()


def _repair(url: str, application_id: str, name: str, place: str) -> None:
    """Repair in a real browser: find the alert on the asset's page, start the run-book by clicks, wait for the check to turn green. Keep
    screenshots."""
    executable = chromium()
    if executable is None:
        pytest.skip(f"everything but the pages in a browser held; {NO_BROWSER}")
    asset = f"{url}/assets/{application_id}/instances"
    with opened(executable) as page:
        see(page, f"{asset}?view=partitions&partition={name}", name, "task_count", "resident_bytes", "PAUSED")
        picture(page, "dagster-instances")
        tables_fit(page)
        see(page, f"{url}/assets/{application_id}/status", "1 now", f"0_1 at {place}, since", "never started", "records_in_per_s")
        picture(page, "dagster-status")
        tables_fit(page)
        page.get_by_role("button", name="Plots").first.click()
        expect(page.get_by_text("resident_bytes").first).to_be_visible(timeout=60_000)
        picture(page, "dagster-status-plots")

        page.goto(f"{asset}?view=checks")
        page.get_by_text("no_open_alerts").first.click()
        for text in (
            f"is paused at {place}",
            "Failed",
            "nonsense \\xff",
            "6e 6f 6e 73 65 6e 73 65 20 ff",
            "penstock run-book skip-record",
            "1 what",
            "6.1 decisions",
        ):
            expect(page.get_by_text(text).first).to_be_visible(timeout=60_000)
        picture(page, "dagster-alert")
        tables_fit(page)
        page.locator("tr", has_text="6.1 decisions").last.get_by_text("[Show Markdown]").click()
        picture(page, "dagster-alert-decisions", whole=False)
        page.locator("a[href*='/guess/skip_record/playground/setup']", has_text="repair").click()
        expect(page.get_by_text("# first bytes of the value").first).to_be_visible(timeout=60_000)
        picture(page, "dagster-page")
        page.get_by_role("button", name="Launch run").first.click(timeout=60_000)
        expect(page.get_by_text("RUN_SUCCESS").first).to_be_visible(timeout=120_000)
        for step in SkipRecord.STEPS:
            expect(page.get_by_text(f"skip.{step.name}").first).to_be_visible(timeout=60_000)
        picture(page, "dagster-run-book")
        see(page, f"{url}/runs", f"skip: {title(SkipRecord.NAME, place)['skip']}", f"penstock/record: {place}")
        picture(page, "dagster-runs")

        see(page, f"{asset}?view=checks&checkDetail=no_open_alerts", "no alert is open", "Passed")
        picture(page, "dagster-checks")
