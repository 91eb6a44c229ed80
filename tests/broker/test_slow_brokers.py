"""Brokers with a long round trip, and brokers that delay clients by quotas: no member counts as dead, and each output comes once."""

from __future__ import annotations

import logging
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from confluent_kafka import Producer, ThrottleEvent

from penstock import serdes
from penstock.orchestration.embedded.tools import command
from penstock.runtime.coordination.records import Assignment, Death, Member
from penstock.runtime.dsl.builder import StreamsBuilder
from penstock.runtime.dsl.options import Consumed, Materialized, Produced
from penstock.runtime.kafka.heartbeats import Heartbeats
from penstock.runtime.kafka.throttling import Throttling
from penstock.runtime.model.clock import SystemClock
from penstock.runtime.worker import loop
from tests.support import Kafka, unique, wait_until
from tests.support.engine import running
from tests.support.fleets import Fleet, fleet
from tests.support.instances import coordination_log
from tests.support.network import Proxy, broker_behind_proxy

EACH_WAY_S = 0.1
SILENCE_MS = 1_500
BACKLOG = 60_000
ENOUGH = 0.7
"""Part of what an instance writes that its quota allows."""


@pytest.fixture
def far(tmp_path: Path) -> Iterator[tuple[Kafka, Proxy]]:
    """A broker, and a proxy that adds 200 ms to each answer."""
    with broker_behind_proxy(tmp_path / "broker", EACH_WAY_S) as found:
        yield found


def two_running(fleet: Fleet, **settings: object) -> None:
    fleet.app.start("a", **settings)
    fleet.app.becomes({"a": 4}, 60)
    fleet.app.start("b", **settings)
    fleet.app.becomes({"a": 2, "b": 2}, 60)
    fleet.goes_on()


def changes(fleet: Fleet) -> tuple[int, int, set[str]]:
    """Return the numbers of assignments and of reported deaths, and all members that there have been."""
    records = [record for _, record in fleet.log()]
    members = {record.identity for record in records if isinstance(record, Member)}
    return sum(isinstance(record, Assignment) for record in records), sum(isinstance(record, Death) for record in records), members


@pytest.mark.nightly
def test_with_200_ms_to_the_broker_nothing_moves_and_outputs_keep_up(far: tuple[Kafka, Proxy], application_id: str, tmp_path: Path) -> None:
    broker, proxy = far
    with fleet(broker, application_id, tmp_path / "fleet") as found:
        two_running(found, **{"bootstrap.servers": proxy.bootstrap_servers})
        before, records = changes(found), found.load.records
        wait_until(lambda: found.load.records > records + 8_000, 120, "twenty seconds of load")
        records = found.load.records
        wait_until(lambda: found.watch.records >= records, 60, "the outputs of that load")
        assert changes(found) == before


def quota(broker: Kafka, name: str, *change: str) -> None:
    """Change the quota of the clients of an instance."""
    where = ("--bootstrap-server", broker.bootstrap_servers, "--entity-type", "clients", "--entity-name", name)
    subprocess.run(command("kafka-configs", [*where, "--alter", *change]), check=True, capture_output=True, timeout=60)


def size(folder: Path, *topics: str) -> int:
    """Return the bytes that a broker has of some topics."""
    return sum(file.stat().st_size for topic in topics for file in folder.glob(f"broker/log/{topic}-[0-9]/*.log"))


@pytest.mark.nightly
def test_a_quota_slows_a_fleet_down_and_no_member_counts_as_dead(far: tuple[Kafka, Proxy], application_id: str, tmp_path: Path) -> None:
    """Its brokers then read nothing from a connection for seconds, heartbeats included."""
    broker, _ = far
    with fleet(broker, application_id, tmp_path / "fleet") as found:
        two_running(found)
        before, written = changes(found), (found.app.output, f"{application_id}-counts-changelog")
        began, bytes_then = time.monotonic(), size(tmp_path, *written)
        records = found.watch.records
        wait_until(lambda: found.watch.records > records + 4_000, 120, "ten seconds of load")
        each = (size(tmp_path, *written) - bytes_then) / (time.monotonic() - began) / 2
        for name in "ab":
            quota(broker, name, "--add-config", f"producer_byte_rate={int(each * ENOUGH)}")
        wait_until(lambda: all("a quota is used up" in found.app.log(name) for name in "ab"), 60, "delays by the quota")
        records = found.watch.records
        wait_until(lambda: found.watch.records > records + 4_000, 120, "outputs within the quota")
        for name in "ab":
            quota(broker, name, "--delete-config", "producer_byte_rate")
        found.goes_on()
        assert changes(found) == before


def throttled_ms(broker: Kafka, application_id: str) -> int:
    """Return the longest delay by a quota that an instance has reported."""
    return max((record.throttled_ms for _, record in coordination_log(broker, application_id) if isinstance(record, Member)), default=0)


