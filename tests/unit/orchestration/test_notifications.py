"""Messages through apprise, to a real web server on this machine."""

from __future__ import annotations

import base64
import json
import socket
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Event, Thread

import pytest

from penstock.orchestration.alerts import notifications
from penstock.orchestration.alerts.alerts import NewAlert, open_alert, resolve
from penstock.orchestration.alerts.notifications import NotificationError, notify_pending, send
from penstock.orchestration.alerts.pauses import pause_alert
from penstock.orchestration.database import ControlPlane
from penstock.orchestration.database.models import Alert
from penstock.orchestration.database.models import Event as EventRow
from penstock.orchestration.declarations.applications import Applications
from penstock.orchestration.declarations.policies import Severity
from penstock.runtime.model.errors import DeserializationError
from penstock.runtime.tasks.incidents import PausePoint
from tests.support.raw_messages import Raw


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
    send(["${HOOK}"], "task 0_0 is paused", "offset: 5", Severity.ERROR)
    (message,) = hook.received
    assert (message["title"], message["message"], message["type"]) == ("task 0_0 is paused", "offset: 5", "failure")


def test_the_rules_of_streams_toml_select_the_receivers(hook: WebHook, control_plane: ControlPlane) -> None:
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
    assert notify_pending(control_plane, declared.notifications, send, at=at) == 3
    assert sorted((path, message["title"]) for path, message in zip(hook.paths, hook.received, strict=True)) == [
        ("/errors", "a: alert 0"),
        ("/lag", "a: alert 1"),
        ("/lag", "b: alert 2"),
        ("/of-b", "b: alert 2"),
    ]
    reported = hook.received[hook.paths.index("/errors")]["message"]
    assert "truncated" not in reported
    for part in ("error: not JSON", "seen: once, 2026-11-21", "penstock run-book skip-record a 0_0 --record in-0@0"):
        assert part in reported


def test_an_alert_that_is_over_before_it_could_be_sent_is_not_sent(hook: WebHook, control_plane: ControlPlane) -> None:
    text = f'[[notifications]]\nurls = ["json://127.0.0.1:{hook.server_port}/all"]\nseverity = "INFO"\n'
    rules, at = Applications.parse(text, Path("streams.toml")).notifications, datetime(2026, 11, 21, tzinfo=UTC)
    with control_plane.writing() as session:
        for number in range(3):
            open_alert(session, NewAlert(f"o{number}", "LAG", Severity.WARN, "a", f"{number}", f"alert {number}"), actor="sensor", at=at)
        resolve(session, 1, actor="sensor", at=at, resolution="over")

    def send_while_the_last_ends(urls: Sequence[str], title: str, body: str, severity: Severity) -> None:
        send(urls, title, body, severity)
        with control_plane.writing() as session:
            resolve(session, 3, actor="sensor", at=at, resolution="over while another was sent")

    assert notify_pending(control_plane, rules, send_while_the_last_ends, at=at) == 1
    assert [message["title"] for message in hook.received] == ["a: alert 1"]


