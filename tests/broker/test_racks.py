"""Racks on three brokers with `broker.rack`: follower fetching, placement of tasks and standbys, and the end and return of a rack
(coordination.md). The instances report librdkafka's statistics of their consumers."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Consumer
from confluent_kafka.cimpl import NewTopic

from penstock.orchestration.embedded.cluster import EmbeddedCluster
from penstock.orchestration.embedded.kafka import EmbeddedBroker
from penstock.orchestration.embedded.ports import free_port
from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.kafka import clients
from penstock.runtime.kafka.topic_admin import TopicAdmin
from penstock.runtime.model.ids import TopicPartition
from penstock.runtime.topology.topology import Topology
from tests.support import PATIENCE, Kafka, unique, wait_until
from tests.support.brokers import QuickCluster, frozen, kill
from tests.support.instances import Application, copies
from tests.support.instances import build as build_count

BROKERS = 3
KEYS, RECORDS = 20, 1_000
RACKS = {"a": 1, "b": 2, "c": 3}
"""Of each instance, the node that has the same rack."""
RACK_SETTINGS = {
    "session.timeout.ms": 12_000,  # longer than the controller needs to replace a coordinator
    "heartbeat.interval.ms": 1_000,
    "num.standby.replicas": 1,
    "acceptable.recovery.lag": 0,
}
Read = Counter[tuple[int, str]]
"""Records by the broker that they came from, and by topic."""


def build() -> Topology:
    """Return the topology of the processes. Each consumer appends its statistics to a file."""
    path = Path(os.environ["TEST_STATISTICS"]) / str(os.getpid())

    def reported(text: str) -> None:
        with path.open("a") as file:
            file.write(text + "\n")

    consumer = clients._consumer
    watched = {"statistics.interval.ms": 100, "stats_cb": reported}
    setattr(clients, "_consumer", lambda properties: consumer({**properties, **watched}))  # noqa: B010  # mypy refuses to assign a function
    return build_count()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    found = QuickCluster(tmp_path_factory.mktemp("brokers"), [free_port() for _ in range(BROKERS)])
    try:
        found.start()
        yield found
    finally:
        found.stop()


@pytest.fixture
def app(cluster: EmbeddedCluster, application_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Application]:
    """Yield an application of three partitions, each with a copy in every rack, and a leader in one of its own."""
    monkeypatch.setenv("TEST_STATISTICS", str(tmp_path))
    broker = Kafka(cluster.bootstrap_servers)
    source, output = placed(broker, "in", [[1, 2, 3], [2, 3, 1], [3, 1, 2]]), broker.create_topic("out", 3)
    made = Application(broker, application_id, source, output, tmp_path, dict(RACK_SETTINGS), "tests.broker.test_racks:build")
    try:
        yield made
    finally:
        made.kill_all()


def placed(broker: Kafka, prefix: str, replicas: Sequence[Sequence[int]]) -> str:
    """Create a topic whose partitions have copies on these nodes, the leader first; return its name."""
    name = unique(prefix)
    new = NewTopic(name, len(replicas), replica_assignment=[list(each) for each in replicas], config={"min.insync.replicas": "1"})
    broker.admin.create_topics([new])[name].result(30 * PATIENCE)
    wait_until(lambda: name in broker.topics(), what=f"topic {name}")
    return name


def known_by(brokers: Sequence[EmbeddedBroker]) -> Kafka:
    """Return a client that connects to these brokers first: one that knows a broker that is away waits for it."""
    return Kafka(",".join(broker.bootstrap_servers for broker in brokers))


def start(app: Application, name: str, **more: object) -> None:
    """Start an instance in its rack."""
    app.start(name, **{"client.rack": f"rack-{RACKS[name]}", **more})


class Statistics:
    """Statistics of the consumers of an instance's process so far."""

    def __init__(self, app: Application, name: str) -> None:
        self._path = app.folder / str(app.processes[name].pid)

    def read_from(self) -> Read:
        """Return the records that came from each broker. Those of an interval count for the broker that the partition was fetched from at
        its end."""
        found: Read = Counter()
        before: dict[tuple[str, str, str], int] = {}
        for each in self._all():
            for topic in each["topics"].values():
                for number, partition in topic["partitions"].items():
                    place = (each["name"], topic["topic"], number)
                    found[partition["broker"], topic["topic"]] += partition["rxmsgs"] - before.get(place, 0)
                    before[place] = partition["rxmsgs"]
        return +found

    def fetched_from(self, topic: str) -> dict[int, int]:
        """Return the broker that each partition of a topic is fetched from now."""
        found: dict[int, int] = {}
        for each in {each["name"]: each for each in self._all()}.values():
            partitions = each["topics"].get(topic, {"partitions": {}})["partitions"]
            found |= {int(number): part["broker"] for number, part in partitions.items() if part["fetch_state"] == "active"}
        return found

    def _all(self) -> list[dict]:  # type: ignore[type-arg]  # librdkafka's document
        lines = self._path.read_text().splitlines(keepends=True) if self._path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]


