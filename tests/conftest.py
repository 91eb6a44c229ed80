"""Fixtures for all tests. `broker` is a real Kafka: started once per run on a free port, or the one that PENSTOCK_TEST_BOOTSTRAP names."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestration.embedded.kafka import EmbeddedBroker
from orchestration.embedded.ports import free_port
from tests.support import Kafka, unique


def pytest_itemcollected(item: pytest.Item) -> None:
    """Marks each test by the folder that it stands in, where that is the name of a mark."""
    folder = item.path.parent.name
    if folder in ("broker", "chaos", "dagster"):
        item.add_marker(folder)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """A real broker for the whole run of the tests. Use names of your own on it (`topic`, `application_id`)."""
    named = os.environ.get("PENSTOCK_TEST_BOOTSTRAP")
    if named:
        yield Kafka(named)
        return
    embedded = EmbeddedBroker(tmp_path_factory.mktemp("broker"), free_port())
    embedded.start()
    try:
        yield Kafka(embedded.bootstrap_servers)
    finally:
        embedded.stop()


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """A broker that the test may stop and kill."""
    broker = EmbeddedBroker(tmp_path / "broker", free_port())
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()


@pytest.fixture
def topic(broker: Kafka) -> Callable[..., str]:
    """Makes topics: `topic("flights", partitions=4, config={"cleanup.policy": "compact"})` gives the new topic's name, `flights-…`."""
    return broker.create_topic


@pytest.fixture
def application_id() -> str:
    """An `application.id` that nobody else uses."""
    return unique("app")


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    """An empty folder for `state.dir`."""
    path = tmp_path / "state"
    path.mkdir()
    return path
