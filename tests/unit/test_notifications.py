"""Messages through apprise, to a real web server on this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from orchestration.applications import Severity
from orchestration.notifications import Apprise, NotificationError


class WebHook(HTTPServer):
    """Keeps what is posted to it."""

    received: list[dict[str, str]]


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, WebHook)
        self.server.received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing on standard error."""


@pytest.fixture
def hook() -> Iterator[WebHook]:
    server = WebHook(("127.0.0.1", 0), _Handler)
    server.received = []
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
