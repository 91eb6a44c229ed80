"""The topology, without a broker."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from examples.orders.samples import TOPICS, samples
from examples.orders.topology import (
    BILL,
    BILLS,
    CUSTOMER,
    CUSTOMERS,
    ORDER,
    ORDERS,
    PRICE,
    PRICES,
    SALES_PER_CITY,
    Bill,
    Customer,
    Order,
    Price,
    build,
)
from penstock import serdes
from penstock.testing import TestOutputTopic, TopologyTestDriver

SECOND = 1_000


@pytest.fixture
def driver() -> Iterator[TopologyTestDriver]:
    """Tea costs 100, and 150 from second 10 on. Ada lives in Oslo."""
    with TopologyTestDriver(build()) as driver:
        prices = driver.create_input_topic(PRICES, serdes.STRING, PRICE)
        prices.pipe_input("tea", Price(100), 0)
        prices.pipe_input("tea", Price(150), 10 * SECOND)
        driver.create_input_topic(CUSTOMERS, serdes.STRING, CUSTOMER).pipe_input("ada", Customer("Ada", "Oslo"), 0)
        yield driver


@pytest.fixture
def bills(driver: TopologyTestDriver) -> TestOutputTopic[str, Bill]:
    return driver.create_output_topic(BILLS, serdes.STRING, BILL)


@pytest.fixture
def sales(driver: TopologyTestDriver) -> TestOutputTopic[str, int]:
    return driver.create_output_topic(SALES_PER_CITY, serdes.STRING, serdes.LONG)


def order(driver: TopologyTestDriver, number: str, second: int, customer: str = "ada") -> None:
    """Order two packets of tea."""
    driver.create_input_topic(ORDERS, serdes.STRING, ORDER).pipe_input(number, Order(number, customer, "tea", 2), second * SECOND)


def test_a_bill_has_the_price_at_the_time_of_the_order(driver: TopologyTestDriver, bills: TestOutputTopic[str, Bill]) -> None:
    order(driver, "1", 5)
    order(driver, "2", 15)
    assert bills.read_key_values_to_list() == [("1", Bill("Ada", "Oslo", 200)), ("2", Bill("Ada", "Oslo", 300))]


def test_a_bill_waits_for_its_customer_and_follows_them(driver: TopologyTestDriver, bills: TestOutputTopic[str, Bill]) -> None:
    order(driver, "1", 5, "max")
    assert bills.is_empty()
    customers = driver.create_input_topic(CUSTOMERS, serdes.STRING, CUSTOMER)
    customers.pipe_input("max", Customer("Max", "Bergen"), 20 * SECOND)
    customers.pipe_input("max", Customer("Max", "Oslo"), 30 * SECOND)
    assert bills.read_values_to_list() == [Bill("Max", "Bergen", 200), Bill("Max", "Oslo", 200)]


def test_the_sales_of_a_city_are_sent_once_a_minute(driver: TopologyTestDriver, sales: TestOutputTopic[str, int]) -> None:
    order(driver, "1", 15)
    order(driver, "2", 20)
    assert sales.is_empty()
    order(driver, "3", 76)
    assert sales.read_key_values_to_list() == [("Oslo", 900)]
    driver.create_input_topic(CUSTOMERS, serdes.STRING, CUSTOMER).pipe_input("ada", Customer("Ada", "Bergen"), 80 * SECOND)
    order(driver, "4", 200)
    assert sales.read_key_values_to_map() == {"Oslo": 0, "Bergen": 1_200}


def test_the_sample_records_give_results(
    driver: TopologyTestDriver, bills: TestOutputTopic[str, Bill], sales: TestOutputTopic[str, int]
) -> None:
    inputs = {topic: driver.create_input_topic(topic, serdes.STRING, serdes.BYTES) for topic in TOPICS.keys() - {BILLS, SALES_PER_CITY}}
    for topic, key, value, timestamp in samples(500, 1_000_000_000):
        inputs[topic].pipe_input(key, msgspec.json.encode(value), timestamp)
    assert len(bills.read_key_values_to_map()) > 400 and not sales.is_empty()