def changelog_of(app: Application) -> str:
    (found,) = [topic for topic in app.broker.topics() if topic.startswith(app.id) and topic.endswith("-changelog")]
    return found


def standbys(app: Application) -> dict[str, set[str]]:
    """Return the complete copies that each instance has."""
    return {name: {task for task, each in mine.items() if each.caught_up} for name, mine in copies(app.broker, app.id).items()}


def active(app: Application) -> dict[str, set[str]]:
    return {name: set(tasks) for name, tasks in app.reports().items()}


def test_input_changelogs_and_standbys_are_read_from_the_follower_in_the_rack(app: Application) -> None:
    start(app, "a")
    app.becomes({"a": 3}, 90)
    first = Statistics(app, "a")
    wait_until(lambda: first.fetched_from(app.source) == {0: 1, 1: 1, 2: 1}, what="all input from the follower of rack-1")
    app.produce(RECORDS, KEYS)
    app.each_update_came_once(RECORDS, KEYS)
    wait_until(lambda: first.read_from()[1, app.source] == RECORDS, what="statistics of all records")
    assert {node for node, topic in first.read_from() if topic == app.source} == {1}

    start(app, "b")
    app.becomes({"a": 2, "b": 1}, 90)
    wait_until(lambda: sum(map(len, standbys(app).values())) == 3, 60, "a copy of each task")
    second, changelog = Statistics(app, "b"), changelog_of(app)
    wait_until(lambda: second.read_from()[2, changelog] > 0, what="statistics of the restore")
    app.produce(RECORDS, KEYS)
    app.each_update_came_once(2 * RECORDS, KEYS)
    wait_until(lambda: second.read_from()[2, app.source] > 0, what="statistics of the input")
    assert {node for node, topic in second.read_from() if topic in (app.source, changelog)} == {2}


def test_min_traffic_runs_tasks_where_their_input_is(app: Application) -> None:
    """Each partition has one copy, so only one rack is right for its task."""
    homes = [3, 3, 1, 1, 2, 2]
    app.source = placed(app.broker, "in", [[node] for node in homes])
    app.settings |= {"rack.aware.assignment.strategy": "min_traffic", "num.standby.replicas": 0, "max.warmup.replicas": 6}
    wanted = {name: {f"0_{number}" for number, home in enumerate(homes) if home == node} for name, node in RACKS.items()}
    app.output = app.broker.create_topic("out", len(homes))
    for name in RACKS:
        start(app, name)
    wait_until(lambda: active(app) == wanted, 90, f"the tasks in the racks of their input: {wanted}")
    app.becomes(dict.fromkeys(RACKS, 2))
    app.produce(RECORDS, KEYS)
    app.each_update_came_once(RECORDS, KEYS)
    for name, node in RACKS.items():
        statistics = Statistics(app, name)
        wait_until(lambda node=node, of=statistics: list(of.fetched_from(app.source).values()) == [node, node], what="input of the rack")  # type: ignore[misc]


def test_standbys_are_in_another_rack_than_their_task(app: Application) -> None:
    """Four instances in two racks: without tags half of the copies would be in the same."""
    rack_of = {"a1": 1, "a2": 1, "b1": 2, "b2": 2}
    app.source = placed(app.broker, "in", [[1, 2, 3]] * 4)
    app.output = app.broker.create_topic("out", 4)
    for name, rack in rack_of.items():
        tag = {"client.rack": f"rack-{rack}", "client.tag.rack": f"rack-{rack}", "rack.aware.assignment.tags": "rack"}
        app.start(name, **tag)
    app.becomes(dict.fromkeys(rack_of, 1), 90)
    app.produce(RECORDS, KEYS)

    def apart() -> bool:
        where = {task: rack_of[name] for name, tasks in active(app).items() for task in tasks}
        kept = [(task, rack_of[name]) for name, tasks in standbys(app).items() for task in tasks]
        return len(where) == len({task for task, _ in kept}) == len(kept) == 4 and all(where[task] != rack for task, rack in kept)

    wait_until(apart, 60, "a copy of each task in the other rack")
    app.each_update_came_once(RECORDS, KEYS)