def test_addresses_that_do_not_end_hold_no_tick(control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a tick has no time for is sent by the next one, before those that failed."""
    text = '[[notifications]]\nurls = ["json://127.0.0.1:1"]\nseverity = "INFO"\n'
    rules, at = Applications.parse(text, Path("streams.toml")).notifications, datetime(2026, 11, 21, tzinfo=UTC)
    with control_plane.writing() as session:
        for number in range(4):
            open_alert(session, NewAlert(f"o{number}", "LAG", Severity.WARN, "a", f"{number}", f"alert {number}"), actor="sensor", at=at)
    tried: list[str] = []

    def hang(urls: Sequence[str], title: str, body: str, severity: Severity) -> None:
        tried.append(title)
        raise NotificationError("late")

    for _ in range(2):
        notify_pending(control_plane, rules, hang, at=at, clock=lambda: len(tried) * notifications.TICK_SECONDS * 0.6)
    assert tried == ["a: alert 0", "a: alert 1", "a: alert 2", "a: alert 3"]


def test_a_redirect_is_not_followed_unless_the_address_says_so(hook: WebHook) -> None:
    """The receiver of a message would decide who gets it."""

    class Elsewhere(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(307)
            self.send_header("Location", f"http://127.0.0.1:{hook.server_port}/elsewhere")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            address = f"json://127.0.0.1:{server.server_port}"
            with pytest.raises(NotificationError, match="did not take the message"):
                send([address], "title", "body", Severity.WARN)
            assert hook.paths == []
            send([f"{address}?redirect=yes"], "title", "body", Severity.WARN)
            assert hook.paths == ["/elsewhere"]
        finally:
            server.shutdown()
            thread.join()


def test_an_address_that_answers_byte_by_byte_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifications, "SEND_SECONDS", 1.0)
    ended = Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection, suppress(OSError):
                connection.sendall(b"HTTP/1.1 200 OK\r\n")
                while not ended.wait(0.1):
                    connection.sendall(b"X-More: of it\r\n")

        thread = Thread(target=answer)
        thread.start()
        try:
            with pytest.raises(NotificationError, match="has not taken the message within 1 s"):
                send([f"json://127.0.0.1:{server.getsockname()[1]}"], "title", "body", Severity.WARN)
        finally:
            ended.set()
            thread.join()


def paused(key: bytes | None, value: bytes | None, error: BaseException, reason: str = "deserialization") -> Alert:
    """An alert as the sensors open it for a record that cannot be read, or processed."""
    unread = DeserializationError("cannot be read", node="orders", part="value", serde="json(Order)")
    unread.__cause__ = error
    point = PausePoint.of(Raw(5, key, value, of="in"), unread, reason, since_ms=1)
    at = datetime(2026, 11, 21, tzinfo=UTC)
    event = EventRow(
        id="e", application="a", instance="a-1", task="0_0", kind="TASK_PAUSED", at=at, incarnation=1, sequence=1, payload=point.payload()
    )
    return of(pause_alert(event))


def of(new: NewAlert) -> Alert:
    """The alert as it is opened."""
    fields = {name: getattr(new, name) for name in ("occurrence", "kind", "application", "subject", "title", "instance", "task", "detail")}
    times = {"opened_at": new.seen_at, "last_seen_at": new.seen_at}
    return Alert(id=1, severity=new.severity.value, state="OPEN", count=1, notify_attempts=0, **fields, **times)


def of_parsing(read: Callable[[bytes], object], value: bytes) -> Exception:
    with pytest.raises(Exception) as caught:  # whatever the parser raises
        read(value)
    return caught.value


PERSON = b'{"name": "Erika Mustermann", "iban": "DE02120300000000202051", "age": 4711'


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (PERSON, of_parsing(json.loads, PERSON)),
        (PERSON, ValueError(f"not an order: {PERSON!r}")),
        (PERSON, ValueError(f"not an order: {PERSON.decode().upper()}")),
        (PERSON, ValueError("not an order: " + PERSON.hex())),
        (PERSON, ValueError("not an order: " + PERSON.hex(" "))),
        (PERSON, ValueError("not an order: " + base64.b64encode(PERSON).decode())),
        (PERSON, KeyError("Erika Mustermann")),
        (PERSON, ValueError("customer Mustermann of age 4711 with DE02120300000000202051")),
        (PERSON + b"x" * 5000, ValueError("customer Erika Mustermann of age 4711")),
        (PERSON + b"x" * 600_000, ValueError("customer Erika Mustermann of age 4711")),
        (b"4711", of_parsing(lambda value: int(value.decode() + "?"), b"4711")),
        (b"\xff\xfeErika Mustermann", of_parsing(lambda value: value.decode(), b"\xff\xfeErika Mustermann")),
        (None, ValueError("customer-Mustermann is gone")),
    ],
)
def test_a_message_carries_coordinates_and_error_but_no_record(value: bytes | None, error: Exception) -> None:
    """Nor what an error quotes of it, whole or in part, in whatever notation."""
    alert = paused(b"customer-Mustermann", value, error)
    plain, whole = (
        notifications.message_title(alert, include_record=chosen) + "\n" + notifications.message_body(alert, include_record=chosen)
        for chosen in (False, True)
    )
    for part in ("Mustermann", "4711", "DE0212", PERSON[:12].hex(), PERSON[:12].hex(" "), base64.b64encode(PERSON[:12]).decode()):
        assert part.casefold() not in plain.casefold()
    for part in ("in-0@5", type(error).__name__, "task 0_0", "offset: 5", "serde: json(Order)", "node: orders", "part: value"):
        assert part in plain
    assert "Mustermann" in whole
    assert ("\nstack: " in plain, "\nstack: " in whole) == (False, True)
    assert ("\nlocation: " in plain) == (error.__traceback__ is not None), "where an error was raised is no secret"


def test_a_rule_decides_whether_its_messages_carry_the_record(hook: WebHook, control_plane: ControlPlane) -> None:
    address = f"json://127.0.0.1:{hook.server_port}"
    text = f'[[notifications]]\nurls = ["{address}/plain"]\n[[notifications]]\nurls = ["{address}/whole"]\ninclude-record = true\n'
    alert = paused(b"k", PERSON, of_parsing(json.loads, PERSON))
    at = datetime(2026, 11, 21, tzinfo=UTC)
    with control_plane.writing() as session:
        session.add(alert)
    assert notify_pending(control_plane, Applications.parse(text, Path("streams.toml")).notifications, send, at=at) == 1
    plain, whole = (json.dumps(hook.received[hook.paths.index(path)]) for path in ("/plain", "/whole"))
    assert "Mustermann" not in plain and "Mustermann" in whole
    assert "in-0@5" in plain and "JSONDecodeError" in plain


@pytest.mark.parametrize(
    ("value", "error", "reason"),
    [
        ((4711).to_bytes(8, "big"), ValueError("4711 is too much"), "deserialization"),  # of a number
        (b"\x00\x00\x00\x00\x01\xce\x49", ValueError("4711 is too much"), "deserialization"),  # of a registry's serde
        (zlib.compress(PERSON), ValueError("Erika Mustermann is unknown"), "deserialization"),
        (b'{"name": "M\\u00fcller"}', ValueError("Müller is unknown"), "deserialization"),
        (b'{"id": 1}', ValueError("the account of Erika Mustermann has 4711"), "processing"),  # of a store, or of another record
        (b'{"id": 1}', TypeError("cannot write Total('Mustermann', 4711)"), "production"),
    ],
)
def test_nor_does_it_carry_what_the_bytes_mean_or_what_other_records_hold(value: bytes, error: Exception, reason: str) -> None:
    alert = paused(b"k", value, error, reason)
    message = notifications.message_title(alert, include_record=False) + "\n" + notifications.message_body(alert, include_record=False)
    for part in ("Mustermann", "4711", "Müller"):
        assert part not in message
    assert "in-0@5" in message and f"{type(error).__name__}: …" in message


@pytest.mark.parametrize(
    ("kind", "title", "detail", "kept"),
    [
        (
            "INSTANCE_DIED",
            "instance a-1 (process 7) died by itself, with status 1: code of the application raised Unknown: Mustermann",
            {"pid": 7, "why": "a punctuator failed: KeyError: 'Mustermann'"},
            ["with status 1: code of the application raised Unknown: …", "a punctuator failed: KeyError: …"],
        ),
        (
            "INSTANCE_DIED",
            "instance a-1 (process 7) died: in-0@5: JSONDecodeError: no order of Mustermann",
            {"pid": 7, "log_end": "Mustermann", "why": "task 0_0, record in-0@5: value cannot be read: ValueError: Mustermann: 4711"},
            ["in-0@5: JSONDecodeError", "record in-0@5: …", "pid: 7"],
        ),
        (
            "INSTANCE_DIED",
            "instance a-1 (process 7) died: task 0_0, node N (map at t.py:3), record in-0@5, at /a b/t.py:4 in f.<locals>.<lambda>: "
            "KeyError: Mustermann, at Mustermann:1 in Mustermann: x",
            {"pid": 7},
            ["died: task 0_0, node N (map at t.py:3), record in-0@5, at /a b/t.py:4 in f.<locals>.<lambda>: KeyError: …"],
        ),
        (
            "BAD_DEPLOY",
            "it looks like a bad deploy: the budget is used up. Last error: no Mustermann",
            {
                "why": "the budget is used up",
                "error_type": "KeyError",
                "error": "no Mustermann",
                "location": "t.py:4 in f",
                "tasks": {"0_0": "in-0@5"},
            },
            ["the budget is used up", "Last error, at t.py:4 in f: KeyError", "0_0: in-0@5"],
        ),
        (
            "TABLE_DIFFERS",
            "table orders is not what its changelog says (1 missing): Mustermann",
            {"counts": {"missing": 1}, "differences": "Mustermann"},
            ["1 missing"],
        ),
        ("LAG", "application a lags", {"problems": ["0_0: 12 records"]}, ["application a lags", "0_0: 12 records"]),
    ],
)
def test_other_alerts_carry_no_record_either(kind: str, title: str, detail: dict[str, object], kept: list[str]) -> None:
    at = datetime(2026, 11, 21, tzinfo=UTC)
    alert = of(NewAlert("o", kind, Severity.ERROR, "a", "orders", title, "a-1", "0_0", detail, seen_at=at))
    message = notifications.message_title(alert, include_record=False) + "\n" + notifications.message_body(alert, include_record=False)
    assert "Mustermann" not in message
    for part in kept:
        assert part in message


def test_a_server_that_is_away_is_an_error() -> None:
    with pytest.raises(NotificationError, match="did not take the message"):
        send(["json://127.0.0.1:1"], "title", "body", Severity.WARN)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("nonsense://user:secret@host", "nonsense://… is not an address"),
        ("json://${NOT_SET_ANYWHERE}", "NOT_SET_ANYWHERE. is not set in the environment"),
        ("${HOOK}", r"the address \$\{HOOK\} has no scheme"),
        ("user:secret@host", "the address has no scheme"),
    ],
)
def test_an_address_that_cannot_be_used_is_explained_without_its_secrets(
    url: str, says: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HOOK", "secret-of-a-hook")
    with pytest.raises(NotificationError, match=says) as caught:
        send([url], "title", "body", Severity.WARN)
    assert "secret" not in str(caught.value) + caplog.text
