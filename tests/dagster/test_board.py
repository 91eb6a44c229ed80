"""The live board on real parts: `penstock board` as a process, a broker of its own, real instances, a real browser."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest
from playwright.sync_api import expect

from penstock.orchestration.board.follower import Follower
from penstock.orchestration.board.state import BoardState, Subject
from penstock.orchestration.embedded.cluster import EmbeddedCluster
from penstock.orchestration.embedded.kafka import BrokerStatus, EmbeddedBroker
from penstock.orchestration.embedded.ports import free_port, is_free
from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.coordination.topics import coordination_topic
from penstock.runtime.model.events import events_topic
from tests.dagster.browsing import NO_BROWSER, chromium, opened, picture
from tests.support import PATIENCE, ROOT, Kafka, unique, wait_until

TOKEN = "a-token-that-nobody-may-see"
SECRET = "word-that-nobody-may-see"
HOSTILE = b'<img src=x onerror="document.title=1">\xff'
STREAMS_TOML = """
[applications.{application}]
factory = "tests.dagster.topology:build"
instances = 2

[applications.{application}.config]
"bootstrap.servers" = "{bootstrap_servers}"
"deserialization.exception.handler" = "penstock.LogAndPauseExceptionHandler"
"client.tag.zone" = "${{PENSTOCK_TEST_SECRET}}"
"http.token" = "${{PENSTOCK_TEST_SECRET}}"
"""


def penstock(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "penstock.orchestration", *arguments]


@contextmanager
def board(environment: dict[str, str], application: str, log: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Run the board; yield its process, and the URL that it has printed."""
    arguments = penstock("board", application, "--port", str(free_port()), "--dagster", "http://dagster.example")
    with log.open("wb") as output, subprocess.Popen(arguments, env=environment, cwd=ROOT, stdout=output, stderr=output) as process:
        try:
            [url] = wait_until(lambda: re.findall(r"http://\S+", log.read_text()), 60, "the URL")
            wait_until(lambda: answers(url), 30, "an answer of the board")
            yield process, url
        finally:
            process.kill()


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url.partition("#")[0], timeout=5):
            return True
    except OSError:
        return False


def environment_of(application: str, streams: Path, folder: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PENSTOCK_STREAMS": str(streams),
        "PENSTOCK_HOME": str(folder / "home"),
        "PENSTOCK_TEST_APPLICATION": application,
        "PENSTOCK_TEST_SECRET": SECRET,
        "PENSTOCK_BOARD_TOKEN": TOKEN,
    }


