"""`KafkaStreams.run()` and `penstock run`: signals, exit statuses, settings from options, a file and the environment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from penstock import Consumed, KafkaStreams, Produced, StreamsBuilder, StreamsError, serdes
from penstock.runtime.client.running import EXIT_CLEAN, EXIT_CONFIGURATION, EXIT_FAILED
from penstock.runtime.instance import run_command
from tests.support import PATIENCE, ROOT, Kafka, unique, wait_until

MODULE = """
import sys, time
from penstock import Consumed, ContextualProcessor, Produced, StreamsBuilder, serdes

class HangsInClose(ContextualProcessor):
    def process(self, record):
        print("processed", record.value, file=sys.stderr, flush=True)
        if record.value == "fatal":
            raise ValueError("a fatal record")
        self.context.forward(record)

    def close(self):
        if {hangs}:
            time.sleep(600)

def build():
    text = serdes.STRING
    builder = StreamsBuilder()
    builder.stream("{input}", Consumed(text, value=text)).process(HangsInClose).to("{output}", Produced(text, value=text))
    return builder.build()
"""
SCRIPT = """
import logging, signal, sys
from penstock import KafkaStreams
from app import build

logging.basicConfig(level=logging.INFO)
before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
status = KafkaStreams(build(), {config!r}).run()
assert before == [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)], "the handlers are restored"
sys.exit(status)
"""
ENGINE_ALONE = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("dagster", "typer", "rich", "sqlalchemy", "pyspark", "pandas", "alembic"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
from penstock.orchestration.__main__ import main
main()
"""


class Running:
    """A program with the application `app:build` beside it, and its output."""

    def __init__(self, folder: Path, broker: Kafka, *, hangs: bool = False) -> None:
        self.folder = folder
        self.input, self.output = broker.create_topic("in", 1), broker.create_topic("out", 1)
        self.application = unique("app")
        (folder / "app.py").write_text(MODULE.format(input=self.input, output=self.output, hangs=hangs))
        self.config = {
            "application.id": self.application,
            "bootstrap.servers": broker.bootstrap_servers,
            "state.dir": str(folder / "state"),
            "restart.grace.ms": 0,
        }
        self._log = folder / "log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        own = {"PYTHONPATH": str(ROOT), "PATH": os.defpath, "HOME": str(self.folder)}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, *command], cwd=self.folder, env=own | dict(environment or {}), stdout=log, stderr=subprocess.STDOUT
            )
        return self._process

    def script(self) -> subprocess.Popen[bytes]:
        (self.folder / "script.py").write_text(SCRIPT.format(config=self.config))
        return self.start(["script.py"])

    def text(self) -> str:
        return self._log.read_text()

    def wait_for(self, text: str) -> None:
        wait_until(lambda: text in self.text() or self._ended(), 60, f"{text!r} in the log")
        assert text in self.text(), self.text()

    def status(self) -> int:
        assert self._process is not None
        return self._process.wait(60 * PATIENCE)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None


@pytest.fixture
def running(tmp_path: Path, broker: Kafka) -> Iterator[Running]:
    made = Running(tmp_path, broker)
    yield made
    made.kill()


@pytest.mark.broker
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_run_closes_at_a_signal_and_the_previous_handlers_come_back(running: Running, broker: Kafka, number: signal.Signals) -> None:
    process = running.script()
    broker.produce(running.input, [(b"key", b"hello")])
    running.wait_for("processed hello")
    process.send_signal(number)
    assert running.status() == EXIT_CLEAN, running.text()
    assert f"signal {number.name}: closing; a second one ends the process at once" in running.text()
    assert "closed cleanly" in running.text().splitlines()[-1]
    assert [record.value for record in broker.consume(running.output)] == [b"hello"], "the close commits"


