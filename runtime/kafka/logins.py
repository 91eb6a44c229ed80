"""Logins with a password in a file (`${file:PATH}`): clients take up a new one without a restart.

A password is rotated by replacing its file. The file is read again every `READ_AGAIN_SECONDS` while a client that uses it exists. Open
connections stay as they are: a broker asks for the login when a client connects. Users and passwords of SASL PLAIN and SCRAM can be changed
so; librdkafka cannot change the other settings of an existing client (`ssl.*`, `sasl.oauthbearer.client.secret`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar, cast
from weakref import WeakKeyDictionary

from confluent_kafka import Consumer, KafkaException, Producer

from penstock.runtime.config.environment import is_from_file, read_again
from penstock.runtime.model.errors import StreamsConfigError

logger = logging.getLogger(__name__)

READ_AGAIN_SECONDS = 2.0
_USER, _PASSWORD = "sasl.username", "sasl.password"


class Client(Protocol):
    """A client whose login can be changed."""

    def set_sasl_credentials(self, username: str, password: str) -> None: ...


Value = TypeVar("Value")
AnyClient = TypeVar("AnyClient", bound=Client)


class FollowedConsumer(Consumer):
    """A consumer that can be weakly referred to, which the client's own class cannot."""


class FollowedProducer(Producer):
    """A producer that can be weakly referred to."""


def current(properties: Mapping[str, Value]) -> dict[str, Value]:
    """Return the properties of a client with the login that the files contain now. If one cannot be read, a warning is logged and the login
    of the properties stays: `followed` corrects it as soon as the file can be read."""
    try:
        return {name: cast(Value, read_again(name, value)) if name in (_USER, _PASSWORD) else value for name, value in properties.items()}
    except StreamsConfigError as error:  # perhaps it is being replaced
        logger.warning("%s; a client begins with an earlier login", error)
        return dict(properties)


@dataclass(slots=True)
class _Login:
    """`user` and `password` as configured, with their templates; `given`: the login that the client has."""

    user: object
    password: object
    given: tuple[str, str]
    unreadable: str = ""

    def renew(self, client: Client) -> bool:
        """Give the client the login that the files contain now. Return True if it has changed."""
        try:
            now = str(read_again(_USER, self.user)), str(read_again(_PASSWORD, self.password))
        except StreamsConfigError as error:  # perhaps it is being replaced
            if str(error) != self.unreadable:
                self.unreadable = str(error)
                logger.warning("%s; clients keep the login that they have", error)
            return False
        self.unreadable = ""
        if now == self.given:
            return False
        client.set_sasl_credentials(*now)
        self.given = now
        return True


class _Renewal:
    """The thread that reads the files again. It begins with the first client and lives as long as the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._logins: WeakKeyDictionary[Client, _Login] = WeakKeyDictionary()
        self._thread: threading.Thread | None = None

    def add(self, client: Client, login: _Login) -> None:
        with self._lock:
            self._logins[client] = login
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="penstock-logins", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        pause = threading.Event()
        while not pause.wait(READ_AGAIN_SECONDS):
            self._renew_all()

    def _renew_all(self) -> None:
        with self._lock:
            logins = list(self._logins.items())
        renewed = 0
        for client, login in logins:
            try:
                renewed += login.renew(client)
            except (RuntimeError, KafkaException) as error:  # RuntimeError: it is closed
                logger.debug("%s: %s", type(client).__name__, error)
                with self._lock:
                    self._logins.pop(client, None)
        if renewed:
            logger.info("a login in a file has changed: %d Kafka clients log in with it from now on", renewed)


_RENEWAL = _Renewal()


def followed(client: AnyClient, properties: Mapping[str, object]) -> AnyClient:
    """Give the client each new login of the file that its properties name, if they name one; return the client. `properties`: those that it
    was made with (`current`). Its class must allow weak references (`FollowedConsumer`, `FollowedProducer`)."""
    user, password = properties.get(_USER), properties.get(_PASSWORD)
    if is_from_file(user) or is_from_file(password):
        _RENEWAL.add(client, _Login(user, password, (str(user), str(password))))
    return client