@pytest.mark.nightly
def test_an_application_that_writes_much_more_than_its_quota_allows_goes_on_at_that_rate(
    broker: Kafka, topic: Callable[..., str], application_id: str, state_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What it processes between two commits takes its brokers longer than a transaction may last."""
    source, output, name = topic("in"), topic("out"), unique("client")
    broker.produce(source, [(f"key-{number % 1000}", "1") for number in range(BACKLOG)])
    builder = StreamsBuilder()
    counts = (
        builder.stream(source, Consumed(serdes.STRING, value=serdes.STRING)).group_by_key().count(Materialized("counts", caching=False))
    )
    counts.to_stream().to(output, Produced(serdes.STRING, value=serdes.LONG))
    quota(broker, name, "--add-config", "producer_byte_rate=10000")
    settings: dict[str, object] = {
        "client.id": name,
        "transaction.timeout.ms": 5_000,
        "compression.type": "none",
        "processing.guarantee": "exactly_once_v2",
    }
    with running(broker, builder.build(), application_id, state_dir, **settings):
        wait_until(lambda: len(broker.consume(output)) > 2_000, 90, "outputs within the quota")
        caplog.clear()
        wait_until(lambda: len(broker.consume(output)) > 4_000, 90, "more outputs within the quota")
        rolled_back = [line.getMessage() for line in caplog.records if line.name == loop.__name__ and line.levelno >= logging.WARNING]
        assert not rolled_back, "without a limit, each transaction fails that begins while brokers still delay the one before"
        wait_until(lambda: throttled_ms(broker, application_id), what="a report of the delays")
        quota(broker, name, "--delete-config", "producer_byte_rate")
        wait_until(lambda: len(broker.consume(output)) >= BACKLOG, 120, "all outputs")
    found = Counter(record.key for record in broker.consume(output))
    assert set(found.values()) == {BACKLOG // 1000} and len(found) == 1000


@pytest.mark.nightly
def test_an_application_that_reads_more_than_its_quota_allows_says_so(
    broker: Kafka, topic: Callable[..., str], application_id: str, state_dir: Path
) -> None:
    source, output, name = topic("in"), topic("out"), unique("client")
    broker.produce(source, [("a", "x" * 1_000)] * 2_000)
    builder = StreamsBuilder()
    builder.stream(source, Consumed(serdes.STRING, value=serdes.STRING)).map_values(len).to(
        output, Produced(serdes.STRING, value=serdes.LONG)
    )
    quota(broker, name, "--add-config", "consumer_byte_rate=100000")
    with running(broker, builder.build(), application_id, state_dir, **{"client.id": name, "max.partition.fetch.bytes": 100_000}):
        wait_until(lambda: throttled_ms(broker, application_id), 60, "a report of the delays")
        wait_until(lambda: len(broker.consume(output)) == 2_000, 120, "all outputs")


@pytest.mark.nightly
def test_heartbeats_that_a_quota_holds_up_announce_it_before(broker: Kafka) -> None:
    """Another client of the same name has used the quota up: the broker reads no heartbeat for some ten seconds."""
    name, topic, other = (
        unique("client"),
        broker.create_topic("heartbeats", 1, {"message.timestamp.type": "LogAppendTime"}),
        broker.create_topic("other", 1),
    )
    properties = {"bootstrap.servers": broker.bootstrap_servers, "client.id": name}
    quota(broker, name, "--add-config", "producer_byte_rate=20000")
    heartbeats = Heartbeats(properties, topic, SILENCE_MS, SystemClock(), Throttling(SystemClock()))
    heartbeats.keep()

    def log() -> list[tuple[int, int]]:
        """Return the times of the heartbeats, and the silence that each announces."""
        return [(record.timestamp, int(record.value or b"")) for record in broker.consume(topic)]

    def longest() -> int:
        times = [at_ms for at_ms, _ in log()]
        return max((later - at_ms for at_ms, later in pairwise(times)), default=0)

    try:
        wait_until(lambda: len(log()) > 4, what="heartbeats")
        delayed: list[ThrottleEvent] = []
        producer = Producer({**properties, "throttle_cb": delayed.append})

        def exceeds_the_quota() -> bool:
            for _ in range(10):
                producer.produce(other, bytes(50_000))
            producer.flush(30)
            return bool(delayed)

        # Now and then brokers delay this producer alone: then it exceeds the quota again.
        wait_until(lambda: exceeds_the_quota() and longest() > 2 * SILENCE_MS, 120, "heartbeats after a delay, since the quota holds now")
        early = [(later - at_ms, silence_ms) for (at_ms, silence_ms), (later, _) in pairwise(log()) if later - at_ms > silence_ms]
        assert not early, f"(ms without a heartbeat, ms announced): {early}"
    finally:
        heartbeats.close()
