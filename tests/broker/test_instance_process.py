"""An instance as a process: its exit statuses, and the end that hanging user code comes to (rules.md, 7)."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import Kafka, unique, wait_until

ROOT = Path(__file__).resolve().parents[2]
FACTORIES = """
import time
from runtime import Consumed, Produced, StreamsBuilder, serdes

TEXT = Consumed(serdes.STRING, value=serdes.STRING)

def copies():
    builder = StreamsBuilder()
    builder.stream("{input}", TEXT).to("{output}", Produced(serdes.STRING, value=serdes.STRING))
    return builder.build()

def hangs():
    builder = StreamsBuilder()
    builder.stream("{input}", TEXT).foreach(lambda key, value: time.sleep(600))
    return builder.build()

def raises():
    return 1 / 0
"""


class Process:
    """`python -m runtime.instance`, with its log in a file."""

    def __init__(self, folder: Path, broker: Kafka, factory: str, **config: object) -> None:
        self.input, self.output = broker.create_topic("in", 1), broker.create_topic("out", 1)
        (folder / "factories.py").write_text(FACTORIES.format(input=self.input, output=self.output))
        self.log = folder / "instance.log"
        application = unique("app")
        settings = {
            "application": application,
            "instance": f"{application}-1",
            "factory": f"factories:{factory}",
            "config": {"bootstrap.servers": broker.bootstrap_servers, "state.dir": str(folder / "state"), **config},
            "log_path": str(self.log),
        }
        (folder / "instance.json").write_text(json.dumps(settings))
        command = [sys.executable, "-m", "runtime.instance", "--config", str(folder / "instance.json")]
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
def test_a_factory_that_raises_is_named(tmp_path: Path, broker: Kafka) -> None:
    instance = Process(tmp_path, broker, "raises")
    assert instance.wait() == 2
    assert "factories:raises" in instance.text()
    assert "ZeroDivisionError" in instance.text()


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
