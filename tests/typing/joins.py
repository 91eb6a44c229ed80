"""Types flow through joins: read by mypy and pyright (`make types`), never run."""

from __future__ import annotations

from datetime import timedelta
from typing import assert_type

import msgspec

from penstock import Consumed, Joined, JoinWindows, KStream, KTable, Materialized, StreamJoined, StreamsBuilder, TableJoined, serdes
from penstock.runtime.operators.transform_values import TransformerContext, ValueTransformerWithKey


class Order(msgspec.Struct, frozen=True):
    customer: str
    amount: int


class Customer(msgspec.Struct, frozen=True):
    name: str


ORDER, CUSTOMER = serdes.json(Order), serdes.json(Customer)
builder = StreamsBuilder()
orders = builder.stream("orders", Consumed(serdes.LONG, value=ORDER))
others = builder.stream("others", Consumed(serdes.LONG, value=CUSTOMER))
order_rows = builder.table("order-rows", Consumed(serdes.LONG, value=ORDER))
customers = builder.table("customers", Consumed(serdes.STRING, value=CUSTOMER))
by_number = builder.table("by-number", Consumed(serdes.LONG, value=CUSTOMER))
HOUR = JoinWindows.of_time_difference_and_grace(timedelta(hours=1), 5)


def streams() -> None:
    how = StreamJoined(serdes.LONG, value=ORDER, other_value=CUSTOMER, name="joined")
    assert_type(orders.join(others, lambda order, other: other.name, HOUR, how), KStream[int, str])
    assert_type(orders.join(others, lambda key, order, other: key + order.amount, HOUR, "stores"), KStream[int, int])
    assert_type(orders.left_join(others, lambda order, other: other.name if other else None, HOUR), KStream[int, str | None])
    assert_type(orders.outer_join(others, lambda order, other: order.amount if order else 0, HOUR), KStream[int, int])
    orders.left_join(others, lambda order, other: other.name, HOUR)  # type: ignore[union-attr]
    orders.outer_join(others, lambda order, other: order.amount, HOUR)  # type: ignore[union-attr]
    assert_type(orders.join(by_number, lambda order, other: other.name, Joined(grace_period=5)), KStream[int, str])


def tables() -> None:
    assert_type(order_rows.join(by_number, lambda order, other: other.name), KTable[int, str])
    assert_type(order_rows.left_join(by_number, lambda order, other: other.name if other else ""), KTable[int, str])
    kept = Materialized("s", value=serdes.LONG)
    assert_type(order_rows.outer_join(by_number, lambda order, other: order.amount if order else 0, "named", kept), KTable[int, int])
    order_rows.left_join(by_number, lambda order, other: other.name)  # type: ignore[union-attr]


def foreign_keys() -> None:
    assert_type(order_rows.join(customers, lambda order: order.customer, lambda order, other: other.name), KTable[int, str])
    assert_type(
        order_rows.left_join(customers, lambda key, order: order.customer, lambda order, other: other, TableJoined(name="fk"), "kept"),
        KTable[int, Customer | None],
    )


class Named(ValueTransformerWithKey[int, Order, int]):
    """Parameters may have names of one's own."""

    def transform(self, number: int, order: Order | None) -> int | None:
        return number


class Doubled(ValueTransformerWithKey[int, Order, int]):
    def init(self, context: TransformerContext) -> None:
        assert_type(context.timestamp, int)

    def transform(self, read_only_key: int, value: Order | None) -> int | None:
        return None if value is None else value.amount * 2


def transformers() -> None:
    assert_type(order_rows.transform_values(Doubled, materialized=Materialized("doubled", value=serdes.LONG)), KTable[int, int])
