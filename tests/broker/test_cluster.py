"""The embedded cluster, as `penstock broker start --brokers 3` makes it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.orchestration.cli import app
from penstock.orchestration.embedded.cluster import EmbeddedCluster
from penstock.orchestration.embedded.kafka import BrokerError
from penstock.orchestration.embedded.ports import free_port, is_free
from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.kafka.clients import group_consumer
from penstock.runtime.kafka.group_members import GroupMembers
from penstock.runtime.model.errors import StreamsError
from tests.support import Kafka, unique, wait_until


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project in whose folder for the broker's data there is a cluster's."""
    (tmp_path / "streams.toml").write_text("")
    monkeypatch.setenv("PENSTOCK_STREAMS", str(tmp_path / "streams.toml"))
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "broker" / "cluster"


@pytest.fixture
def cluster(project: Path) -> Iterator[EmbeddedCluster]:
    first = next(port for port in iter(free_port, None) if is_free(port + 1) and is_free(port + 2))
    found = EmbeddedCluster(project, range(first, first + 3))
    found.start()
    yield found
    found.stop()


def test_topics_have_three_copies_one_broker_may_be_away_and_the_commands_see_it(cluster: EmbeddedCluster) -> None:
    kafka, runner = Kafka(cluster.bootstrap_servers), CliRunner()
    kafka.create_topic("kept", 3, exact=True)
    partitions = kafka.admin.list_topics("kept", timeout=10).topics["kept"].partitions.values()
    assert [len(partition.replicas) for partition in partitions] == [3, 3, 3]
    assert len({partition.leader for partition in partitions}) > 1, "brokers share the work"
    assert runner.invoke(app, ["broker", "status"]).exit_code == 0

    away = cluster.brokers[1]
    status = away.status()
    assert status is not None
    os.kill(status.pid, signal.SIGKILL)
    wait_until(lambda: away.status() is None, what="the end of the killed broker")
    for partition in range(3):
        kafka.produce("kept", [("key", str(partition))], partition=partition)
    assert sorted(record.value or b"" for record in kafka.consume("kept", 3)) == [b"0", b"1", b"2"]
    seen = runner.invoke(app, ["broker", "status"])
    assert seen.exit_code == 1 and f"{away.bootstrap_servers} does not: penstock broker start --brokers 3" in " ".join(seen.stdout.split())

    alone = runner.invoke(app, ["broker", "start", "--port", str(free_port())])
    assert alone.exit_code == 1 and "A cluster runs already" in alone.output
    with pytest.raises(BrokerError, match="has the ports"):
        EmbeddedCluster(cluster.data_dir, [free_port()]).start()
    assert runner.invoke(app, ["broker", "start", "--brokers", "3"]).exit_code == 0
    assert len(cluster.status()) == 3
    assert runner.invoke(app, ["broker", "stop"]).exit_code == 0
    assert cluster.status() == [] and not cluster.stop(), "nothing is left to stop"


def test_the_members_of_a_group_are_known_while_its_coordinator_is_frozen_and_after(cluster: EmbeddedCluster) -> None:
    """As the leader asks for them, twice a second."""
    kafka, group = Kafka(cluster.bootstrap_servers), unique("members")
    kafka.create_topic("any", exact=True)
    config = StreamsConfig({"application.id": group, "bootstrap.servers": cluster.bootstrap_servers})
    asked, consumer = GroupMembers(config, group), group_consumer({"bootstrap.servers": cluster.bootstrap_servers}, group)

    def members() -> int:
        consumer.poll(0.05)
        try:
            return len(asked.ask())
        except StreamsError:
            return -1

    pid: int | None = None
    try:
        consumer.subscribe(["any"])
        wait_until(lambda: members() == 1, what="the member")
        place = kafka.admin.describe_consumer_groups([group])[group].result(10).coordinator
        (coordinator,) = [broker for broker in cluster.brokers if broker.port == place.port]
        status = coordinator.status()
        assert status is not None
        pid = status.pid
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: members() == -1, what="a request without an answer")
        wait_until(lambda: members() == 1, 60, what="the member, by another coordinator")
        os.kill(pid, signal.SIGCONT)
        until = time.monotonic() + 15
        wait_until(lambda: members() == 1 and time.monotonic() > until, 60, what="the member, with all brokers")
    finally:
        if pid is not None:
            os.kill(pid, signal.SIGCONT)
        consumer.close()


def test_a_damaged_layout_is_named(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text("{")
    with pytest.raises(BrokerError, match=r"cluster\.json is damaged"):
        EmbeddedCluster(tmp_path).start()