@pytest.mark.broker
def test_a_second_signal_ends_the_process_and_says_what_that_means(tmp_path: Path, broker: Kafka) -> None:
    running = Running(tmp_path, broker, hangs=True)
    try:
        process = running.script()
        broker.produce(running.input, [(b"key", b"hello")])
        running.wait_for("processed hello")
        process.send_signal(signal.SIGTERM)
        running.wait_for("signal SIGTERM: closing")
        process.send_signal(signal.SIGINT)
        assert running.status() == 128 + signal.SIGINT
        assert "SIGINT again: this process ends now, without a commit" in running.text()
    finally:
        running.kill()


@pytest.mark.broker
def test_run_logs_the_error_that_ended_the_client_and_returns_1(running: Running, broker: Kafka) -> None:
    running.script()
    broker.produce(running.input, [(b"key", b"fatal")])
    assert running.status() == EXIT_FAILED, running.text()
    assert "ValueError: a fatal record" in running.text().splitlines()[-1]


@pytest.mark.broker
def test_run_on_another_thread_says_that_it_handles_no_signals(running: Running, broker: Kafka, caplog: pytest.LogCaptureFixture) -> None:
    text = serdes.STRING
    builder = StreamsBuilder()
    builder.stream(running.input, Consumed(text, value=text)).to(running.output, Produced(text, value=text))
    streams = KafkaStreams(builder.build(), running.config)
    handler, found = signal.getsignal(signal.SIGTERM), list[int]()
    thread = threading.Thread(target=lambda: found.append(streams.run(leave_group=True)))
    thread.start()
    assert streams.wait_for(KafkaStreams.State.RUNNING, int(60_000 * PATIENCE))
    assert signal.getsignal(signal.SIGTERM) is handler
    streams.close()
    thread.join(60 * PATIENCE)
    assert found == [EXIT_CLEAN]
    assert "run() is not on the main thread" in caplog.text
    with pytest.raises(StreamsError, match="only possible before start"):
        streams.run()


@pytest.mark.broker
def test_penstock_run_needs_only_the_engine_and_takes_settings_from_everywhere(running: Running, broker: Kafka) -> None:
    (running.folder / "settings.toml").write_text('"bootstrap.servers" = "127.0.0.1:1"\n[commit]\ninterval.ms = 50\n')
    environment = {
        "PENSTOCK_APPLICATION_ID": running.application,
        "PENSTOCK_BOOTSTRAP_SERVERS": broker.bootstrap_servers,
        "PENSTOCK_CONFIG": "settings.toml",
        "PENSTOCK_LOG_FORMAT": "text",
        "GRACE": "0",
    }
    given = ["--state-dir", str(running.folder / "state"), "--set", "restart.grace.ms=${GRACE}", "--log-level", "penstock=DEBUG"]
    process = running.start(["-c", ENGINE_ALONE, "run", "app:build", *given], environment)
    broker.produce(running.input, [(b"key", b"hello")])
    running.wait_for("processed hello")
    process.terminate()
    assert running.status() == EXIT_CLEAN, running.text()
    assert " INFO penstock.runtime.client.kafka_streams: instance " in running.text().splitlines()[-1]
    assert [record.value for record in broker.consume(running.output)] == [b"hello"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "application.id is missing: give --application-id (-a), or set PENSTOCK_APPLICATION_ID"),
        (["-a", "x", "-b", "${NOWHERE}"], "bootstrap.servers: ${NOWHERE} is not set in the environment"),
        (["--set", "commit.interval.ms"], "expected KEY=VALUE, for example --set commit.interval.ms=500"),
        (["--config", "absent.toml"], "absent.toml: "),
        (["-a", "x", "-b", "x:1", "--log-level", "penstock=LOUD"], "log level 'penstock=LOUD' (PENSTOCK_LOG_LEVEL) is not known"),
    ],
)
def test_a_mistake_on_the_command_line_is_named(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command.main(["app:build", *arguments], {}) == EXIT_CONFIGURATION
    assert message in capsys.readouterr().err
