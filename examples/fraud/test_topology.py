"""The topology, without a broker."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from examples.fraud.samples import TOPICS, samples
from examples.fraud.topology import (
    ALERT,
    ALERTS,
    CARD,
    CARDS,
    PAYMENT,
    PAYMENTS,
    WITHDRAWAL,
    WITHDRAWALS,
    Alert,
    Card,
    Payment,
    Withdrawal,
    build,
)
from penstock import serdes
from penstock.testing import TestInputTopic, TestOutputTopic, TopologyTestDriver

MINUTE = 60_000


@pytest.fixture
def driver() -> Iterator[TopologyTestDriver]:
    with TopologyTestDriver(build()) as driver:
        driver.create_input_topic(CARDS, serdes.STRING, CARD).pipe_input("card-1", Card("Ada", 10_000))
        yield driver


@pytest.fixture
def payments(driver: TopologyTestDriver) -> TestInputTopic[str, Payment]:
    return driver.create_input_topic(PAYMENTS, serdes.STRING, PAYMENT)


@pytest.fixture
def withdrawals(driver: TopologyTestDriver) -> TestInputTopic[str, Withdrawal]:
    return driver.create_input_topic(WITHDRAWALS, serdes.STRING, WITHDRAWAL)


@pytest.fixture
def alerts(driver: TopologyTestDriver) -> TestOutputTopic[str, Alert]:
    return driver.create_output_topic(ALERTS, serdes.STRING, ALERT)


def test_the_payment_that_crosses_the_limit_gives_the_only_alert(
    payments: TestInputTopic[str, Payment], alerts: TestOutputTopic[str, Alert]
) -> None:
    for minute in (0, 3, 6, 9):
        payments.pipe_input("card-1", Payment(4_000, "NO"), minute * MINUTE)
    assert alerts.read_key_values_to_list() == [("card-1", Alert("Ada spent 12000 in ten minutes, the limit is 10000"))]


def test_the_next_ten_minutes_begin_with_nothing_spent(payments: TestInputTopic[str, Payment], alerts: TestOutputTopic[str, Alert]) -> None:
    payments.pipe_input("card-1", Payment(9_000, "NO"), 9 * MINUTE)
    payments.pipe_input("card-1", Payment(9_000, "NO"), 10 * MINUTE)
    assert alerts.is_empty()


def test_two_countries_within_ten_minutes(
    payments: TestInputTopic[str, Payment], withdrawals: TestInputTopic[str, Withdrawal], alerts: TestOutputTopic[str, Alert]
) -> None:
    withdrawals.pipe_input("card-1", Withdrawal(100, "BR"), 0)
    payments.pipe_input("card-1", Payment(100, "NO"), 11 * MINUTE)  # too late
    assert alerts.is_empty()
    withdrawals.pipe_input("card-1", Withdrawal(100, "NO"), 12 * MINUTE)  # the same country
    withdrawals.pipe_input("card-1", Withdrawal(100, "BR"), 13 * MINUTE)
    assert alerts.read_values_to_list() == [Alert("paid in NO and withdrew cash in BR within ten minutes")]


def test_the_sample_records_give_results(driver: TopologyTestDriver, alerts: TestOutputTopic[str, Alert]) -> None:
    inputs = {topic: driver.create_input_topic(topic, serdes.STRING, serdes.BYTES) for topic in TOPICS.keys() - {ALERTS}}
    for topic, key, value, timestamp in samples(1_000, 1_000_000_000):
        inputs[topic].pipe_input(key, msgspec.json.encode(value), timestamp)
    reasons = [alert.reason for alert in alerts.read_values_to_list()]
    assert any("limit" in reason for reason in reasons) and any("cash" in reason for reason in reasons)
