"""How clients reach the brokers: their addresses, and the settings of TLS and logins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from penstock.runtime.config.client_properties import COMMON
from penstock.runtime.config.streams_config import Property
from penstock.runtime.kafka.logins import current

_PREFIXES = (
    "security.",
    "sasl.",
    "ssl.",
    "enable.sasl.",
    "enable.ssl.",
    "https.",
    "socket.",
    "broker.address.",
    "client.dns.",
    "reconnect.",
)
_SETTINGS = frozenset(name for name in COMMON if name.startswith(_PREFIXES))


@dataclass(frozen=True, slots=True)
class Connection:
    """Addresses of brokers, and the librdkafka settings of TLS, logins, sockets and addresses, for clients of commands, checks and jobs.
    `str` and `repr` show the addresses alone: the settings hold secrets."""

    servers: str
    """`bootstrap.servers`"""
    settings: Mapping[str, Property] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, properties: Mapping[str, Property]) -> Self:
        """Return the connection of a client with these librdkafka properties. Those of other kinds are left out."""
        return cls(str(properties["bootstrap.servers"]), {name: value for name, value in properties.items() if name in _SETTINGS})

    def client(self, properties: Mapping[str, Property]) -> dict[str, Property]:
        """Return the properties of a client that has this connection, with the login that files contain now."""
        return {"bootstrap.servers": self.servers, **current(self.settings), **properties}

    @property
    def is_plain(self) -> bool:
        """True if clients connect without TLS and without a login."""
        return str(self.settings.get("security.protocol", "plaintext")).lower() == "plaintext"

    def tool(self, name: str) -> str:
        """Return the beginning of the command line of one of Kafka's own tools, for messages. `admin.properties` stands for the login of an
        administrator, if the brokers want one."""
        return f"{name} --bootstrap-server {self.servers}{'' if self.is_plain else ' --command-config admin.properties'}"

    def __str__(self) -> str:
        return self.servers
