"""Three brokers under a fleet of three instances with a standby: each round takes brokers away, or moves what they lead, exactly once.

Topics have three copies, of which two must have a record. At the end of each round the cluster is whole again, and the fleet has settled;
at the end of all rounds

    every output is held against the input: each update once, of all three outputs
    every store on every disk is held against an independent fold of its changelog
    no task was granted while another might have run it, and none is without an owner

Each round reports its gap, the longest time without output of any partition, from its begin to the end of what it brings about.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from confluent_kafka import KafkaException

from benchmarks.updates import Watch
from penstock.orchestration.embedded.kafka import EmbeddedBroker
from penstock.orchestration.embedded.tools import run_tool
from penstock.runtime.coordination.group import members_group
from penstock.runtime.coordination.records import Member
from penstock.runtime.kafka.offsets_topic import partition_of
from tests.chaos.feeder import Feeder
from tests.chaos.fleet import (
    COMMIT_MS,
    KEYS,
    PARTITIONS,
    Fleet,
    each_output_once_and_every_store_as_its_changelog,
    stopped_at_the_end,
)
from tests.support import Kafka, wait_until
from tests.support.brokers import frozen, kill
from tests.support.instances import Application, coordination_log
from tests.support.logs import alter
from tests.support.network import TwoSidedCluster

BROKERS, INSTANCES, RATE = 3, 3, 200
SESSION_MS = int(os.environ.get("TMP_SESSION", "12000"))
"""Longer than the brokers need to replace a coordinator: 6 s until the controller takes it for dead, 3 s more if it was the controller."""
FROZEN_SECONDS, CUT_SECONDS, BELOW_SECONDS, AWAY_SECONDS = 30, 30, 20, 3
WHOLE_SECONDS, CATCH_UP_SECONDS = 180, 180
INTERNAL_PARTITIONS = 4
"""of `__consumer_offsets` and `__transaction_state`, as the embedded broker has them"""


class Round(Enum):
    """Disturbance of the cluster, one per round."""

    RESTART = "rolling restart, clean"
    KILL = "rolling restart, kill -9"
    ELECTION = "preferred leaders elected by the tool"
    FREEZE = f"a broker frozen for {FROZEN_SECONDS} s"
    GROUP = "kill -9 of the group's coordinator"
    TRANSACTIONS = "kill -9 of a transaction coordinator"
    CONTROLLER = "kill -9 of the active controller"
    REASSIGNMENT = "reassignment of all partitions"
    BELOW = f"outputs below min.insync.replicas for {BELOW_SECONDS} s"
    CUT = f"a broker cut off from clients for {CUT_SECONDS} s"


@dataclass(slots=True)
class ClusterChaos:
    """One application and the cluster it runs on. `say` is called with the progress."""

    cluster: TwoSidedCluster
    folder: Path
    application_id: str
    seed: int
    say: Callable[[str], object] = print
    rate: int = RATE
    gaps: dict[Round, list[float]] = field(default_factory=dict)
    """Of each round, the longest gap of each partition in seconds."""
    loads: dict[Round, float] = field(default_factory=dict)
    """The machine's load of each round."""

    def run(self, rounds: Sequence[Round]) -> None:
        """The rounds, then the rest of the input in peace, then the verdict."""
        began = time.monotonic()
        broker = Kafka(self.cluster.bootstrap_servers)
        source = broker.create_topic("in", PARTITIONS)
        outputs = [broker.create_topic(name, PARTITIONS) for name in ("counts", "groups", "windows")]
        settings: dict[str, object] = {"session.timeout.ms": SESSION_MS, "commit.interval.ms": COMMIT_MS, "num.standby.replicas": 1}
        app = Application(broker, self.application_id, source, ",".join(outputs), self.folder, settings, "tests.chaos.fleet:build")
        try:
            with (
                Watch(broker.bootstrap_servers, outputs[0], PARTITIONS) as watch,
                Feeder(broker, source, self.rate, KEYS, random.Random(self.seed)),
            ):
                fleet = Fleet(app)
                for _ in range(INSTANCES):
                    fleet.join()
                fleet.settle()
                scene = _Scene(self.cluster, broker, app, fleet, watch, self.folder)
                for each in rounds:
                    fleet.story = each.value
                    since = time.monotonic()
                    scene.play(each)
                    scene.settle()
                    self.gaps[each] = watch.longest_gaps(since, time.monotonic())
                    self.loads[each] = os.getloadavg()[0]
                    gaps = ", ".join(f"{gap * 1000:.0f}" for gap in self.gaps[each])
                    self.say(f"{time.monotonic() - began:6.1f} s  {fleet.story}; longest gaps {gaps} ms, load {self.loads[each]:.0f}")
            end = stopped_at_the_end(fleet, app, outputs, CATCH_UP_SECONDS)
        finally:
            app.kill_all()
        each_output_once_and_every_store_as_its_changelog(app, outputs)
        self.say(f"{time.monotonic() - began:6.1f} s  {end} records: each output once, every store as its changelog says\n\n{self.table()}")

    def table(self) -> str:
        """The gaps as Markdown."""
        lines = [
            f"| {each.value} | `{each.name.lower()}` | {max(gaps) * 1000:,.0f} | {self.loads[each]:.0f} |"
            for each, gaps in self.gaps.items()
        ]
        return "\n".join(["| event | `--only` | longest gap, ms | load |", "|---|---|---:|---:|", *lines])


