"""Sample records: orders of 50 customers for ten products, whose prices change, and customers who move."""

from __future__ import annotations

import random
from collections.abc import Iterator

from examples.orders.topology import BILLS, CUSTOMERS, ORDERS, PRICES, SALES_PER_CITY, Customer, Order, Price

_COMPACTED = {"cleanup.policy": "compact"}
TOPICS: dict[str, dict[str, str]] = {ORDERS: {}, PRICES: _COMPACTED, CUSTOMERS: _COMPACTED, BILLS: _COMPACTED, SALES_PER_CITY: _COMPACTED}
"""Every topic that must exist, with its settings."""
CITIES = ("Bergen", "Oslo", "Tromsø")


def samples(count: int, end_ms: int) -> Iterator[tuple[str, str, object, int]]:
    """Prices and customers, then `count` records, one per second up to `end_ms`: topic, key, value, timestamp in ms."""
    chance = random.Random(end_ms)
    start_ms = end_ms - count * 1000

    def price(number: int) -> tuple[str, str, object]:
        return PRICES, f"product-{number}", Price(chance.randrange(100, 10_000))

    def customer(number: int) -> tuple[str, str, object]:
        return CUSTOMERS, f"customer-{number}", Customer(f"customer {number}", chance.choice(CITIES))

    first = [*map(price, range(10)), *map(customer, range(50))]
    yield from ((*record, start_ms) for record in first)
    for number in range(1, count + 1):
        at_ms, kind = start_ms + number * 1000, chance.random()
        if kind < 0.05:
            yield (*price(chance.randrange(10)), at_ms)
        elif kind < 0.1:
            yield (*customer(chance.randrange(50)), at_ms)
        else:
            key = f"{start_ms}-{number}"
            order = Order(key, f"customer-{chance.randrange(50)}", f"product-{chance.randrange(10)}", chance.randrange(1, 5))
            yield ORDERS, key, order, at_ms
