"""The topology: bills of orders, at the price that was valid when each was placed, and the sales per city.

    orders ── by product ── join prices, versioned ── table `sales`, by order ── foreign-key join customers ─► bills
    bills  ── by city ── sum ── suppress for a minute ─► sales-per-city

A customer who moves takes all of their orders along: the bills change, and so do the sums of both cities.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from penstock import (
    Grouped,
    Joined,
    Materialized,
    Stores,
    StreamsBuilder,
    Suppressed,
    TableJoined,
    Topology,
    serdes,
)

ORDERS, PRICES, CUSTOMERS, BILLS, SALES_PER_CITY = "orders", "prices", "customers", "bills", "sales-per-city"


@dataclass(frozen=True, slots=True)
class Order:
    """Its key is the order's number."""

    number: str
    customer: str
    product: str
    pieces: int


@dataclass(frozen=True, slots=True)
class Price:
    """Its key is the product. It is valid from the record's timestamp on."""

    cents: int


@dataclass(frozen=True, slots=True)
class Customer:
    """The key is the customer's number."""

    name: str
    city: str


@dataclass(frozen=True, slots=True)
class Sale:
    number: str
    customer: str
    cents: int


@dataclass(frozen=True, slots=True)
class Bill:
    """Its key is the order's number."""

    name: str
    city: str
    cents: int


ORDER, PRICE, CUSTOMER, SALE, BILL = (
    serdes.json(Order),
    serdes.json(Price),
    serdes.json(Customer),
    serdes.json(Sale),
    serdes.json(Bill),
)


def build() -> Topology:
    """Bills of orders, at the price that was valid when each was placed, and the sales per city."""
    builder = StreamsBuilder()
    history = Stores.persistent_versioned_key_value_store("prices", timedelta(days=1))
    prices = builder.table(PRICES, Materialized(history), key=serdes.STRING, value=PRICE)
    customers = builder.table(CUSTOMERS, materialized="customers", key=serdes.STRING, value=CUSTOMER)
    bills = (
        builder.stream(ORDERS, key=serdes.STRING, value=ORDER)
        .select_key(lambda _, order: order.product)
        .join(
            prices,
            lambda order, price: Sale(order.number, order.customer, order.pieces * price.cents),
            Joined(serdes.STRING, name="by-product"),
        )
        .select_key(lambda _, sale: sale.number)
        .to_table("by-order", Materialized("sales", key=serdes.STRING, value=SALE))
        .join(
            customers,
            lambda sale: sale.customer,
            lambda sale, customer: Bill(customer.name, customer.city, sale.cents),
            TableJoined(name="customer-of-sale"),
            Materialized("bills", key=serdes.STRING, value=BILL),
        )
    )
    bills.to_stream().to(BILLS)
    (
        bills.group_by(lambda _, bill: (bill.city, bill.cents), Grouped(serdes.STRING, value=serdes.LONG, name="by-city"))
        .aggregate(
            int,
            lambda _, cents, total: total + cents,
            lambda _, cents, total: total - cents,
            "sales-per-city",
            value=serdes.LONG,
        )
        .suppress(Suppressed.until_time_limit(timedelta(minutes=1), Suppressed.BufferConfig.unbounded()).with_name("each-minute"))
        .to_stream()
        .to(SALES_PER_CITY)
    )
    return builder.build()
