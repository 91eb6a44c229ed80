"""A real Kafka broker in a folder: Apache Kafka in KRaft mode, broker and controller in one process, on the loopback interface only.

The process is detached: it outlives its parent, and is found again by its folder. A file with a process id would not prove that it runs
(ids are reused, and a kill -9 leaves the file behind). Instead, the process inherits a lock on `<folder>/lock`, which the operating system
releases when it ends. The file's content, process id and port, is valid only while the lock is held.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from rich.console import Console

from penstock.orchestration.embedded import class_archive, jars, ports
from penstock.orchestration.embedded.java import java_home
from penstock.runtime.kafka.connection import Connection

DEFAULT_PORT = ports.KAFKA_PORT
START_SECONDS = 60.0
STOP_SECONDS = 30.0
_POLL_SECONDS = 0.05

# Quick to start, small in memory: the C1 compiler and the serial collector suffice for a single machine's broker.
_JVM = ("-Xms64m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Djava.awt.headless=true")

_PROPERTIES = """\
# Written by Penstock at each start.
process.roles=broker,controller
node.id={node}
broker.rack=rack-{node}
# Consumers with `client.rack` read from the copy in their rack.
replica.selector.class=org.apache.kafka.common.replica.RackAwareReplicaSelector
controller.quorum.voters={voters}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller_port}
advertised.listeners=PLAINTEXT://{host}:{port}
log.dirs={log_dir}
auto.create.topics.enable=false
delete.topic.enable=true
# A copy on each broker, up to three; of three copies two must have a record.
default.replication.factor={copies}
min.insync.replicas={in_sync}
offsets.topic.replication.factor={copies}
transaction.state.log.replication.factor={copies}
transaction.state.log.min.isr={in_sync}
share.coordinator.state.topic.replication.factor={copies}
share.coordinator.state.topic.min.isr={in_sync}
# Few internal partitions: each costs files and time to start.
num.partitions=1
offsets.topic.num.partitions=4
transaction.state.log.num.partitions=4
share.coordinator.state.topic.num.partitions=1
# Groups form at once, and a dead member is seen within a second where its client asks for that.
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=500
group.consumer.min.session.timeout.ms=500
group.consumer.min.heartbeat.interval.ms=100
# The controller waits for the end of the last session before it lets the broker in again: a second start takes so much longer. But a
# broker that has no processor for as long is fenced, although there is no other: all partitions lose their leader for a moment, and
# transactions that commit in it hang (see below). With 2 s that happened where fifty members began at once on two cores.
broker.session.timeout.ms=6000
broker.heartbeat.interval.ms=1000
# A single broker has no other one to hand partitions to. Kafka 4.3.1 would first take the leader from each of them, and a transaction
# that commits in that moment is then complete without its markers: its offsets and records stay pending forever.
controlled.shutdown.enable={hands_over}
# The compacted topics are the application's state; the cleaner must be on, and its buffer small.
log.cleaner.enable=true
log.cleaner.threads=1
log.cleaner.dedupe.buffer.size=16777216
log.cleaner.backoff.ms=5000
log.retention.ms=-1
file.delete.delay.ms=1000
num.network.threads=2
num.io.threads=4
background.threads=2
"""


class BrokerError(RuntimeError):
    """The broker cannot be started or stopped; the message says why and gives a remedy."""


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """Process that runs in a broker's folder."""

    pid: int
    bootstrap_servers: str
    data_dir: Path
    log_path: Path


@dataclass(frozen=True, slots=True)
class Seat:
    """Place of a broker in its cluster. `node`: its id; `controllers`: the port of each node's controller, its own included."""

    node: int
    controllers: Mapping[int, int]
    cluster_id: str


