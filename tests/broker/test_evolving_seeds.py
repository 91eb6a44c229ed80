"""A snapshot of an earlier version of a program seeds another application: each later version is checked against the snapshot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.orchestration.database import ControlPlane
from penstock.orchestration.declarations.applications import Application, Applications
from penstock.orchestration.declarations.project_paths import ProjectPaths, default_database_url
from penstock.orchestration.instances.operations import Operations
from penstock.orchestration.snapshots.taking import take_snapshot
from penstock.runtime.client.kafka_streams import KafkaStreams
from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.model.errors import SeedRefusedError, TopologyError
from penstock.runtime.model.states import State
from penstock.runtime.seeds.install import install_seed
from penstock.runtime.topology.topology import Topology
from tests.broker import evolving_apps
from tests.support import Kafka, unique, wait_until
from tests.support.engine import reaches
from tests.support.seeds import config_of

NEW_FIELD = "field last is new and has no default: values that were written without it cannot be read"


def counts(build: Callable[[], Topology], config: StreamsConfig, total: int, then: Callable[[], object] = lambda: None) -> None:
    """Run a version until it has counted this many records in total."""
    with KafkaStreams(build(), config) as streams:
        streams.start()
        reaches(streams, State.RUNNING)

        def counted() -> bool:
            values = [value for _, value in streams.store("totals").all()]
            return sum(value.n for value in values if isinstance(value, evolving_apps.First | evolving_apps.Second)) == total

        wait_until(counted, 40, "the counts")
        then()


def refusal(build: Callable[[], Topology], config: StreamsConfig) -> str:
    with KafkaStreams(build(), config) as streams:
        streams.start()
        wait_until(lambda: streams.failure is not None, 40, "the refusal")
        assert isinstance(streams.failure, TopologyError)
        return str(streams.failure)


def test_the_versions_in_a_seed_are_remembered_and_what_cannot_read_them_is_refused(
    broker: Kafka, topic: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = topic("in", 1)
    monkeypatch.setenv("TEST_SOURCE", source)
    monkeypatch.setenv("TEST_OUTPUT", topic("out", 1))
    former = config_of(unique("former"), broker.bootstrap_servers, tmp_path / "former")
    paths = ProjectPaths(tmp_path, tmp_path / "home", tmp_path / "streams.toml", default_database_url(tmp_path))
    application = Application(former.application_id, "", ("one",), {"bootstrap.servers": broker.bootstrap_servers})
    taken: list[str] = []

    def snapshot() -> None:
        operations = Operations(paths, Applications(), ControlPlane(paths.database_url))
        taken.append(str(take_snapshot(operations, application, actor="test").place))

    broker.produce(source, [("a", "1"), ("b", "1")])
    counts(evolving_apps.first, former, 2, snapshot)
    seeded = config_of(unique("seeded"), broker.bootstrap_servers, tmp_path / "seeded")
    for build, reported in ((evolving_apps.third, NEW_FIELD), (evolving_apps.doubles, "its values were json(First) and are DOUBLE")):
        with pytest.raises(SeedRefusedError) as refused:
            install_seed(build().resolved(seeded), seeded, taken[0])
        assert reported in str(refused.value)
    assert "is installed: 1 tasks" in str(install_seed(evolving_apps.second().resolved(seeded), seeded, taken[0]))
    assert NEW_FIELD in refusal(evolving_apps.third, seeded), "nothing but the seed has said so"
    broker.produce(source, [("a", "2")])
    counts(evolving_apps.second, seeded, 3)
    assert NEW_FIELD in refusal(evolving_apps.third, seeded)
