"""A start without a reachable broker waits at each of its requests, logs that it waits, and ends quickly when it is stopped."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType

import msgspec
import psutil
import pytest

from penstock.orchestration.embedded.kafka import EmbeddedBroker
from penstock.orchestration.embedded.ports import free_port
from penstock.runtime.client.running import EXIT_CONFIGURATION
from penstock.runtime.coordination import previous_run as former
from penstock.runtime.kafka import topic_admin as topics
from penstock.runtime.kafka.topic_admin import TopicAdmin
from penstock.runtime.kafka.transactions import TransactionalProducer
from penstock.runtime.model.errors import StreamsConfigError
from penstock.runtime.model.states import State
from penstock.runtime.worker import assembly
from tests.support import PATIENCE, Kafka, unique, wait_until
from tests.support.engine import client, count_topology, reaches
from tests.support.seeds import seed_of_counts

POINTS = [
    (TopicAdmin, "describe", True),
    (former, "records", True),
    (assembly, "refuse_unfinished", False),
    (TransactionalProducer, "init", True),
    (TransactionalProducer, "init", False),
]
"""Steps of a start, and whether the application is stopped while it waits there."""


@contextmanager
def frozen(broker: EmbeddedBroker) -> Iterator[None]:
    """Suspend the broker: connections stay open, but it does not answer."""
    process = freeze(broker)
    try:
        yield
    finally:
        process.resume()


def freeze(broker: EmbeddedBroker) -> psutil.Process:
    status = broker.status()
    assert status is not None
    process = psutil.Process(status.pid)
    process.suspend()
    return process


def freezes_before(monkeypatch: pytest.MonkeyPatch, broker: EmbeddedBroker, where: object, name: str) -> list[psutil.Process]:
    """Suspend the broker just before the first call of a step of the start; return a list that then contains its process."""
    done: list[psutil.Process] = []
    real = getattr(where, name)

    def step(*arguments: object, **named: object) -> object:
        if not done:
            done.append(freeze(broker))
        return real(*arguments, **named)

    monkeypatch.setattr(where, name, step)
    return done


def test_a_start_waits_at_each_of_its_requests_and_continues(
    own_broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If it is stopped while it waits, it ends immediately, as after a clean close."""
    caplog.set_level(logging.INFO)
    kafka = Kafka(own_broker.bootstrap_servers)
    source, output, application = kafka.create_topic("in"), kafka.create_topic("out"), unique("app")
    monkeypatch.setattr(topics, "ANSWER_SECONDS", 1.5)
    with client(kafka, count_topology(source, output), application, tmp_path / "first") as streams:
        streams.start()
        reaches(streams, State.RUNNING)
    for where, name, stopped in POINTS:
        with monkeypatch.context() as patch, client(kafka, count_topology(source, output), application, tmp_path / "state") as streams:
            process = freezes_before(patch, own_broker, where, name)
            try:
                streams.start()
                wait_until(lambda done=process: done, what=f"{name} in the start")  # type: ignore[misc]
                if stopped:
                    assert streams.close(timeout=10_000, leave_group=False), f"stopped at {name}"
                    assert streams.state is State.NOT_RUNNING and streams.failure is None, name
                else:
                    caplog.clear()
                    wait_until(lambda: "the start waits for a broker" in caplog.text or "no answer yet" in caplog.text, what=name)
                    assert streams.state is State.REBALANCING
            finally:
                process[0].resume()
            if not stopped:
                reaches(streams, State.RUNNING)


@pytest.mark.parametrize(("workers", "seeded"), [(1, False), (2, False), (1, True)])
def test_an_instance_waits_for_a_broker_that_is_frozen_not_there_or_unknown_and_says_so(
    own_broker: EmbeddedBroker, tmp_path: Path, workers: int, seeded: bool
) -> None:
    """The process is stopped while it waits, and exits with status 0. Also before it installs a seed, and if something else listens there,
    which accepts connections and says nothing."""
    seed = seed_of_counts(tmp_path, "in", {"a": 1}, 1) if seeded else None
    with frozen(own_broker), socket.create_server(("127.0.0.1", 0)) as mute:
        unknown = "no.such.host.invalid:9092"
        places = [own_broker.bootstrap_servers, f"127.0.0.1:{free_port()}", unknown, f"127.0.0.1:{mute.getsockname()[1]}"]
        started = [Instance(tmp_path / str(number), servers, workers, seed) for number, servers in enumerate(places)]
        try:
            for instance, servers in zip(started, places, strict=True):
                wait_until(lambda log=instance: "no broker has answered for 3 s" in log.text(), what=servers)  # type: ignore[misc]
                assert f"bootstrap.servers = {servers}" in instance.text()
            for number, instance in enumerate(started):
                instance.process.send_signal((signal.SIGTERM, signal.SIGINT)[number % 2])
            for instance in started:
                assert instance.process.wait(20) == 0, instance.text()
        finally:
            for instance in started:
                with suppress(ProcessLookupError):
                    instance.process.kill()


def test_brokers_that_refuse_the_client_end_the_start(broker: Kafka, tmp_path: Path) -> None:
    settings = {"security.protocol": "sasl_plaintext", "sasl.mechanism": "PLAIN", "sasl.username": "me", "sasl.password": "s3cr3t"}
    with client(broker, count_topology("in", "out"), unique("app"), tmp_path, **settings) as streams:
        streams.start()
        wait_until(lambda: streams.state is State.ERROR, what="the end")
        assert isinstance(streams.failure, StreamsConfigError) and "the brokers refuse this client" in str(streams.failure)
        assert "s3cr3t" not in str(streams.failure)
    seeded = Instance(tmp_path / "seeded", broker.bootstrap_servers, 1, seed_of_counts(tmp_path, "in", {"a": 1}, 1), settings)
    try:
        assert seeded.process.wait(30 * PATIENCE) == EXIT_CONFIGURATION, seeded.text()
    finally:
        seeded.process.kill()
    assert "the brokers refuse this client" in seeded.text() and "s3cr3t" not in seeded.text()


class Instance:
    """A process, started like the launcher's."""

    def __init__(
        self, folder: Path, servers: str, workers: int, seed: Path | None = None, more: Mapping[str, object] = MappingProxyType({})
    ) -> None:
        folder.mkdir()
        self._log = folder / "log"
        settings = {
            "application": "waits",
            "instance": f"waits-{folder.name}",
            "factory": "tests.broker.worker_apps:counts",
            "config": {"bootstrap.servers": servers, "state.dir": str(folder), "num.stream.threads": workers, **more},
            "log_path": str(self._log),
        }
        path = folder / "settings.json"
        path.write_bytes(msgspec.json.encode(settings))
        environment = {**os.environ, "TEST_SOURCE": "in", "TEST_OUTPUT": "out"}
        command = [sys.executable, "-m", "penstock.runtime.instance", "--config", str(path), *(["--seed", str(seed)] if seed else [])]
        self.process = subprocess.Popen(command, env=environment)

    def text(self) -> str:
        return self._log.read_text() if self._log.exists() else ""
