"""Dagster's pages in a real browser while an instance is drained, a task is paused on another, and the broker is away. No page shows an
old state as the state now."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page

from penstock.orchestration.embedded.kafka import EmbeddedBroker
from tests.dagster.browsing import NO_BROWSER, chromium, opened, picture, see, tables_fit
from tests.dagster.live import LiveDagster
from tests.dagster.telling import Project, project_on
from tests.support import Kafka, wait_until
from tests.support.instances import members


@pytest.fixture
def project(tmp_path: Path, own_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    """Yield a project of two instances, where operators decide about bad records."""
    kafka = Kafka(own_broker.bootstrap_servers)
    with project_on(kafka, tmp_path, monkeypatch, "order-enrichment-for-settlement-europe", repairs=False) as project:
        yield project


@pytest.mark.nightly
def test_pages_show_what_is_so_now_and_say_what_cannot_be_known(project: Project, own_broker: EmbeddedBroker, tmp_path: Path) -> None:
    executable = chromium()
    if executable is None:
        pytest.skip(NO_BROWSER)
    application, broker = project.application, project.broker
    for end, partitions in (("in", 2), ("out", 1)):
        broker.create_topic(f"{application.id}-{end}", partitions, exact=True)
    for name in application.instances:
        project.operations.start(name, actor="ann")

    def running() -> dict[str, str]:
        tasks = {name: list(states) for name, states in members(broker, application.id).items()}
        return {task: name for name, states in tasks.items() for task in states} if all(len(each) == 1 for each in tasks.values()) else {}

    owners = wait_until(lambda: (found := running()) and len(found) == 2 and found, 90, "a task on each instance")
    paused_on, drained = owners["0_1"], owners["0_0"]  # type: ignore[index]  # it is not empty then
    broker.produce(f"{application.id}-in", [(b"key", b"{}"), (b"key", b"nonsense \xff")], partition=1)
    wait_until(lambda: members(broker, application.id)[paused_on]["0_1"] == "PAUSED", 60, "the pause")
    place = f"0_1 at {application.id}-in-1@1, since"

    dagster = LiveDagster(tmp_path / "dagster")
    status, asset = f"{dagster.url}/assets/{application.id}/status", f"{dagster.url}/assets/{application.id}/instances"
    try:
        with opened(executable) as page:
            dagster.launch("instance_checks")
            _shows_instance(page, asset, drained, "RUNNING", "records_out_per_s")

            project.operations.drain(application, drained, actor="ann")
            dagster.launch("instance_checks")
            _shows_instance(page, asset, drained, "stopped")
            picture(page, "screen-drained")
            _shows_instance(page, asset, paused_on, "RUNNING", "PAUSED at")
            see(page, status, f"1 task is paused: {place}", "stopped", "2 active, 1 paused")
            tables_fit(page)

            broker_status = own_broker.status()
            assert broker_status is not None
            os.kill(broker_status.pid, signal.SIGKILL)
            dagster.launch("instance_checks")
            see(
                page,
                status,
                f"cannot be known: no broker answers at {own_broker.bootstrap_servers}; as last known: 1 task is paused: {place}",
            )
            picture(page, "screen-broker-away")
            _shows_instance(page, asset, paused_on, "unknown")
            _shows_instance(page, asset, drained, "stopped")
            see(page, f"{asset}?view=checks", "cannot be known: no broker answers")
            tables_fit(page)

            own_broker.start()

            def paused_again() -> bool:
                """Look as the schedule does, again and again: after an outage that was longer than the session, the instance joins as a new
                member, and until then the record of the former one says PAUSED, and the instance is silent."""
                dagster.launch("instance_checks")
                said = [each for each in dagster.observations(application.id, "instances") if each.startswith(paused_on)]
                sentence = dagster.observations(application.id, "status")[0]
                return said[0] == f"{paused_on}: RUNNING" and sentence.startswith(f"1 task is paused: {place}")

            wait_until(paused_again, 120, "the paused task again")
            see(page, status, f"1 task is paused: {place}")
            assert page.get_by_text("cannot be known").count() == 0
            _shows_instance(page, asset, paused_on, "RUNNING", "PAUSED at")
    finally:
        dagster.stop()


def _shows_instance(page: Page, asset: str, name: str, state: str, *texts: str) -> None:
    """Check that the page of an instance shows this state, as its only one, within 150 s: it is observed once a minute, and a page that is
    open need not show a later observation by itself."""
    row = page.locator("tr", has=page.get_by_text("state", exact=True)).first

    def shown() -> bool:
        see(page, f"{asset}?view=partitions&partition={name}", name, "task_count", *texts)
        return state in row.inner_text()

    wait_until(shown, 150, f"{state} on the page of {name}")
    tables_fit(page)
