"""First contact with the brokers at a start: waits for them without a limit, unless they reject this client.

Brokers that do not answer may do so later: they hang, are not started yet, or their name cannot be resolved yet. Brokers that reject the
client's credentials or certificate will do so until the configuration changes, so the start fails. Brokers that are older than those that
the tests are run on are a warning.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.kafka.api_versions import TOO_OLD, ApiVersions
from penstock.runtime.kafka.client_logs import KAFKA_LOGGER
from penstock.runtime.kafka.clients import QUIET, admin_client
from penstock.runtime.kafka.connection import Connection
from penstock.runtime.kafka.failures import Meaning, kafka_error, meaning
from penstock.runtime.model.errors import BrokerUnavailableError, StreamsConfigError

logger = logging.getLogger(__name__)

WARN_SECONDS = 3.0
"""After so long without an answer, the log says so."""
WARN_AGAIN_SECONDS = 30.0
ASK_SECONDS = 2.0
"""Longest wait of one attempt, and so of a stop."""


_REFUSAL_SECONDS = 2.0


def refused_login(connection: Connection) -> KafkaError | None:
    """Return with what the brokers refuse this client's login or certificate, or its issuer a token. A request fails without a word of
    that: librdkafka tries to connect until the request's time is over, and reports refusals apart."""
    if connection.is_plain:
        return None
    heard: list[KafkaError] = []
    settings: dict[str, object] = {**connection.client(QUIET), "error_cb": heard.append}
    admin = AdminClient(settings)  # type: ignore[arg-type]  # the client's types do not know of callbacks
    try:
        admin.list_topics(timeout=_REFUSAL_SECONDS)
    except KafkaException:  # it is known already that no broker answers
        admin.poll(0)
    return next((error for error in heard if Meaning.CLIENT_REFUSED in meaning(error)), None)


class FirstContact:
    """Waits until a broker answers. Used by one thread. `quiet`: nothing is logged; what is wrong is raised."""

    def __init__(self, config: StreamsConfig, give_up: Callable[[], bool], *, quiet: bool = False) -> None:
        self._config = config
        self._client_log = None if quiet else KAFKA_LOGGER
        self._log = logging.Logger("quiet", logging.CRITICAL + 1) if quiet else logger
        self._give_up = give_up
        self._servers = str(config["bootstrap.servers"])
        self._refusals: list[KafkaError] = []
        self._reason = "no connection"
        self._versions = ApiVersions()

    @property
    def refused(self) -> bool:
        """True if the brokers, or the issuer of tokens, have refused this client."""
        return bool(self._refusals)

    def wait(self) -> None:
        """Return when a broker has answered. Raises BrokerUnavailableError when `give_up` returns True, StreamsConfigError if the brokers
        reject this client or the Kafka client its settings."""
        client = admin_client(self._config, {"error_cb": self._heard, "debug": "feature"}, self._versions.logger(self._client_log))
        begun, warn_at = time.monotonic(), WARN_SECONDS
        while not self._answers(client, min(ASK_SECONDS, max(0.2, warn_at - (time.monotonic() - begun)))):
            waited = time.monotonic() - begun
            if self._give_up():
                raise BrokerUnavailableError(f"{self._no_answer(waited)}: given up")
            if waited >= WARN_SECONDS and len(self._refusals) > 1:
                raise StreamsConfigError(
                    f"bootstrap.servers = {self._servers}: the brokers refuse this client ({self._text(self._refusals[-1])}): "
                    "check security.protocol, sasl.* and ssl.*"
                )
            if waited >= warn_at:
                self._log.warning("%s; the start waits for one. Is it running, and can this machine reach it?", self._no_answer(waited))
                warn_at += WARN_AGAIN_SECONDS
        client.poll(0)  # serves the client's log lines
        for address in self._versions.too_old():
            self._log.warning("broker %s %s: some requests may not be known there: penstock docs compatibility", address, TOO_OLD)
        if warn_at > WARN_SECONDS:
            self._log.info("bootstrap.servers = %s: a broker has answered after %.0f s", self._servers, time.monotonic() - begun)

    def _answers(self, client: AdminClient, seconds: float) -> bool:
        try:
            client.list_topics(timeout=seconds)
        except KafkaException as error:
            if not self._refusals and Meaning.CLIENT_REFUSED in meaning(error):
                self._heard(kafka_error(error))
            client.poll(0)
            return False
        return True

    def _heard(self, error: KafkaError) -> None:
        if Meaning.CLIENT_REFUSED in meaning(error):
            self._refusals.append(error)
        self._reason = self._text(error)

    def _text(self, error: KafkaError) -> str:
        return self._config.redacted(error.str())

    def _no_answer(self, waited: float) -> str:
        return f"bootstrap.servers = {self._servers}: no broker has answered for {waited:.0f} s ({self._reason})"
