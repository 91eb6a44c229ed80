"""The first contact with the brokers at a start."""

from __future__ import annotations

import logging

import pytest

from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.kafka.first_contact import FirstContact
from tests.support.fenced_broker import fenced_broker


@pytest.mark.parametrize(("fetch_version", "warnings"), [(15, 1), (16, 0)])
def test_a_broker_older_than_those_of_the_tests_is_a_warning(fetch_version: int, warnings: int, caplog: pytest.LogCaptureFixture) -> None:
    with fenced_broker() as broker, caplog.at_level(logging.WARNING):
        broker.fetch_version = fetch_version
        FirstContact(StreamsConfig({"application.id": "app", "bootstrap.servers": broker.servers}), lambda: False).wait()
    found = [record.getMessage() for record in caplog.records if "older than" in record.getMessage()]
    assert (
        found
        == [
            f"broker {broker.servers} is older than Kafka 3.7, the oldest that Penstock is tested with: "
            "some requests may not be known there: penstock docs compatibility"
        ]
        * warnings
    )


def test_a_quiet_contact_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Here a server refuses the connection, while another one answers."""
    with fenced_broker() as broker, caplog.at_level(logging.DEBUG):
        broker.fetch_version = 15
        config = StreamsConfig({"application.id": "app", "bootstrap.servers": f"127.0.0.1:1,{broker.servers}"})
        FirstContact(config, lambda: False, quiet=True).wait()
        assert not caplog.records
        FirstContact(config, lambda: False).wait()
    assert {record.name for record in caplog.records} <= {"penstock.runtime.kafka", FirstContact.__module__}
    assert any("older than" in record.getMessage() for record in caplog.records)
