"""Sample records: payments and withdrawals with a hundred cards. Now and then a card is used in another country, or for a large sum."""

from __future__ import annotations

import random
from collections.abc import Iterator

from examples.fraud.topology import ALERTS, CARDS, PAYMENTS, WITHDRAWALS, Card, Payment, Withdrawal

CARD_COUNT = 100
TOPICS: dict[str, dict[str, str]] = {PAYMENTS: {}, WITHDRAWALS: {}, CARDS: {"cleanup.policy": "compact"}, ALERTS: {}}
"""Every topic that must exist, with its settings."""


def samples(count: int, end_ms: int) -> Iterator[tuple[str, str, object, int]]:
    """The cards, then `count` records, one per second up to `end_ms`: topic, key, value, timestamp in ms."""
    chance = random.Random(end_ms)
    start_ms = end_ms - count * 1000
    for number in range(CARD_COUNT):
        yield CARDS, f"card-{number}", Card(f"holder {number}", 50_000), start_ms
    for number in range(1, count + 1):
        card = f"card-{chance.randrange(CARD_COUNT)}"
        country = chance.choices(("NO", "BR"), (50, 1))[0]
        cents = chance.randrange(100, 10_000) if chance.random() < 0.98 else chance.randrange(40_000, 90_000)
        if chance.random() < 0.2:
            yield WITHDRAWALS, card, Withdrawal(cents, country), start_ms + number * 1000
        else:
            yield PAYMENTS, card, Payment(cents, country), start_ms + number * 1000
