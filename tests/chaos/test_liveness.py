"""The leader knows the live members again after the group's broker was killed and came back, and considers no member dead meanwhile."""

from __future__ import annotations

import os
import signal

from penstock.orchestration.embedded.kafka import EmbeddedBroker
from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.coordination import group
from penstock.runtime.coordination.liveness import Liveness
from penstock.runtime.coordination.records import Member
from penstock.runtime.coordination.registry import Known
from penstock.runtime.coordination.topics import coordination_topic
from penstock.runtime.model.clock import SystemClock
from tests.support import Kafka, wait_until
from tests.support.instances import SESSION

AWAY_MS = 4_000


def known(member_id: str, since_ms: int) -> Known:
    member = Member(instance=member_id, incarnation=1, transactional_id="t", host="h", pid=1, member_id=member_id)
    return Known(member, member.key, 0, since_ms)


def test_rule_24_deaths_are_learned_of_after_the_broker_was_killed(own_broker: EmbeddedBroker, application_id: str) -> None:
    Kafka(own_broker.bootstrap_servers).create_topic(coordination_topic(application_id), exact=True)
    config = StreamsConfig({"application.id": application_id, "bootstrap.servers": own_broker.bootstrap_servers, **SESSION})
    clock = SystemClock()
    membership = group.membership(config)
    liveness = Liveness(config, membership, clock)
    membership.join()

    def lives(member_id: str, since_ms: int) -> bool | None:
        membership.poll()
        liveness.poll()
        return liveness.lives(known(member_id, since_ms))

    try:
        wait_until(lambda: lives(membership.member_id, 0), what="this member, alive")
        assert lives("somebody else", 0) is False
        status = own_broker.status()
        assert status is not None
        killed_ms = clock.monotonic_ms()
        os.kill(status.pid, signal.SIGKILL)
        while clock.monotonic_ms() < killed_ms + AWAY_MS:  # questions while it is away are what breaks librdkafka's other ways to ask
            assert lives(membership.member_id, killed_ms + 100) is None
        own_broker.start()
        back_ms = clock.monotonic_ms()
        wait_until(lambda: lives(membership.member_id, back_ms), what="an answer after the broker's return")
        assert lives("somebody else", back_ms) is False
    finally:
        liveness.close()
        membership.close()
