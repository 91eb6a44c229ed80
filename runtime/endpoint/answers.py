"""Responses to requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from penstock.runtime.model.ids import HostInfo

JSON = "application/json"
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
"""Content type of a page for Prometheus."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Status, body, and headers besides those of every response."""

    status: int
    body: bytes
    content_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)


def json_answer(found: object, status: int = 200) -> Answer:
    """Return a response with this JSON body."""
    return Answer(status, msgspec.json.encode(found))


class Refusal(Exception):
    """Error response: the problem and its remedy."""

    def __init__(self, status: int, error: str, more: Mapping[str, object] | None = None, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(error)
        self.answer = Answer(status, msgspec.json.encode({"error": error, **(more or {})}), headers=headers or {})


def later(error: str, more: Mapping[str, object] | None = None) -> Refusal:
    """Return a 503: temporarily unavailable, retry."""
    return Refusal(503, f"{error}: ask again", more, {"Retry-After": "1"})


def elsewhere(owner: HostInfo, partition: int, target: str, error: str) -> Refusal:
    """Return a 307 to the owner. The address has no scheme, so that a client that came by https stays with https."""
    more = {"owner": str(owner), "partition": partition}
    return Refusal(307, f"{error}: ask {owner}", more, {"Location": f"//{owner}{target}"})
