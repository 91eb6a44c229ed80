"""The topology: alerts on stolen cards, from two streams and a global table. All topics are keyed by card.

payments ─┬─ sum per ten minutes, `spent` ── join cards ── over the limit ──────┬─► alerts
          └─ join withdrawals, ten minutes before or after ── other country ────┘
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from penstock import (
    JoinWindows,
    Materialized,
    StreamJoined,
    StreamsBuilder,
    TimeWindows,
    Topology,
    serdes,
)

PAYMENTS, WITHDRAWALS, CARDS, ALERTS = "payments", "withdrawals", "cards", "alerts"
TEN_MINUTES, GRACE = timedelta(minutes=10), timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Payment:
    cents: int
    country: str


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """Cash from a machine."""

    cents: int
    country: str


@dataclass(frozen=True, slots=True)
class Card:
    holder: str
    limit_cents: int
    """What may be paid within ten minutes."""


@dataclass(frozen=True, slots=True)
class Spent:
    """A card's payments in a window: their sum, and the sum before the last one."""

    cents: int
    before: int


@dataclass(frozen=True, slots=True)
class Alert:
    reason: str


PAYMENT, WITHDRAWAL, CARD, ALERT = serdes.json(Payment), serdes.json(Withdrawal), serdes.json(Card), serdes.json(Alert)


def build() -> Topology:
    """Alerts on stolen cards: over the limit, or used in two countries within ten minutes."""
    builder = StreamsBuilder()
    payments = builder.stream(PAYMENTS, key=serdes.STRING, value=PAYMENT)
    withdrawals = builder.stream(WITHDRAWALS, key=serdes.STRING, value=WITHDRAWAL)
    cards = builder.global_table(CARDS, materialized="cards", key=serdes.STRING, value=CARD)
    over_limit = (
        payments.group_by_key()
        .windowed_by(TimeWindows.of_size_and_grace(TEN_MINUTES, GRACE))
        # Without a cache each payment gives an update, so the one that crosses the limit is always seen.
        .aggregate(lambda: Spent(0, 0), add, Materialized("spent", value=serdes.json(Spent), caching=False))
        .to_stream(lambda window, _: window.key)
        .join(cards, lambda card, _: card, lambda spent, card: (spent, card))
        .filter(lambda _, pair: pair[0].before <= pair[1].limit_cents < pair[0].cents)
        .map_values(lambda pair: Alert(f"{pair[1].holder} spent {pair[0].cents} in ten minutes, the limit is {pair[1].limit_cents}"))
    )
    two_countries = (
        payments.join(
            withdrawals,
            lambda payment, withdrawal: (payment.country, withdrawal.country),
            JoinWindows.of_time_difference_and_grace(TEN_MINUTES, GRACE),
            StreamJoined(name="two-countries", store_name="two-countries"),
        )
        .filter(lambda _, countries: countries[0] != countries[1])
        .map_values(lambda countries: Alert(f"paid in {countries[0]} and withdrew cash in {countries[1]} within ten minutes"))
    )
    over_limit.merge(two_countries).to(ALERTS, key=serdes.STRING, value=ALERT)
    return builder.build()


def add(_card: str, payment: Payment, spent: Spent) -> Spent:
    return Spent(spent.cents + payment.cents, spent.cents)
