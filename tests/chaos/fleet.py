"""Two to six instances of one application under a steady load: they join, leave, restart, are killed and frozen, at random, exactly once.

What happens next is drawn by a seed. Most events come when the fleet has settled after the one before, so that a gap in the output has one
cause; some come at once after it, which is a cause of its own. At the end

    every output is held against the input: each update once, of all three outputs
    every store on every disk is held against an independent fold of its changelog
    no task was granted while another might have run it, and none is without an owner

and the longest gaps are printed by cause. (`python -m tests.chaos fleet`, or `make chaos ARGS=fleet`, runs many events; a test a few.)
"""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import psutil

from benchmarks.updates import Watch
from penstock.orchestration.embedded.kafka import EmbeddedBroker
from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.coordination.commands import CommandClient
from penstock.runtime.model.events import EventKind
from penstock.runtime.topology.topology import Topology
from tests.chaos.feeder import Feeder
from tests.chaos.sabotage import topology
from tests.chaos.witness import Changelogs, committed, each_update_once, stores_equal_their_changelogs, truth
from tests.support import Kafka, wait_until
from tests.support.engine import events_of_kind
from tests.support.fleets import ran_nothing_twice, settled_log
from tests.support.instances import Application

PARTITIONS, KEYS, RATE = 4, 300, 1_000
SESSION_MS, COMMIT_MS = 2_000, 100
FEWEST, MOST = 2, 6
SETTLE_SECONDS, CATCH_UP_SECONDS, END_SECONDS = 120, 120, 60
AT_ONCE = 0.2
"""How many of the events come without waiting for the end of the one before."""


class Cause(Enum):
    """Why outputs may stop for a while."""

    JOIN = "join"
    LEAVE = "leave"
    RESTART = "restart"
    KILL = "kill -9"
    KILL_WORKER = "kill -9 of a worker"
    FREEZE = "freeze"
    SEVERAL = "several at once"


def build() -> Topology:
    """The factory of the instances; their topics come from the environment."""
    return topology(os.environ["TEST_SOURCE"], *os.environ["TEST_OUTPUT"].split(","))


@dataclass(slots=True)
class FleetChaos:
    """One application and the broker it runs on. `say` is called with the progress; `standbys` and `workers` are of each task and each
    instance."""

    embedded: EmbeddedBroker
    folder: Path
    application_id: str
    seed: int
    say: Callable[[str], object] = print
    rate: int = RATE
    standbys: int = 0
    workers: int = 1
    most: int = MOST
    gaps: dict[Cause, list[list[float]]] = field(default_factory=dict)
    """Of each event, the longest gap of each partition in seconds."""

    def run(self, count: int) -> None:
        """So many events, then the rest of the input in peace, then the verdict."""
        dice, began = random.Random(self.seed), time.monotonic()
        broker = Kafka(self.embedded.bootstrap_servers)
        source = broker.create_topic("in", PARTITIONS)
        outputs = [broker.create_topic(name, PARTITIONS) for name in ("counts", "groups", "windows")]
        settings: dict[str, object] = {
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": SESSION_MS // 4,
            "commit.interval.ms": COMMIT_MS,
            "num.standby.replicas": self.standbys,
            "num.stream.threads": self.workers,
            "acceptable.recovery.lag": 0,
        }
        app = Application(broker, self.application_id, source, ",".join(outputs), self.folder, settings, "tests.chaos.fleet:build")
        try:
            with (
                Watch(broker.bootstrap_servers, outputs[0], PARTITIONS) as watch,
                Feeder(broker, source, self.rate, KEYS, random.Random(self.seed)),
            ):
                fleet = Fleet(app, self.workers)
                for _ in range(FEWEST):
                    fleet.join()
                fleet.settle()
                done = 0
                while done < count:
                    done += self._step(fleet, watch, dice, count - done)
                    self.say(f"{time.monotonic() - began:6.1f} s  {done}/{count} {fleet.story}; {len(app.processes)} instances")
            stopped_at_the_end(fleet, app, outputs, CATCH_UP_SECONDS)
        finally:
            app.kill_all()
        each_output_once_and_every_store_as_its_changelog(app, outputs)
        self.say(
            f"{time.monotonic() - began:6.1f} s  {count} events: each output once, every store as its changelog says\n\n{self.table()}"
        )

    def _step(self, fleet: Fleet, watch: Watch, dice: random.Random, left: int) -> int:
        """An event, or two at once, to the end of what it brings about; says how many."""
        fleet.story = ""
        time.sleep(dice.uniform(0.2, 1.5))
        since = time.monotonic()
        causes = [fleet.happens(dice, self.most)]
        if left > 1 and dice.random() < AT_ONCE:
            time.sleep(dice.uniform(0, 1.5))
            causes.append(fleet.happens(dice, self.most))
        fleet.settle()
        time.sleep(3 * COMMIT_MS / 1000)
        cause = causes[0] if len(causes) == 1 else Cause.SEVERAL
        gaps = watch.longest_gaps(since, time.monotonic())
        self.gaps.setdefault(cause, []).append(gaps)
        fleet.story += f"; longest gaps {', '.join(f'{gap * 1000:.0f}' for gap in gaps)} ms"
        return len(causes)

    def table(self) -> str:
        """The longest gaps by cause, as Markdown."""
        lines = [
            "| cause | times | longest gap, ms | median of the longest, ms | median of all partitions, ms |",
            "|---|---:|---:|---:|---:|",
        ]
        for cause in Cause:
            found = self.gaps.get(cause)
            if found:
                longest = [max(gaps) * 1000 for gaps in found]
                each = statistics.median(gap * 1000 for gaps in found for gap in gaps)
                lines.append(f"| {cause.value} | {len(found)} | {max(longest):,.0f} | {statistics.median(longest):,.0f} | {each:,.0f} |")
        return "\n".join(lines)


