"""The address of an instance (Kafka Streams' `HostInfo`, `application.server`)."""

from __future__ import annotations

import re
from dataclasses import dataclass

_ENDPOINT = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.%]+)\]|(?P<host>[A-Za-z0-9._-]+)):(?P<port>[0-9]{1,5})")


@dataclass(frozen=True, slots=True, order=True)
class HostInfo:
    """An instance's `application.server`. `unavailable()` stands for an instance that is not known."""

    host: str
    port: int

    @classmethod
    def build_from_endpoint(cls, endpoint: str) -> HostInfo:
        """Parse `host:port`, with an IPv6 address in brackets. Raises ValueError with an example."""
        found = _ENDPOINT.fullmatch(endpoint.strip())
        if found is None or not 1 <= int(found["port"]) <= 65535:
            raise ValueError(f"{endpoint!r} is not host:port, with a port from 1 to 65535 (for example 10.0.0.5:8080, or [::1]:8080)")
        return cls(found["six"] or found["host"], int(found["port"]))

    @classmethod
    def unavailable(cls) -> HostInfo:
        """Return the address of an unknown instance (as in Kafka Streams)."""
        return _UNAVAILABLE

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


_UNAVAILABLE = HostInfo("unavailable", -1)
