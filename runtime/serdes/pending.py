"""Serdes that depend on the configuration's default serdes, until the configuration is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Never

from penstock.runtime.model.errors import TopologyError
from penstock.runtime.serdes.serde import Serde


class PendingSerde(Serde):
    """Placeholder for a serde around a default serde, until the configuration is known (`Topology.resolved`).

    `of_key`: it wraps the default serde of keys, although it may itself be a serde of values.
    """

    __slots__ = ("of_key", "wrap")

    def __init__(self, wrap: Callable[[Serde], Serde], *, of_key: bool = False) -> None:
        super().__init__(_never, _never, name="pending")
        self.wrap = wrap
        self.of_key = of_key


def _never(_topic: str, _headers: object, data: object) -> Never:
    raise AssertionError(f"a serde that is not resolved from the configuration yet was called with {data!r}")


def wrapped(inner: Serde | None, wrap: Callable[[Serde], Serde], *, of_key: bool = False) -> Serde:
    """Return `wrap(inner)`, or a `PendingSerde` where the inner serde is or wraps a default serde (that of keys, if `of_key`)."""
    if isinstance(inner, PendingSerde):
        wrap_inner = inner.wrap
        return PendingSerde(lambda default: wrap(wrap_inner(default)), of_key=of_key)
    return PendingSerde(wrap, of_key=of_key) if inner is None else wrap(inner)


def required_serde(serde: Serde | None, what: str, where: str) -> Serde:
    """Return the serde. Raises TopologyError, naming the place and the remedy, if it is None."""
    if serde is None:
        raise TopologyError(
            f"{where} has no {what} serde: give it one (Consumed, Produced, Grouped, Materialized), or set default.{what}.serde"
        )
    return serde


def resolved_serde(serde: Serde | None, default: Serde | None, what: str, where: str) -> Serde:
    """Return the serde, with the default serde in its place or inside it. Raises TopologyError if a default is needed and not set."""
    if isinstance(serde, PendingSerde):
        return serde.wrap(required_serde(default, what, where))
    return required_serde(serde or default, what, where)