def stopped_at_the_end(fleet: Fleet, app: Application, outputs: list[str], seconds: float) -> int:
    """Wait until the rest of the input is processed, and stop the instances; no task may have been granted twice. Return the number of
    records. `seconds`: the longest wait."""
    broker = app.broker
    end = sum(broker.end_offsets(app.source).values())
    wait_until(lambda: sum(committed(broker, app.id, [app.source]).values()) == end, seconds, "the end of the input")
    wait_until(lambda: len(broker.consume(outputs[1])) == end, seconds, "the end of the repartition topic")
    fleet.settle()
    log = settled_log(broker, app.id, fleet.tasks)
    for name in list(app.processes):
        assert app.stop(name) == 0, app.log(name)[-4000:]
    ran_nothing_twice(log)
    return end


def each_output_once_and_every_store_as_its_changelog(app: Application, outputs: list[str]) -> None:
    """Holds what the stopped instances left against the input."""
    for topic, wanted in zip(outputs, truth(app.broker.consume(app.source)), strict=True):
        each_update_once(app.broker.consume(topic), wanted, topic)
    corrupted = events_of_kind(app.broker, app.id, EventKind.TASK_CORRUPTED)
    assert not corrupted, corrupted
    changelogs = Changelogs(app.broker)
    for folder in sorted(app.folder.glob(f"*/{app.id}")):
        config = StreamsConfig(
            {
                "application.id": app.id,
                "bootstrap.servers": app.broker.bootstrap_servers,
                "state.dir": str(folder.parent),
            }
        )
        stores_equal_their_changelogs(changelogs, topology(app.source, *outputs), config)


class Fleet:
    """The instances that there are, and what may befall them."""

    def __init__(self, app: Application, workers: int = 1) -> None:
        self._app = app
        self._workers = workers
        self._begun = 0
        self.tasks = {f"{part}_{number}" for part in (0, 1) for number in range(PARTITIONS)}
        self.story = ""
        """What was done lately."""

    def happens(self, dice: random.Random, most: int) -> Cause:
        """One event that may be now. A frozen instance is awake again when this returns, and one that leaves has left."""
        count = len(self._app.processes)
        may = [Cause.RESTART, Cause.FREEZE]
        may += [Cause.JOIN] * 2 if count < most else []
        may += [Cause.LEAVE, Cause.KILL] if count > FEWEST else []
        may += [Cause.KILL_WORKER] if self._workers > 1 else []
        cause = dice.choice(may)
        if cause is Cause.JOIN:
            self.join()
            return cause
        name = dice.choice(sorted(self._app.processes))
        self._tell(f"{cause.value} of {name}")
        match cause:
            case Cause.LEAVE:
                self._leave(name)
            case Cause.RESTART:
                assert self._app.stop(name) == 0, self._app.log(name)[-4000:]
                self._app.start(name)
            case Cause.KILL:
                workers = self._workers_of(name) if dice.random() < 0.5 else []
                for worker in workers:  # otherwise they have to notice themselves that their instance is gone
                    worker.kill()
                self._app.kill(name)
            case Cause.KILL_WORKER:
                dice.choice(wait_until(lambda: self._workers_of(name), what=f"workers of {name}")).kill()
            case Cause.FREEZE:
                self._freeze(name, dice.uniform(0.2, 2.0) * SESSION_MS / 1000)
        return cause

    def join(self) -> None:
        """A new instance, with an empty disk."""
        self._begun += 1
        name = f"i{self._begun}"
        self._tell(f"join of {name}")
        self._app.start(name)

    def _leave(self, name: str) -> None:
        with CommandClient(self._app.id, self._app.broker.connection, "chaos") as client:
            client.send("close", instance=name)
        assert self._app.processes.pop(name).wait(END_SECONDS) == 0, self._app.log(name)[-4000:]

    def _workers_of(self, name: str) -> list[psutil.Process]:
        """The worker processes of an instance; none where its worker is a thread."""
        return psutil.Process(self._app.processes[name].pid).children() if self._workers > 1 else []

    def _freeze(self, name: str, seconds: float) -> None:
        self.story += f" for {seconds:.1f} s"
        frozen = [psutil.Process(self._app.processes[name].pid), *self._workers_of(name)]
        for process in frozen:
            process.suspend()
        time.sleep(seconds)
        for process in frozen:
            process.resume()

    def _tell(self, text: str) -> None:
        self.story += f", {text}" if self.story else text

    def settle(self) -> None:
        """Waits until the instances run all tasks, and as many each as the others, within one."""
        wait_until(self._has_settled, SETTLE_SECONDS, f"peace after: {self.story}")

    def _has_settled(self) -> bool:
        for name, process in self._app.processes.items():
            assert process.poll() is None, f"{name} ended with status {process.returncode}:\n{self._app.log(name)[-4000:]}"
        reports = self._app.reports()
        counts = [len(tasks) for tasks in reports.values()]
        states = {state for tasks in reports.values() for state in tasks.values()}
        owned = {task for tasks in reports.values() for task in tasks}
        return (
            reports.keys() == self._app.processes.keys()
            and states == {"RUNNING"}
            and owned == self.tasks
            and sum(counts) == len(owned)
            and max(counts) - min(counts) <= 1
        )
