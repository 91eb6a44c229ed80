"""An instance as a process: its exit statuses, and how it stops if user code hangs (rules.md, 7)."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT, Kafka, unique, wait_until

FACTORIES = """
import sys
import time
from penstock import Consumed, Processor, Produced, StreamsBuilder, serdes

TEXT = Consumed(serdes.STRING, value=serdes.STRING)

def copies():
    builder = StreamsBuilder()
    builder.stream("{input}", TEXT).to("{output}", Produced(serdes.STRING, value=serdes.STRING))
    return builder.build()

def hangs():
    builder = StreamsBuilder()
    builder.stream("{input}", TEXT).foreach(lambda key, value: time.sleep(600))
    return builder.build()

def exits():
    builder = StreamsBuilder()
    builder.stream("{input}", TEXT).foreach(lambda key, value: sys.exit(0))
    return builder.build()

class ExitsInClose(Processor):
    def process(self, record):
        pass

    def close(self):
        sys.exit(0)

def exits_in_close():
    builder = StreamsBuilder()
    builder.stream("{input}", TEXT).process(ExitsInClose)
    return builder.build()

def raises():
    return 1 / 0

def is_interrupted():
    raise KeyboardInterrupt

def exits_at_once():
    sys.exit(0)
"""


class Process:
    """`python -m penstock.runtime.instance`, with its log in a file."""

    def __init__(self, folder: Path, broker: Kafka, factory: str, **config: object) -> None:
        self.input, self.output = broker.create_topic("in", 1), broker.create_topic("out", 1)
        (folder / "factories.py").write_text(FACTORIES.format(input=self.input, output=self.output))
        self.log = folder / "instance.log"
        application = unique("app")
        self.name = f"{application}-1"
        settings = {
            "application": application,
            "instance": self.name,
            "factory": f"factories:{factory}",
            "config": {"bootstrap.servers": broker.bootstrap_servers, "state.dir": str(folder / "state"), **config},
            "log_path": str(self.log),
        }
        (folder / "instance.json").write_text(json.dumps(settings))
        command = [sys.executable, "-m", "penstock.runtime.instance", "--config", str(folder / "instance.json")]
        self.process = subprocess.Popen(command, cwd=folder, env={"PYTHONPATH": f"{ROOT}:{folder}", "PATH": "/usr/bin:/bin"})

    def wait(self, timeout: float = 60) -> int:
        try:
            return self.process.wait(timeout)
        finally:
            self.process.kill()

    def text(self) -> str:
        return self.log.read_text() if self.log.exists() else ""


@pytest.mark.broker
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_closes_it_cleanly(tmp_path: Path, broker: Kafka, number: signal.Signals) -> None:
    instance = Process(tmp_path, broker, "copies")
    wait_until(lambda: "to RUNNING" in instance.text(), 60, "RUNNING")
    instance.process.send_signal(number)
    assert instance.wait() == 0
    assert "closed cleanly" in instance.text().splitlines()[-1]


@pytest.mark.broker
def test_rule_7_a_process_whose_user_code_hangs_is_ended(tmp_path: Path, broker: Kafka) -> None:
    instance = Process(tmp_path, broker, "hangs", **{"max.poll.interval.ms": 10_000})
    broker.produce(instance.input, [(b"key", b"value")])
    assert instance.wait() == 4
    assert "no progress for 10000 ms" in instance.text()
    assert "factories.py" in instance.text(), "the stack that hangs is in the log"


@pytest.mark.broker
def test_sys_exit_in_an_operator_ends_it_with_a_status_that_is_not_0(tmp_path: Path, broker: Kafka) -> None:
    instance = Process(tmp_path, broker, "exits")
    broker.produce(instance.input, [(b"key", b"value")])
    assert instance.wait() == 1
    message = json.loads(instance.text().splitlines()[-1])["message"]
    assert re.search(rf"record {instance.input}-0@0, at \S+factories\.py:\d+ in \S+: SystemExit: 0$", message)
    assert instance.name not in message, "launchers put the name before it"


@pytest.mark.broker
def test_sys_exit_in_close_at_a_clean_stop_ends_it_with_a_status_that_is_not_0(tmp_path: Path, broker: Kafka) -> None:
    instance = Process(tmp_path, broker, "exits_in_close")
    wait_until(lambda: "task 0_0 runs from" in instance.text(), 60, "the task")
    instance.process.send_signal(signal.SIGTERM)
    assert instance.wait() == 1
    assert re.search(r"in close, at \S+factories\.py:\d+ in \S+: SystemExit: 0", instance.text().splitlines()[-1])


@pytest.mark.broker
@pytest.mark.parametrize(
    ("factory", "error"), [("raises", "ZeroDivisionError"), ("exits_at_once", "SystemExit"), ("is_interrupted", "KeyboardInterrupt")]
)
def test_a_factory_that_raises_is_named(tmp_path: Path, broker: Kafka, factory: str, error: str) -> None:
    instance = Process(tmp_path, broker, factory)
    assert instance.wait() == 2
    assert f"factories:{factory}" in instance.text()
    assert error in instance.text()


@pytest.mark.broker
def test_a_wrong_key_of_the_configuration_is_named(tmp_path: Path, broker: Kafka) -> None:
    instance = Process(tmp_path, broker, "copies", **{"comit.interval.ms": 100})
    assert instance.wait() == 2
    assert "did you mean 'commit.interval.ms'" in instance.text()


@pytest.mark.broker
def test_a_state_directory_that_cannot_be_made_is_named(tmp_path: Path, broker: Kafka) -> None:
    (tmp_path / "file").write_text("")
    instance = Process(tmp_path, broker, "copies", **{"state.dir": str(tmp_path / "file" / "state")})
    assert instance.wait() == 3
    assert str(tmp_path / "file" / "state") in instance.text()
