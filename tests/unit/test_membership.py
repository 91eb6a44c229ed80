"""What the group's callbacks mean to a worker, in the order in which they come."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer

from runtime.config import StreamsConfig
from runtime.coordination.group import Membership


@pytest.fixture
def membership() -> Iterator[Membership]:
    """One that reaches no broker: the callbacks are called by hand."""
    membership = Membership(StreamsConfig({"application.id": "app", "bootstrap.servers": "127.0.0.1:1"}))
    membership.join()
    yield membership
    membership.close()


def test_who_is_dropped_and_taken_in_again_before_it_looks_is_a_member_after_it_joins(membership: Membership) -> None:
    consumer = Consumer({"group.id": "other", "bootstrap.servers": "127.0.0.1:1"})
    membership._assigned(consumer, [])
    membership._on_lost(consumer, [])
    assert (membership.lost, membership.joined) == (True, False)
    membership._assigned(consumer, [])  # the client has joined again by itself, in the same poll
    membership.join()
    assert (membership.lost, membership.joined) == (False, True)
    consumer.close()