@pytest.mark.nightly
def test_a_rack_goes_away_and_returns(app: Application, cluster: EmbeddedCluster) -> None:
    """Its broker and its instance are killed under load: each update comes once, and afterwards all is as before."""
    app.settings |= {"rack.aware.assignment.strategy": "min_traffic", "rack.aware.assignment.tags": "rack"}
    tags = {name: {"client.tag.rack": f"rack-{node}"} for name, node in RACKS.items()}
    for name in RACKS:
        start(app, name, **tags[name])
    app.becomes(dict.fromkeys(RACKS, 1), 90)
    app.produce(RECORDS, KEYS)
    wait_until(lambda: sum(map(len, standbys(app).values())) == 3, 60, "a copy of each task")
    wait_until(lambda: set(Statistics(app, "a").fetched_from(app.source).values()) == {1}, what="the input from rack-1")

    away = cluster.brokers[0]
    kill(away)
    try:
        app.kill("a")
        app.broker = known_by(cluster.brokers[1:])
        app.produce(RECORDS, KEYS)
        app.each_update_came_once(2 * RECORDS, KEYS, 120)
        assert set(active(app)) >= {"b", "c"}
    finally:
        away.start()  # other tests use it
    app.broker = known_by(cluster.brokers)
    start(app, "a", **tags["a"])
    app.becomes(dict.fromkeys(RACKS, 1), 120)
    app.produce(RECORDS, KEYS)
    app.each_update_came_once(3 * RECORDS, KEYS, 60)
    back = Statistics(app, "a")
    wait_until(lambda: set(back.fetched_from(app.source).values()) == {1}, 60, "the input from rack-1 again")


@pytest.mark.nightly
def test_a_broker_freezes_that_an_instance_of_its_rack_reads_from(app: Application, cluster: EmbeddedCluster) -> None:
    """It leads no partition of the input, so the brokers change nothing: the instance's requests to it have to time out."""
    app.source = placed(app.broker, "in", [[2, 1, 3], [3, 1, 2]])
    app.settings |= {"num.standby.replicas": 0, "main.consumer.socket.timeout.ms": 10_000}
    start(app, "a")
    app.becomes({"a": 2}, 90)
    reads = Statistics(app, "a")
    wait_until(lambda: reads.fetched_from(app.source) == {0: 1, 1: 1}, what="the input from rack-1")
    with frozen(cluster.brokers[0]):
        app.broker = known_by(cluster.brokers[1:])
        app.produce(RECORDS, KEYS)
        app.each_update_came_once(RECORDS, KEYS, 60)
    wait_until(lambda: reads.fetched_from(app.source) == {0: 1, 1: 1}, 60, "the input from rack-1 again")
    app.produce(RECORDS, KEYS)
    app.each_update_came_once(2 * RECORDS, KEYS)


def test_a_broker_that_is_away_keeps_its_rack(app: Application, cluster: EmbeddedCluster) -> None:
    """Otherwise tasks would move away from the rack of a broker that restarts."""
    config = StreamsConfig({"application.id": app.id, "bootstrap.servers": cluster.bootstrap_servers})
    topics, partition = TopicAdmin(config), TopicPartition(placed(app.broker, "any", [[3, 2]]), 0)
    known = wait_until(lambda: topics.racks([partition.topic]).get(partition), what="the topic, on the broker that is asked")
    assert known == frozenset({"rack-2", "rack-3"})
    away = cluster.brokers[2]
    kill(away)
    try:
        others = known_by(cluster.brokers[:2])
        wait_until(lambda: len(others.admin.list_topics(timeout=10).brokers) == 2, 60, "its absence")
        assert topics.racks([partition.topic])[partition] == known
        wait_until(lambda: TopicAdmin(config).racks([partition.topic])[partition] == frozenset(), what="no answer: a part would mislead")
    finally:
        away.start()


@pytest.mark.nightly
def test_the_members_of_a_group_are_known_while_the_broker_that_coordinates_it_is_frozen(cluster: EmbeddedCluster) -> None:
    """A client goes on waiting for it: another one has to ask for the broker that has replaced it."""
    broker, group = Kafka(cluster.bootstrap_servers), unique("group")
    topic = broker.create_topic("joined")
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "group.id": group, "client.id": "member", "log_level": 0}
    member = Consumer({**settings, "session.timeout.ms": 45_000})
    member.subscribe([topic])
    topics = TopicAdmin(StreamsConfig({"application.id": group, "bootstrap.servers": cluster.bootstrap_servers}))
    try:
        wait_until(lambda: member.poll(0.2) or topics.members(group) == ["member"], 30, "the member")
        found = broker.admin.describe_consumer_groups([group])[group].result(30).coordinator
        coordinator = next(each for each in cluster.brokers if each.port == found.port)
        with frozen(coordinator):
            assert topics.members(group) == ["member"]
    finally:
        member.close()
