"""Messages through apprise, to a real web server on this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from orchestration.alerts import NewAlert, open_alert
from orchestration.applications import Applications
from orchestration.control_plane import ControlPlane
from orchestration.notifications import Apprise, NotificationError, notify_pending
from orchestration.policies import Severity


class WebHook(HTTPServer):
    """Keeps what is posted to it."""

    received: list[dict[str, str]]
    paths: list[str]


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, WebHook)
        self.server.paths.append(self.path)
        self.server.received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing on standard error."""


@pytest.fixture
def hook() -> Iterator[WebHook]:
    server = WebHook(("127.0.0.1", 0), _Handler)
    server.received, server.paths = [], []
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_message_arrives_with_title_body_and_severity(hook: WebHook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK", f"json://127.0.0.1:{hook.server_port}/alerts")
    Apprise().send(["${HOOK}"], "task 0_0 is paused", "offset: 5", Severity.ERROR)
    (message,) = hook.received
    assert (message["title"], message["message"], message["type"]) == ("task 0_0 is paused", "offset: 5", "failure")


def test_the_rules_of_streams_toml_decide_who_is_told(hook: WebHook, control_plane: ControlPlane) -> None:
    """By severity, kind and application; the message says what was seen and what to type next."""
    address = f"json://127.0.0.1:{hook.server_port}"
    rules = [
        f'[[notifications]]\nurls = ["{address}/errors"]\nseverity = "ERROR"\n',
        f'[[notifications]]\nurls = ["{address}/lag"]\nkinds = ["LAG"]\n',
        f'[[notifications]]\nurls = ["{address}/of-b"]\nseverity = "INFO"\napplications = ["b"]\n',
    ]
    text = "".join(f'[applications.{name}]\nfactory = "m:f"\ninstances = ["{name}-1"]\n' for name in "ab") + "".join(rules)
    declared = Applications.parse(text, Path("streams.toml"))
    at = datetime(2026, 11, 21, tzinfo=UTC)
    with control_plane.writing() as session:
        for number, (kind, severity, application) in enumerate(
            [("TASK_PAUSED", Severity.ERROR, "a"), ("LAG", Severity.WARN, "a"), ("LAG", Severity.WARN, "b"), ("OTHER", Severity.WARN, "a")]
        ):
            bad = {"value_base64": "eyJ0cnVuY2F0ZWQ=", "error": "not JSON"}
            new = NewAlert(f"o{number}", kind, severity, application, f"in-0@{number}", f"alert {number}", f"{application}-1", "0_0", bad)
            open_alert(session, new, actor="sensor", at=at)
    assert notify_pending(control_plane, declared.notifications, Apprise(), at=at) == 3
    assert sorted((path, message["title"]) for path, message in zip(hook.paths, hook.received, strict=True)) == [
        ("/errors", "a: alert 0"),
        ("/lag", "a: alert 1"),
        ("/lag", "b: alert 2"),
        ("/of-b", "b: alert 2"),
    ]
    told = hook.received[hook.paths.index("/errors")]["message"]
    for part in ('value: {"truncated', "error: not JSON", "seen: once, 2026-11-21", "penstock run-book skip-record a 0_0 --record in-0@0"):
        assert part in told


def test_a_server_that_is_away_is_an_error() -> None:
    with pytest.raises(NotificationError, match="did not take the message"):
        Apprise().send(["json://127.0.0.1:1"], "title", "body", Severity.WARN)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("nonsense://user:secret@host", "nonsense://… is not an address"),
        ("json://${NOT_SET_ANYWHERE}", "the environment has no NOT_SET_ANYWHERE"),
    ],
)
def test_an_address_that_cannot_be_used_is_explained_without_its_secrets(url: str, says: str) -> None:
    with pytest.raises(NotificationError, match=says) as caught:
        Apprise().send([url], "title", "body", Severity.WARN)
    assert "secret" not in str(caught.value)
