"""Effects of the group's callbacks on a worker, in the order in which they come."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer

from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.kafka.membership import Membership
from penstock.runtime.model.errors import TaskMigratedError


@pytest.fixture
def membership() -> Iterator[Membership]:
    """One that reaches no broker: the callbacks are called by hand."""
    membership = Membership(StreamsConfig({"application.id": "app", "bootstrap.servers": "127.0.0.1:1"}), "app-members", "app-coordination")
    membership.join()
    yield membership
    membership.close()


def test_a_member_that_rejoined_between_polls_is_a_member_after_join(membership: Membership) -> None:
    consumer = Consumer({"group.id": "other", "bootstrap.servers": "127.0.0.1:1"})
    membership._assigned(consumer, [])
    membership._on_lost(consumer, [])
    assert (membership.lost, membership.joined) == (True, False)
    membership._assigned(consumer, [])  # the client has joined again by itself, in the same poll
    membership.join()
    assert (membership.lost, membership.joined) == (False, True)
    consumer.close()


def test_a_member_that_was_dropped_before_it_announced_itself_has_lost_nothing(membership: Membership) -> None:
    """It would begin another incarnation, and its first one would have to be fenced."""
    consumer = Consumer({"group.id": "other", "bootstrap.servers": "127.0.0.1:1"})
    membership._on_lost(consumer, [])
    membership._assigned(consumer, [])
    membership.begin()
    assert (membership.lost, membership.joined) == (False, True)
    consumer.close()


def test_a_transaction_has_no_guard_before_tasks_are_granted_and_after_the_membership_has_changed(membership: Membership) -> None:
    with pytest.raises(TaskMigratedError, match=r"was member \(none\)"):
        membership.guard()
    membership.granted_to = "worker-1"
    with pytest.raises(TaskMigratedError, match=r"was member worker-1 and is \(none\) now"):
        membership.guard()


def test_a_membership_can_be_reopened_and_the_guard_of_a_transport_stays_its_own(membership: Membership) -> None:
    consumer = Consumer({"group.id": "other", "bootstrap.servers": "127.0.0.1:1"})
    guard = membership.guard
    membership._assigned(consumer, [])
    membership.close()
    membership.open()
    assert (membership.joined, membership.leads, membership.rebalances) == (False, False, 0)
    membership.granted_to = "worker-2"
    with pytest.raises(TaskMigratedError, match="worker-2"):
        guard()
    consumer.close()
