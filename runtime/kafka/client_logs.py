"""Log lines of the Kafka clients: written to the logger `penstock.runtime.kafka`, equal ones once per ten seconds.

librdkafka logs every failed connection attempt. While a broker is down, each client would log dozens of equal lines per second, which would
hide the important ones.
"""

from __future__ import annotations

import logging
import re
import time

from penstock.runtime.model.secrets import without_credentials

_QUIET_SECONDS = 10.0
_VARYING = re.compile(r"#\w+-\d+|\d+")


class _OncePerWhile(logging.Filter):
    """Filter that drops a line if a recent one differs only in numbers."""

    def __init__(self) -> None:
        super().__init__()
        self._passed: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        text, now = _VARYING.sub("", record.getMessage()), time.monotonic()
        if now - self._passed.get(text, -_QUIET_SECONDS) < _QUIET_SECONDS:
            return False
        if len(self._passed) > 1000:
            self._passed.clear()
        self._passed[text] = now
        return True


class _WithoutCredentials(logging.Filter):
    """Filter that removes users, passwords and queries from addresses (`sasl.oauthbearer.token.endpoint.url`), which librdkafka quotes."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = without_credentials(record.getMessage()), ()
        return True


KAFKA_LOGGER = logging.getLogger("penstock.runtime.kafka")
"""Logger for every client: `Consumer(settings, logger=KAFKA_LOGGER)`."""
KAFKA_LOGGER.addFilter(_OncePerWhile())
KAFKA_LOGGER.addFilter(_WithoutCredentials())
