"""Logins from files: who has a new password, and when. The files are real, the clients are not."""

from __future__ import annotations

import gc
import logging
import weakref
from pathlib import Path

import pytest

from penstock.runtime.config.environment import resolved
from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.kafka import logins
from penstock.runtime.kafka.connection import Connection
from penstock.runtime.kafka.logins import current, followed
from tests.support import wait_until


class Client:
    """Notes the logins that it is given; `closed`: as a client of Kafka behaves then."""

    def __init__(self) -> None:
        self.given: list[tuple[str, str]] = []
        self.closed = False

    def set_sasl_credentials(self, username: str, password: str) -> None:
        if self.closed:
            raise RuntimeError("Handle has been closed")
        self.given.append((username, password))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logins, "READ_AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(logins, "_RENEWAL", logins._Renewal())


def settings(file: Path) -> StreamsConfig:
    given = {"application.id": "a", "bootstrap.servers": "k:1", "sasl.username": "ann", "sasl.password": f"${{file:{file}}}"}
    return StreamsConfig(resolved(given))


def test_clients_have_each_new_password_and_new_ones_begin_with_it(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("first\n")
    properties = settings(file).producer_properties()
    client, closed, other = Client(), Client(), Client()
    closed.closed = True
    for each in (closed, client):
        followed(each, properties)
    followed(other, {**properties, "sasl.password": "fixed"})
    for password in ("second", "third"):
        file.write_text(password)
        wait_until(lambda: client.given[-1:] == [("ann", password)], 10, "the login")  # noqa: B023 (called in this round)
    assert client.given == [("ann", "second"), ("ann", "third")] and not other.given
    assert current(properties)["sasl.password"] == "third"
    assert Connection.of(properties).client({})["sasl.password"] == "third"
    assert properties["sasl.password"] == "first"


def test_a_file_that_is_away_is_named_once_and_the_login_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "password"
    file.write_text("first")
    properties = settings(file).producer_properties()
    client = followed(Client(), properties)
    with caplog.at_level(logging.WARNING):
        file.unlink()
        wait_until(lambda: caplog.messages, 10, "a warning")
        assert current(properties)["sasl.password"] == "first", "a client that is made meanwhile"
        (tmp_path / "new").write_text("second")
        (tmp_path / "new").replace(file)
        wait_until(lambda: client.given, 10, "the login")
    assert client.given == [("ann", "second")]
    warning, other = caplog.messages
    assert other.endswith("; a client begins with an earlier login")
    assert warning == f"sasl.password: ${{file:{file}}} cannot be read: No such file or directory; clients keep the login that they have"


def test_a_client_that_nobody_uses_is_not_kept(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("first")
    clients = [followed(Client(), settings(file).producer_properties())]
    file.write_text("second")
    wait_until(lambda: clients[0].given, 10, "a round")
    left = weakref.ref(clients.pop())

    def is_gone() -> bool:
        gc.collect()
        return left() is None

    wait_until(is_gone, 10, "the end of the client")
