"""A topology with a store of each kind that can be seeded, all fed by one topic of two partitions; an environment variable can set its
name."""

from __future__ import annotations

import os
from datetime import timedelta

import msgspec

from penstock import Consumed, Grouped, Materialized, StreamsBuilder, serdes
from penstock.runtime.dsl.windows import SessionWindows, TimeWindows
from penstock.runtime.stores.suppliers import Stores
from penstock.runtime.topology.topology import Topology

TOPIC = "seeded-orders"
MINUTE_MS, HOUR_MS = 60_000, 3_600_000
RETENTION_MS = 24 * HOUR_MS


class Order(msgspec.Struct, frozen=True):
    """Value on the topic."""

    amount: int
    city: str | None = None


class Total(msgspec.Struct, frozen=True):
    """State per customer."""

    orders: int = 0
    amount: int = 0


def _add(_key: str, order: Order, total: Total) -> Total:
    return Total(total.orders + 1, total.amount + order.amount)


def build() -> Topology:
    """Return a topology of customers' totals, orders per hour, amounts per session, and the latest orders as a versioned table."""
    builder = StreamsBuilder()
    orders = builder.stream(os.environ.get("PENSTOCK_TEST_ORDERS", TOPIC), Consumed(key=serdes.STRING, value=serdes.json(Order)))
    grouped = orders.group_by_key(Grouped(key=serdes.STRING, value=serdes.json(Order)))
    grouped.aggregate(Total, _add, Materialized("totals", key=serdes.STRING, value=serdes.json(Total)))
    hours = TimeWindows.of_size_and_grace(timedelta(hours=1), timedelta(minutes=10))
    grouped.windowed_by(hours).count(Materialized("hourly", key=serdes.STRING, value=serdes.LONG, retention=timedelta(days=1)))
    sessions = SessionWindows.of_inactivity_gap_and_grace(timedelta(minutes=5), timedelta(minutes=1))
    grouped.windowed_by(sessions).count(Materialized("visits", key=serdes.STRING, value=serdes.LONG, retention=timedelta(days=1)))
    latest = Materialized(
        Stores.persistent_versioned_key_value_store("latest", timedelta(days=1)), key=serdes.STRING, value=serdes.json(Order)
    )
    orders.to_table(latest)
    return builder.build()