class EmbeddedBroker:
    """Kafka broker with its data in `data_dir`, listening on `127.0.0.1:port`. The constructor has no side effects; call `start`. `seat`:
    it belongs to a cluster (`cluster.py`), and answers only while most of its controllers run.

    >>> broker = EmbeddedBroker(Path(".penstock/broker"))
    >>> broker.start().bootstrap_servers
    '127.0.0.1:9092'
    """

    _jar_set: str = jars.KAFKA

    def __init__(self, data_dir: Path, port: int = DEFAULT_PORT, seat: Seat | None = None) -> None:
        self.data_dir = data_dir.resolve()
        self.port = port
        self._seat = seat
        self._quick_start: Sequence[str] = ()

    @property
    def bootstrap_servers(self) -> str:
        return f"{ports.LOOPBACK}:{self.port}"

    @property
    def connection(self) -> Connection:
        """How this machine's clients reach the broker."""
        return Connection(self.bootstrap_servers)

    @property
    def log_path(self) -> Path:
        return self.data_dir / "broker.log"

    def start(self, timeout: float = START_SECONDS) -> BrokerStatus:
        """Start the broker, unless it runs, and return when it answers. Data of earlier runs is kept.

        `timeout` is in seconds and excludes a first download of the jars. Raises BrokerError (the port is taken, the broker exits at once,
        the folder is not writable) and JarsError.
        """
        self.launch(timeout)
        return self.wait_until_ready(timeout)

    def launch(self, timeout: float = START_SECONDS) -> None:
        """Start the process, unless it runs, without waiting until it answers. Raises as `start`."""
        classes = jars.class_path(self._jar_set)
        self._quick_start = self._archive(classes)
        try:
            self.data_dir.mkdir(parents=True, exist_ok=True)
            lock = (self.data_dir / "lock").open("a+")
        except OSError as error:
            raise BrokerError(f"The broker's folder {self.data_dir} cannot be used: {error.strerror}") from error
        deadline = time.monotonic() + timeout
        with lock:
            while not _try_lock(lock):
                if self._runs_already(deadline):
                    return
            lock.truncate(0)
            self._check_port()
            self._write_properties()
            self._format(classes)
            self._launch(classes, lock)

    def stop(self, timeout: float = STOP_SECONDS) -> bool:
        """Ask the broker to close (SIGTERM) and wait until it has; return True if one was running. Its data is kept.

        A broker that has not closed after `timeout` seconds is killed; it recovers its log at the next start.
        """
        status = self.status()
        if status is None:
            return False
        for sign, patience in ((signal.SIGTERM, timeout), (signal.SIGKILL, STOP_SECONDS)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(status.pid, sign)
            if self._wait_until_gone(patience):
                return True
        raise BrokerError(f"The broker (process {status.pid}) does not end")

    def status(self) -> BrokerStatus | None:
        """Return the status of the broker that runs in this folder, on any port; None if there is none."""
        try:
            with (self.data_dir / "lock").open("r+") as lock:
                if _try_lock(lock):
                    return None
                content = lock.read()
        except FileNotFoundError:
            return None
        if not content:  # another process is just starting it
            return None
        facts = json.loads(content)
        return BrokerStatus(facts["pid"], f"{ports.LOOPBACK}:{facts['port']}", self.data_dir, self.log_path)

    def _runs_already(self, deadline: float) -> bool:
        """Return True if the requested broker runs in the folder, False if that is not known yet. Raises BrokerError for another broker."""
        status = self.status()
        if status is None:  # it is just starting, or another process holds its lock to read the file
            if time.monotonic() > deadline:
                raise BrokerError(f"Another process holds {self.data_dir / 'lock'}, and does not start a broker")
            time.sleep(_POLL_SECONDS)
            return False
        if status.bootstrap_servers != self.bootstrap_servers:
            raise BrokerError(
                f"A broker with this data ({self.data_dir}) runs already at {status.bootstrap_servers} (process {status.pid}). "
                f"Use that one, or stop it before you start it on port {self.port}: penstock broker stop"
            )
        return True

    def _check_port(self) -> None:
        if not ports.is_free(self.port):
            raise BrokerError(
                f"Port {self.port} of {ports.LOOPBACK} is taken by {ports.holder(self.port)}. "
                "Stop that, or choose another port: penstock broker start --port …, or penstock dev --kafka-port …"
            )

    def _write_properties(self) -> None:
        # A single broker's controller is reached by itself alone, so its port may differ between starts.
        seat = self._seat or Seat(1, {1: ports.free_port()}, "")
        copies = min(len(seat.controllers), 3)
        values = {
            "host": ports.LOOPBACK,
            "port": self.port,
            "node": seat.node,
            "controller_port": seat.controllers[seat.node],
            "voters": ",".join(f"{node}@{ports.LOOPBACK}:{port}" for node, port in seat.controllers.items()),
            "log_dir": self.data_dir / "log",
            "copies": copies,
            "in_sync": max(1, copies - 1),
            "hands_over": str(copies > 1).lower(),
        }
        (self.data_dir / "server.properties").write_text(_PROPERTIES.format(**values))

    def _format(self, classes: str) -> None:
        """Format the folder's storage with a cluster id, once."""
        if (self.data_dir / "log" / "meta.properties").exists():
            return
        cluster = new_cluster_id() if self._seat is None else self._seat.cluster_id
        properties = str(self.data_dir / "server.properties")
        command = [
            *self._java(classes),
            "kafka.tools.StorageTool",
            "format",
            "--ignore-formatted",
            "-t",
            cluster,
            "-c",
            properties,
            *self._format_options(),
        ]
        done = subprocess.run(command, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode:
            raise BrokerError(f"The broker's folder {self.data_dir} cannot be formatted:\n{(done.stdout + done.stderr).strip()}")

    def _format_options(self) -> list[str]:
        """Return further options of the tool that formats the storage; for subclasses."""
        return []

    def _java(self, classes: str) -> list[str]:
        settings = [f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties')}", f"-Dpenstock.log={self.log_path}"]
        return [str(java_home() / "bin" / "java"), *_JVM, *self._quick_start, *settings, "-cp", classes]

    def _archive(self, classes: str) -> Sequence[str]:
        """Return the options for a quick start of Java; the first broker of a user records them."""

        def record(options: Sequence[str]) -> bool:
            Console(stderr=True).print("Preparing quick starts of Kafka (once per user, a few seconds)")
            with tempfile.TemporaryDirectory() as folder:
                return _Recorder(Path(folder), self._jar_set, options).run()

        return class_archive.options(java_home() / "bin" / "java", classes, record)

    def _launch(self, classes: str, lock: IO[str]) -> None:
        """Start the process, which inherits the lock, and write its process id and port to the lock's file."""
        broker = [*self._java(classes), "kafka.Kafka", str(self.data_dir / "server.properties")]
        started = subprocess.run(
            # The shell exits at once, so the broker is not our child process and we need not wait for it.
            ["sh", "-c", '"$@" > broker.out 2>&1 & echo $!', "sh", *broker],
            check=True,
            cwd=self.data_dir,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            pass_fds=(lock.fileno(),),
        )
        lock.write(json.dumps({"pid": int(started.stdout), "port": self.port}))
        lock.flush()

    def wait_until_ready(self, timeout: float = START_SECONDS) -> BrokerStatus:
        """Return when the broker is listed in its own cluster metadata. Raises BrokerError with the end of its log if it exits or times
        out."""
        deadline = time.monotonic() + timeout
        while not ports.answers(self.port):
            self._check_alive(deadline, timeout)
            time.sleep(_POLL_SECONDS)
        admin = AdminClient(self.connection.client({"log_level": 0}))
        while True:
            status = self._check_alive(deadline, timeout)
            with contextlib.suppress(KafkaException):  # still starting: tried again until the deadline
                if (1 if self._seat is None else self._seat.node) in admin.list_topics(timeout=1).brokers:
                    if self._seat is None:  # in a cluster, not before all brokers are there
                        _make_group_coordinator(admin)
                    return status
            time.sleep(_POLL_SECONDS)  # also after an answer: a broker of a cluster answers while the controller has it fenced

    def _check_alive(self, deadline: float, timeout: float) -> BrokerStatus:
        status = self.status()
        if status is None:
            raise BrokerError(f"The broker ended while it was starting. The end of {self.log_path}:\n{self._log_tail()}")
        if time.monotonic() > deadline:
            raise BrokerError(
                f"The broker (process {status.pid}) has not answered for {timeout:.0f} s. The end of {self.log_path}:\n{self._log_tail()}"
            )
        return status

    def _wait_until_gone(self, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        while self.status() is not None:
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_SECONDS)
        return True

    def _log_tail(self, lines: int = 15) -> str:
        text = "".join(path.read_text(errors="replace") for path in (self.log_path, self.data_dir / "broker.out") if path.exists())
        return "\n".join(f"  {line}" for line in text.splitlines()[-lines:])


class _Recorder(EmbeddedBroker):
    """A broker that starts and ends in order to record its classes."""

    def __init__(self, data_dir: Path, jar_set: str, options: Sequence[str]) -> None:
        super().__init__(data_dir, ports.free_port())
        self._jar_set = jar_set
        self._options = options

    def run(self) -> bool:
        """Return False if it did not start, or had to be killed."""
        try:
            status = self.start()
        except BrokerError:  # the start that follows says why, or succeeds without an archive
            return False
        os.kill(status.pid, signal.SIGTERM)
        ended = self._wait_until_gone(STOP_SECONDS)
        self.stop(timeout=0)
        return ended

    def _archive(self, classes: str) -> Sequence[str]:
        return ()

    def _launch(self, classes: str, lock: IO[str]) -> None:
        self._quick_start = self._options  # not before the storage was formatted, by a Java of its own
        super()._launch(classes, lock)


def _make_group_coordinator(admin: AdminClient) -> None:
    """Ask for a group, which makes the brokers create the topic of committed offsets. Else the first consumer's request does: librdkafka
    hears "not coordinator" and tries again after three seconds."""
    for answer in admin.describe_consumer_groups(["penstock"], request_timeout=2).values():
        with contextlib.suppress(KafkaException):  # there is no such group: the request was all
            answer.result()


def new_cluster_id() -> str:
    """Return an id as Kafka's `Uuid.randomUuid` does: it never begins with a dash, which a command line would take for an option."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return text


def _try_lock(lock: IO[str]) -> bool:
    """Try to acquire the lock. It is held until the file is closed here and in every child that inherited it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
