"""Rounds of violence against one application that works under load: each kills the instance at another instant, or the broker below it.

After each kill the remains are looked at: every store must equal its changelog up to the store's own offset, and no more than what is
committed. The next start must continue from there: its restores from the stores' offsets, its tasks from the group's. At the end, outputs
are held against the input. (`python -m tests.chaos`, or `make chaos`, runs many rounds; the tests a few.)
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaException

from penstock.orchestration.embedded.kafka import EmbeddedBroker
from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.coordination.records import Member
from penstock.runtime.model.events import EventKind
from penstock.runtime.model.ids import NextOffset, TopicPartition
from tests.chaos.feeder import Feeder
from tests.chaos.sabotage import INSTANTS, topology
from tests.chaos.witness import Changelogs, committed, each_update_once, end_of_the_dead, stores_equal_their_changelogs, truth
from tests.support import ROOT, Kafka, wait_until
from tests.support.engine import events
from tests.support.instances import coordination_log

PARTITIONS, STORES, KEYS, RATE = 3, 3, 300, 1_500
RUNS_FROM = re.compile(r"task (\d+_\d+) runs from (.*?)(?:[\"}]|$)", re.MULTILINE)
START_SECONDS, DEATH_SECONDS, CATCH_UP_SECONDS = 60, 60, 120

AT_ANY_TIME = "at any time"
WHILE_STARTING = "while it starts"
BROKER = "the broker, too"
KILLS = (*INSTANTS, AT_ANY_TIME, WHILE_STARTING, BROKER)


@dataclass(slots=True)
class Remains:
    """State that a killed instance left: the offsets of its stores and of the group, and how much log there was."""

    stores: dict[TopicPartition, NextOffset]
    offsets: dict[str, int]
    at_ms: float


class Chaos:
    """One application, one instance of it, and the broker of both. `say` is called with the progress."""

    def __init__(
        self,
        embedded: EmbeddedBroker,
        folder: Path,
        application_id: str,
        seed: int,
        say: Callable[[str], object] = print,
        rate: int = RATE,
    ) -> None:
        """`folder` gets the state, the instance's settings and its log. `rate`: records a second that come in."""
        self.embedded = embedded
        self.folder = folder
        self.application_id = application_id
        self.seed = seed
        self.say = say
        self.rate = rate
        self.remains: list[Remains] = []
        self.kills = 0
        self.dice = random.Random(self.seed)
        self.broker = Kafka(self.embedded.bootstrap_servers)
        self.source = self.broker.create_topic("in", PARTITIONS)
        self.outputs = [self.broker.create_topic(name, PARTITIONS) for name in ("counts", "groups", "windows")]
        self.inputs = [self.source, f"{self.application_id}-by-value-repartition"]
        self.changelogs = Changelogs(self.broker)
        self.log = self.folder / "log"
        self.log.touch()
        self.settings: dict[str, object] = {
            "bootstrap.servers": self.broker.bootstrap_servers,
            "state.dir": str(self.folder / "state"),
            "session.timeout.ms": 1_000,
            "heartbeat.interval.ms": 300,
            "commit.interval.ms": 50,
            "statestore.checkpoint.interval.ms": 200,
        }
        self.config = StreamsConfig({**self.settings, "application.id": self.application_id})
        self.topology = topology(self.source, *self.outputs)

    # -- the run -------------------------------------------------------------------------------------------------------------

    def run(self, kills: list[str]) -> None:
        """One round for each kill, then the rest of the input in peace, then the verdict."""
        began = time.monotonic()
        with Feeder(self.broker, self.source, self.rate, KEYS, random.Random(self.seed)):
            for at, kill in enumerate(kills, 1):
                self._round(kill)
                self.say(f"{time.monotonic() - began:6.1f} s  round {at}/{len(kills)}: killed {kill}; {self._done()} records are done")
        self._finish()
        self._verdict()
        self.say(f"{time.monotonic() - began:6.1f} s  {self.kills} kills, each output once, every start from its offset")

    def _done(self) -> int:
        """Records of the input that are committed; -1 while the brokers do not say, as just after a restart."""
        try:
            return sum(committed(self.broker, self.application_id, [self.source]).values())
        except KafkaException:
            return -1

    def _round(self, kill: str) -> None:
        instant = INSTANTS.get(kill)
        if instant is not None and instant.of_restore:
            while not self._holds_state():
                self._round(AT_ANY_TIME)
            shutil.rmtree(self.folder / "state", ignore_errors=True)  # a new disk: there is much to restore
            if self.remains:
                self.remains[-1].stores.clear()
            nth = self.dice.randint(1, 6)
        else:
            nth = self.dice.randint(1, 12)
        before = self.log.stat().st_size
        instance = self._start(kill if instant is not None else None, nth)
        try:
            if instant is not None:
                assert instance.wait(DEATH_SECONDS) == -signal.SIGKILL, self._log_end()
            elif kill == WHILE_STARTING:
                time.sleep(self.dice.uniform(0.5, 2.5))
            else:
                wait_until(lambda: len(self._runs_from(before)) == 2 * PARTITIONS, START_SECONDS, "tasks that run")
                time.sleep(self.dice.uniform(0, 1.0))
                if kill == BROKER:
                    self._kill_broker(instance)
        finally:
            alive = instance.poll() is None
            instance.kill()
            instance.wait()
        assert alive or instance.returncode == -signal.SIGKILL, f"it ended by itself:\n{self._log_end()}"
        self.kills += 1
        self._begins_where_it_was(before)
        self._look()

    def _holds_state(self) -> bool:
        """True if there is something to restore in every store."""
        ends = self.changelogs.ends.values()
        return len(ends) == STORES * PARTITIONS and min(ends) > 1

    def _start(self, kill: str | None, nth: int) -> subprocess.Popen[bytes]:
        path = self.folder / "instance.json"
        path.write_text(
            json.dumps(
                {
                    "application": self.application_id,
                    "instance": "one",
                    "factory": "tests.chaos.sabotage:build",
                    "config": self.settings,
                    "log_path": str(self.log),
                }
            )
        )
        environment = {**os.environ, "TOPICS": ",".join((self.source, *self.outputs)), "KILL_AT": kill or "", "KILL_NTH": str(nth)}
        with (self.folder / "stderr").open("ab") as stderr:
            command = [sys.executable, "-m", "penstock.runtime.instance", "--config", str(path)]
            return subprocess.Popen(command, cwd=ROOT, env=environment, stderr=stderr)

    def _kill_broker(self, instance: subprocess.Popen[bytes]) -> None:
        """-9, and a restart: the instance lives on, and is killed a moment later or in the middle of it."""
        status = self.embedded.status()
        assert status is not None
        os.kill(status.pid, signal.SIGKILL)
        wait_until(lambda: self.embedded.status() is None, what="the end of the broker")
        if self.dice.random() < 0.3:
            instance.kill()
        self.embedded.start()
        if instance.poll() is None:
            done = wait_until(lambda: self._done() + 1, 60, "the group's offsets")
            try:
                wait_until(lambda: self._done() > done, 60, "a commit after the broker's return")
            except AssertionError:
                instance.send_signal(signal.SIGUSR1)  # its stacks go to `stderr`
                raise

    def _finish(self) -> None:
        before = self.log.stat().st_size
        instance = self._start(None, 0)
        try:
            end = sum(self.broker.end_offsets(self.source).values())
            wait_until(lambda: self._done() == end, CATCH_UP_SECONDS, "the end of the input")
            wait_until(lambda: self._groups() == end, CATCH_UP_SECONDS, "the end of the repartition topic")
        finally:
            instance.terminate()
            status = instance.wait(60)
        assert status == 0, self._log_end()
        self._begins_where_it_was(before)
        self._look()

    def _groups(self) -> int:
        return len(self.broker.consume(self.outputs[1]))

    # -- what must be true ---------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """The autopsy."""
        end_of_the_dead(self.broker, self.application_id)
        offsets = committed(self.broker, self.application_id, self.inputs)
        stores = stores_equal_their_changelogs(self.changelogs, self.topology, self.config)
        self.remains.append(Remains(stores, offsets, time.time() * 1000))

    def _runs_from(self, before: int) -> dict[str, int]:
        """Return the first start offset of each task that started since the log had this size, by `topic-partition`."""
        found: dict[str, int] = {}
        with self.log.open(errors="replace") as log:
            log.seek(before)
            for _, places in RUNS_FROM.findall(log.read()):
                for place in places.split(", "):
                    partition, _, offset = place.rpartition("@")
                    found.setdefault(partition, int(offset))
        return found

    def _begins_where_it_was(self, before: int) -> None:
        """A start takes up its input where the instance before it had committed it."""
        if self.remains:
            wanted = self.remains[-1].offsets
            wrong = {at: offset for at, offset in self._runs_from(before).items() if offset != wanted.get(at, 0)}
            assert not wrong, f"began at {wrong}, but the group was at {wanted}"

    def _verdict(self) -> None:
        for topic, wanted in zip(self.outputs, truth(self.broker.consume(self.source)), strict=True):
            each_update_once(self.broker.consume(topic), wanted, topic)
        text = self.log.read_text(errors="replace")
        assert "is wiped" not in text and "damaged" not in text, "state was thrown away"
        self._restores_begin_where_they_were()

    def _restores_begin_where_they_were(self) -> None:
        """As far as killed instances could still report their restores: these began at the offsets that their stores had. That is so of a
        process's first incarnation; one that began later, since the broker was away or its session ran out, has gone on meanwhile."""
        incarnations = {
            record.incarnation for _, record in coordination_log(self.broker, self.application_id) if isinstance(record, Member)
        }
        for event in events(self.broker, self.application_id):
            assert event.kind is not EventKind.TASK_CORRUPTED, event
            before = [remains for remains in self.remains if remains.at_ms < event.incarnation]
            if event.kind is not EventKind.RESTORE_STARTED or not before:
                continue
            if event.incarnation == min(each for each in incarnations if each > before[-1].at_ms):
                stores = event.payload["stores"]
                assert isinstance(stores, dict)
                for reported in stores.values():
                    left = before[-1].stores.get(TopicPartition(reported["topic"], reported["partition"]), 0)
                    assert reported["from"] == left, (event, left)

    def _log_end(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]