@dataclass(frozen=True, slots=True)
class _Scene:
    cluster: TwoSidedCluster
    broker: Kafka
    app: Application
    fleet: Fleet
    watch: Watch
    folder: Path

    def play(self, each: Round) -> None:
        """One round to the end of its cause; the cluster may still be recovering."""
        match each:
            case Round.RESTART:
                for one in self.cluster.brokers:
                    one.stop()
                    self._back(one)
            case Round.KILL:
                for one in self.cluster.brokers:
                    kill(one)
                    time.sleep(AWAY_SECONDS)
                    self._back(one)
            case Round.ELECTION:
                self._tool("kafka-leader-election", "--election-type", "preferred", "--all-topic-partitions")
            case Round.FREEZE:
                one = self.cluster.brokers[0]
                with frozen(one):
                    time.sleep(FROZEN_SECONDS)
            case Round.GROUP:
                while (one := self._leader("__consumer_offsets", members_group(self.app.id))).port == self._controller().port:
                    one.stop()
                    self._back(one)
                self._kill_and_back(one)
            case Round.TRANSACTIONS:
                ids = [record.transactional_id for _, record in coordination_log(self.broker, self.app.id) if isinstance(record, Member)]
                self._kill_and_back(self._leader("__transaction_state", ids[-1]))
            case Round.CONTROLLER:
                self._kill_and_back(self._controller())
            case Round.REASSIGNMENT:
                self._reassign()
            case Round.BELOW:
                self._below()
            case Round.CUT:
                self._cut()

    def settle(self) -> None:
        """Waits until the cluster is whole, the instances run all tasks, and each partition has new outputs."""
        wait_until(self._is_whole, WHOLE_SECONDS, "a whole cluster")
        self.fleet.settle()
        since = time.monotonic()
        wait_until(
            lambda: all(times and times[-1] > since for times in self.watch.times), CATCH_UP_SECONDS, "new outputs of all partitions"
        )

    def _is_whole(self) -> bool:
        try:
            found = self.broker.admin.list_topics(timeout=5)
        except KafkaException:
            return False
        partitions = [each for topic in found.topics.values() for each in topic.partitions.values()]
        return len(found.brokers) == BROKERS and all(each.leader > 0 and len(each.isrs) == len(each.replicas) for each in partitions)

    def _back(self, one: EmbeddedBroker) -> None:
        one.start(WHOLE_SECONDS)
        wait_until(self._is_whole, WHOLE_SECONDS, "a whole cluster")

    def _kill_and_back(self, one: EmbeddedBroker) -> None:
        kill(one)
        time.sleep(2 * SESSION_MS / 1000)  # the others take over, and the fleet goes on with two
        self._back(one)

    def _leader(self, topic: str, key: str) -> EmbeddedBroker:
        """The broker that coordinates a group or a transactional id."""
        partitions = self.broker.admin.list_topics(topic, timeout=10).topics[topic].partitions
        return self.cluster.brokers[partitions[partition_of(key, len(partitions))].leader - 1]

    def _controller(self) -> EmbeddedBroker:
        status = self._tool("kafka-metadata-quorum", "describe", "--status")
        leader = next(line.split()[-1] for line in status.splitlines() if line.startswith("LeaderId"))
        return self.cluster.brokers[int(leader) - 1]

    def _tool(self, name: str, *arguments: str) -> str:
        return run_tool(name, ["--bootstrap-server", self.broker.bootstrap_servers, *arguments])

    def _reassign(self) -> None:
        """Every partition of the application leaves a broker and has another leader, then has three copies again, led by the third."""
        mine = {name: topic for name, topic in self.broker.admin.list_topics(timeout=10).topics.items() if not name.startswith("__")}
        first = {(name, number): each.replicas[0] for name, topic in mine.items() for number, each in topic.partitions.items()}
        self._move({place: [node % 3 + 1, (node + 1) % 3 + 1] for place, node in first.items()})
        self._move({place: [(node + 1) % 3 + 1, node % 3 + 1, node] for place, node in first.items()})
        self._tool("kafka-leader-election", "--election-type", "preferred", "--all-topic-partitions")

    def _move(self, replicas: Mapping[tuple[str, int], list[int]]) -> None:
        moves = [{"topic": name, "partition": number, "replicas": nodes} for (name, number), nodes in replicas.items()]
        path = self.folder / "moves.json"
        path.write_text(json.dumps({"version": 1, "partitions": moves}))
        options = ["--reassignment-json-file", str(path)]
        self._tool("kafka-reassign-partitions", *options, "--execute")
        wait_until(
            lambda: "in progress" not in self._tool("kafka-reassign-partitions", *options, "--verify"),
            WHOLE_SECONDS,
            "the end of the reassignment",
        )

    def _below(self) -> None:
        """A broker stops while the outputs need all three copies. Each instance says so, and goes on by itself."""
        outputs = self.app.output.split(",")
        for topic in outputs:
            alter(self.broker, topic, "min.insync.replicas", str(BROKERS))
        one = self.cluster.brokers[2]
        one.stop()
        time.sleep(BELOW_SECONDS)
        self._back(one)
        for name in self.app.processes:
            assert f"2 copies in sync, min.insync.replicas is {BROKERS}; brokers that are missing: 3" in self.app.log(name)
        for topic in outputs:
            alter(self.broker, topic, "min.insync.replicas", str(BROKERS - 1))

    def _cut(self) -> None:
        """The instances reach the brokers through proxies; one of these forwards nothing for a while."""
        far = {"bootstrap.servers": self.cluster.far_servers}
        for name in list(self.app.processes):
            assert self.app.stop(name) == 0, self.app.log(name)[-4000:]
            self.app.start(name, **far)
            self.fleet.settle()
        self.cluster.proxies[1].cut()
        time.sleep(CUT_SECONDS)
        self.cluster.proxies[1].heal()
