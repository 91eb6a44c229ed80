"""The release of each broker, from the versions of the APIs that it reports when a client connects (ApiVersions)."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile

_API = re.compile(r"\]: (?:\w+://)?(?P<name>\S+):\s+ApiKey \S+ \((?P<key>\d+)\) Versions \d+\.\.(?P<last>\d+)")
_RELEASES: Sequence[tuple[str, int, int]] = (
    ("3.7", 1, 16),  # Fetch
    ("3.8", 24, 5),  # AddPartitionsToTxn
    ("3.9", 2, 9),  # ListOffsets
    ("4.0", 0, 12),  # Produce
    ("4.1", 0, 13),
    ("4.2", 2, 11),
    ("4.3", 35, 5),  # DescribeLogDirs
)
"""Release of Kafka, and an API with the first version of it that only this release and later ones have; oldest first."""
OLDEST = _RELEASES[0][0]
"""The oldest release that the tests are run on (docs/compatibility.md)."""
TOO_OLD = f"is older than Kafka {OLDEST}, the oldest that Penstock is tested with"


@dataclass(slots=True)
class ApiVersions:
    """Versions that the brokers have reported to a client with `debug=feature`. librdkafka only logs them."""

    by_broker: dict[str, dict[int, int]] = field(default_factory=dict)

    def logger(self, further: logging.Logger | None = None) -> logging.Logger:
        """Return the logger for the client. `further`: where its messages from INFO on go."""
        logger, handler = logging.Logger("penstock.api_versions"), logging.Handler()

        def heard(record: logging.LogRecord) -> bool:
            if (found := _API.search(record.getMessage())) is not None:
                self.by_broker.setdefault(found["name"].partition("/")[0], {})[int(found["key"])] = int(found["last"])
            elif further is not None and record.levelno >= logging.INFO and further.isEnabledFor(record.levelno):
                record.name = further.name
                further.handle(record)
            return False

        logger.addFilter(heard)
        logger.addHandler(handler)
        return logger

    def release(self, address: str) -> str:
        """Return the newest release whose APIs a broker has; empty if it is older than all of them, or was not heard."""
        has = self.by_broker.get(address, {})
        *_, (release, _, _) = ("", 0, 0), *takewhile(lambda each: has.get(each[1], -1) >= each[2], _RELEASES)
        return release

    def too_old(self) -> list[str]:
        """Return the addresses of the brokers that are older than `OLDEST`."""
        _, api, first = _RELEASES[0]
        return [address for address, has in sorted(self.by_broker.items()) if has.get(api, first) < first]
