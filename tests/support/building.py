"""Small topologies for cases: one operator or a few between the topics `in` and `out`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock import serdes
from penstock.runtime.operators.aggregate import counted, zero
from penstock.runtime.operators.base import OperatorSupplier
from penstock.runtime.operators.windowed import WindowAggregate
from penstock.runtime.stores import EngineStore, StoreBuilder, Stores
from penstock.runtime.topology.topology import Topology
from penstock.serdes import Serde

S, L, J = serdes.STRING, serdes.LONG, serdes.JSON
STRINGS: dict[str, object] = {
    "application.id": "app",
    "bootstrap.servers": "localhost:9092",
    "default.key.serde": serdes.STRING,
    "default.value.serde": serdes.STRING,
}
"""Configuration of an application whose topics are text unless the topology says otherwise."""


def second(_first: object, value: object) -> object:
    """Return the second argument: a joiner, or a mapper of key and value."""
    return value


@dataclass(frozen=True)
class Windows:
    """Sizes in ms, with the fields of `TimeWindows`."""

    size_ms: int
    advance_ms: int
    grace_period_ms: int


def key_value(name: str, value: Serde = S, *, caching: bool = True) -> StoreBuilder[EngineStore]:
    builder = Stores.timestamped_key_value_store_builder(Stores.in_memory_key_value_store(name), S, value)
    return builder.with_caching_enabled() if caching else builder.with_caching_disabled()


def window(name: str, windows: Windows, value: Serde = L, *, caching: bool = True) -> StoreBuilder[EngineStore]:
    supplier = Stores.in_memory_window_store(name, windows.size_ms + windows.grace_period_ms, windows.size_ms)
    builder = Stores.timestamped_window_store_builder(supplier, S, value)
    return builder.with_caching_enabled() if caching else builder.with_caching_disabled()


def window_count(store: str, windows: Windows, *, on_close: bool = False) -> WindowAggregate:
    """Return the `count` of a windowed stream."""
    return WindowAggregate(store, windows, zero, counted, on_close)


def chain(
    *nodes: tuple[OperatorSupplier, str | None], stores: tuple[StoreBuilder[EngineStore], ...] = (), out: Serde = S, key: Serde = S
) -> Callable[[], Topology]:
    """Build `in` → nodes, each with the name of its store or None → `out`."""

    def build() -> Topology:
        topology = Topology().add_source("source", "in", key_serde=S, value_serde=S)
        for builder in stores:
            topology.add_state_store(builder)
        above = "source"
        for number, (supplier, store) in enumerate(nodes):
            topology.add_operator(f"node-{number}", supplier, [above], [] if store is None else [store])
            above = f"node-{number}"
        return topology.add_sink("sink", "out", above, key_serde=key, value_serde=out)

    return build


def piped(*rows: tuple[object, object, int]) -> list[tuple[str, object, object, int]]:
    return [("in", *row) for row in rows]