def ran(environment: dict[str, str], *arguments: str) -> None:
    """Run a command of penstock, which has to succeed."""
    done = subprocess.run(penstock(*arguments), env=environment, cwd=ROOT, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr


def test_the_board_shows_a_pause_a_scale_out_and_a_broker_that_is_away(
    own_broker: EmbeddedBroker, tmp_path: Path, application_id: str
) -> None:
    executable = chromium()
    if executable is None:
        pytest.skip(NO_BROWSER)
    kafka, application = Kafka(own_broker.bootstrap_servers), unique("shop")
    for end, partitions in (("in", 4), ("out", 1)):
        kafka.create_topic(f"{application}-{end}", partitions, exact=True)
    streams = tmp_path / "streams.toml"
    streams.write_text(STREAMS_TOML.format(application=application, bootstrap_servers=own_broker.bootstrap_servers))
    environment = environment_of(application, streams, tmp_path)

    command = partial(ran, environment)
    received: list[str] = []
    with ExitStack() as stack:
        process, url = stack.enter_context(board(environment, application, tmp_path / "board.log"))
        page = stack.enter_context(opened(executable))
        page.set_default_timeout(30_000 * PATIENCE)
        expect.set_options(timeout=30_000 * PATIENCE)
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.goto(url)
        headline = page.locator("#headline")
        expect(headline).to_contain_text(f"penstock start {application}-1")
        assert TOKEN not in page.url, "the address bar does not show the token"

        stack.callback(subprocess.run, penstock("stop"), env=environment, cwd=ROOT, capture_output=True, timeout=180, check=False)
        command("start", f"{application}-1")
        expect(headline).to_have_text("All 4 tasks run on 1 instance")

        kafka.produce(f"{application}-in", [(b"key", b"{}"), (HOSTILE, HOSTILE)], partition=1)
        card = page.locator(".card")
        expect(headline).to_have_text(f"Task 0_1 is paused at {application}-in-1@1")
        expect(card).to_contain_text(r'<img src=x onerror="document.title=1">\xff')
        expect(card.get_by_role("link", name="Dagster")).to_have_attribute("href", re.compile("^http://dagster.example/guess/skip_record/"))
        assert page.locator("main img").count() == 0, "bytes are text, not markup"
        assert page.locator("#flow text", has_text=f"{application}-in").count(), "topics have their users' names"
        picture(page, "board-paused")
        command("run-book", "skip-record", application, "0_1", "--record", f"{application}-in-1@1", "--yes")
        expect(card).to_have_count(0)
        expect(headline).to_have_text("All 4 tasks run on 1 instance")

        command("start", f"{application}-2")
        expect(headline).to_have_text("All 4 tasks run on 2 instances")
        expect(page.locator(".events .kind", has_text="task taken over").first).to_be_visible()
        expect(page.locator(".instance", has_text=f"{application}-2").locator(".tile[data-look=running]").first).to_be_visible()
        received.append(streamed(url, TOKEN))
        for number in (1, 2):
            row = page.locator(".instance", has_text=f"{application}-{number}")
            expect(row.locator(".number", has_text="in/s")).to_have_text(re.compile(r"^\d.*in/s$"))
            expect(row.locator(".number", has_text="out/s")).to_have_text(re.compile(r"^\d.*out/s$"))
        expect(page.locator("#figure-rate")).to_contain_text(re.compile(r"\din, \d\S* out$"))

        status = own_broker.status()
        assert status is not None
        pid = status.pid
        os.kill(pid, signal.SIGSTOP)
        try:
            expect(page.locator("#banner")).to_contain_text(re.compile(r"No broker answers.*What is shown is \d+ s old", re.DOTALL))
            expect(page.locator("#live-text")).to_have_text("not live")
            expect(headline).to_have_text(re.compile(r"^Last known, at \d\d:\d\d:\d\d: All 4 tasks run on 2 instances$"))
            expect(headline).to_have_attribute("data-level", "none")
            picture(page, "board-broker-away")
        finally:
            os.kill(pid, signal.SIGCONT)
        expect(page.locator("#banner")).to_be_hidden()
        expect(headline).to_have_text("All 4 tasks run on 2 instances")
        expect(page.locator("#live-text")).to_have_text("live")
        page.set_viewport_size({"width": 390, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth") == 390, "nothing overflows on a phone"
        picture(page, "board-phone")

        received.append(page.content())
        for secret in (SECRET, TOKEN):
            assert not any(secret in text for text in received), "no secret in the page and in the stream"
        process.send_signal(signal.SIGINT)
        assert process.wait(30 * PATIENCE) == 0
        assert "Traceback" not in (tmp_path / "board.log").read_text()
        expect(page.locator("#banner")).to_contain_text("The board does not answer")
        assert [error for error in errors if "Failed to load resource" not in error and "ERR_" not in error] == []


@pytest.mark.nightly
def test_the_board_goes_on_while_one_of_three_brokers_is_frozen_and_while_it_is_dead(tmp_path: Path) -> None:
    """As `penstock broker start --brokers 3` makes them. Whichever it is, the bootstrap broker too: what comes meanwhile is shown."""
    executable = chromium()
    if executable is None:
        pytest.skip(NO_BROWSER)
    application = unique("shop")
    first = next(port for port in iter(free_port, None) if is_free(port + 1) and is_free(port + 2))
    cluster = EmbeddedCluster(tmp_path / "cluster", range(first, first + 3))
    streams = tmp_path / "streams.toml"
    servers = ",".join(f"127.0.0.1:{port}" for port in range(first, first + 3))
    streams.write_text(STREAMS_TOML.format(application=application, bootstrap_servers=servers))
    environment = environment_of(application, streams, tmp_path)

    command = partial(ran, environment)
    with ExitStack() as stack:
        stack.callback(cluster.stop)
        cluster.start()
        kafka = Kafka(cluster.bootstrap_servers)
        for end, partitions in (("in", 3), ("out", 3)):
            kafka.create_topic(f"{application}-{end}", partitions, exact=True)
        _no_broker_that_hangs_looks_like_all(cluster, kafka)
        _, url = stack.enter_context(board(environment, application, tmp_path / "board.log"))
        page = stack.enter_context(opened(executable))
        page.goto(url)
        stack.callback(subprocess.run, penstock("stop"), env=environment, cwd=ROOT, capture_output=True, timeout=180, check=False)
        command("start", f"{application}-1")
        headline, live = page.locator("#headline"), page.locator("#live-text")

        def shows(text: str) -> None:
            expect(headline).to_have_text(text, timeout=90_000 * PATIENCE)
            expect(live).to_have_text("live", timeout=30_000 * PATIENCE)

        shows("All 3 tasks run on 1 instance")
        status = cluster.brokers[0].status()
        assert status is not None
        os.kill(status.pid, signal.SIGSTOP)
        try:
            kafka.produce(f"{application}-in", [(b"key", HOSTILE)], partition=1)
            shows(f"Task 0_1 is paused at {application}-in-1@0")
            picture(page, "board-one-of-three-frozen")
        finally:
            os.kill(status.pid, signal.SIGCONT)
        wait_until(lambda: cluster.brokers[0].status() is not None, 60, "the broker that was frozen")
        status = cluster.brokers[1].status()
        assert status is not None
        os.kill(status.pid, signal.SIGKILL)
        # The worker may have begun again because of the broker: its task is paused once it has met the record again.
        skip = penstock("run-book", "skip-record", application, "0_1", "--record", f"{application}-in-1@0", "--yes")
        wait_until(
            lambda: subprocess.run(skip, env=environment, cwd=ROOT, capture_output=True, timeout=180, check=False).returncode == 0,
            180,
            "a skip of the record",
        )
        shows("All 3 tasks run on 1 instance")
        expect(page.locator("#banner")).to_be_hidden()
        picture(page, "board-one-of-three-dead")


class _Contacts(BoardState):
    """State that counts the answers of brokers, and keeps what is said while none answers."""

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self.answers = 0
        self.silences: list[str] = []

    def contact(self, now_ms: int, *, missing: bool) -> None:
        super().contact(now_ms, missing=missing)
        self.answers += 1

    def has_answered(self, times: int) -> bool:
        return self.answers >= times

    def lost(self, error: str) -> None:
        super().lost(error)
        self.silences.append(error)


def _no_broker_that_hangs_looks_like_all(cluster: EmbeddedCluster, kafka: Kafka) -> None:
    """Freeze each broker in turn, first the one with the events, before they are read. One of them is the one that the client asks."""
    application = unique("quiet")
    for topic in (coordination_topic(application), events_topic(application)):
        kafka.create_topic(topic, exact=True)
    [events] = kafka.admin.list_topics(events_topic(application), timeout=30).topics[events_topic(application)].partitions.values()
    state = _Contacts(Subject(application))
    follower = Follower(StreamsConfig({"application.id": application, "bootstrap.servers": cluster.bootstrap_servers}), state)
    follower.start()
    try:
        wait_until(lambda: state.answers, 60, "the first answer")
        for _, broker in sorted(enumerate(cluster.brokers, 1), key=lambda numbered: numbered[0] != events.leader):
            status = wait_until(broker.status, 60, "the broker, after it was frozen before")
            assert isinstance(status, BrokerStatus)
            before = state.answers
            os.kill(status.pid, signal.SIGSTOP)
            try:
                wait_until(partial(state.has_answered, before + 4), 60, "answers of the others")
            finally:
                os.kill(status.pid, signal.SIGCONT)
    finally:
        follower.stop()
    assert state.silences == []


def streamed(url: str, token: str) -> str:
    """Return what the stream sends first: the whole document."""
    request = urllib.request.Request(f"{url.partition('#')[0]}stream", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            line: str = answer.readline().decode()
            if '"patch"' in line:
                return line
    raise AssertionError("the stream has sent nothing")
