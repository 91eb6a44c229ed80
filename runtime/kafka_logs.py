"""Where the Kafka clients' own log lines go: the logger `runtime.kafka`, each complaint once per ten seconds.

librdkafka tells of every attempt to connect. While a broker is away that would be dozens of equal lines a second from each client, and the
line that matters would drown.
"""

from __future__ import annotations

import logging
import re
import time

_QUIET_SECONDS = 10.0
_VARYING = re.compile(r"#\w+-\d+|\d+")


class _OncePerWhile(logging.Filter):
    """Lets a line pass unless one that differs only in numbers has passed a short while ago."""

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


KAFKA_LOGGER = logging.getLogger("runtime.kafka")
"""Give it to every client: `Consumer(settings, logger=KAFKA_LOGGER)`."""
KAFKA_LOGGER.addFilter(_OncePerWhile())
