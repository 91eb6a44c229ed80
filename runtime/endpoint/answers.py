"""What a request is answered with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from runtime.hosts import HostInfo

JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Answer:
    """A status, a body, and headers besides those that every answer has."""

    status: int
    body: bytes
    content_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)


def told(found: object, status: int = 200) -> Answer:
    """What was asked for, as JSON."""
    return Answer(status, msgspec.json.encode(found))


class Refusal(Exception):
    """A request that is not answered with what it asks for: what is wrong, and the way out."""

    def __init__(self, status: int, error: str, more: Mapping[str, object] | None = None, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(error)
        self.answer = Answer(status, msgspec.json.encode({"error": error, **(more or {})}), headers=headers or {})


def later(error: str, more: Mapping[str, object] | None = None) -> Refusal:
    """Not now, but soon."""
    return Refusal(503, f"{error}: ask again", more, {"Retry-After": "1"})


def elsewhere(owner: HostInfo, partition: int, target: str, error: str) -> Refusal:
    """The answer is at another instance. The address has no scheme, so that a client that came by https goes on by https."""
    more = {"owner": str(owner), "partition": partition}
    return Refusal(307, f"{error}: ask {owner}", more, {"Location": f"//{owner}{target}"})
