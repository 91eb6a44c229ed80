"""Identifiers of the engine: small, ordered, hashable, and of distinct types.

`NextOffset` exists because Kafka Streams has two conventions for the offset of a store, *last applied* and *next to read*, and has confused
them more than once. Penstock uses only the next offset to read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple, NewType

NextOffset = NewType("NextOffset", int)
"""The next offset to read of a partition: the last applied offset plus one. Never negative."""

_TASK_ID = re.compile(r"(\d+)_(\d+)")


@dataclass(frozen=True, slots=True, order=True)
class TaskId:
    """A sub-topology and one partition of its input. `str()` is Kafka Streams' form, `0_3`; ordered by sub-topology, then partition."""

    subtopology: int
    partition: int

    def __str__(self) -> str:
        return f"{self.subtopology}_{self.partition}"

    @classmethod
    def parse(cls, text: str) -> TaskId:
        """Parse the form of `str()`. Raises ValueError for anything else."""
        match = _TASK_ID.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not a task id: expected <subtopology>_<partition>, for example 0_3")
        return cls(int(match[1]), int(match[2]))


class TopicPartition(NamedTuple):
    """A partition of a topic, as in Kafka's clients for Java. (confluent-kafka's type of this name also has an offset and an error:
    `confluent_kafka.TopicPartition(*partition)` converts.)"""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @classmethod
    def checked(cls, value: object) -> TopicPartition:
        """Return the value. Raises TypeError if it is of another type: a look-up of it would find nothing."""
        if not isinstance(value, TopicPartition):
            kind = f"{type(value).__module__}.{type(value).__name__}"
            raise TypeError(f"expected a penstock.TopicPartition(topic, partition), not {value!r}, a {kind}")
        return value


def changelog_topic(application_id: str, store: str) -> str:
    """Return the name of a store's changelog topic, as in Kafka Streams."""
    return f"{application_id}-{store}-changelog"


_ENDPOINT = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.%]+)\]|(?P<host>[A-Za-z0-9._-]+)):(?P<port>[0-9]{1,5})")


@dataclass(frozen=True, slots=True, order=True)
class HostInfo:
    """An instance's `application.server`. `unavailable()` stands for an instance that is not known."""

    host: str
    port: int

    @classmethod
    def build_from_endpoint(cls, endpoint: str) -> HostInfo:
        """Parse `host:port`, with an IPv6 address in brackets. Raises ValueError, with an example and without the text, which may hold a
        secret."""
        found = _ENDPOINT.fullmatch(endpoint.strip())
        if found is None or not 1 <= int(found["port"]) <= 65535:
            raise ValueError("is not host:port, with a port from 1 to 65535 (for example 10.0.0.5:8080, or [::1]:8080)")
        return cls(found["six"] or found["host"], int(found["port"]))

    @classmethod
    def unavailable(cls) -> HostInfo:
        """Return the address of an unknown instance (as in Kafka Streams)."""
        return _UNAVAILABLE

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


_UNAVAILABLE = HostInfo("unavailable", -1)
