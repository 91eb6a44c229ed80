"""A sample of the cases of tests/cases on a real broker, with the same outcome as in the test driver, and with a restart in the middle.

The driver commits after each record, so the applications of all cases run side by side and take one record each per round: the next round
begins when the outputs of the driver for this one are on the broker and the input is committed. Topics get new names, since all cases
use the same ones, and times are moved to today, since a broker deletes records as old as theirs.
"""

from __future__ import annotations

import pkgutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.cimpl import NewTopic

import tests.cases
from penstock import KafkaStreams, Topology, serdes
from penstock.runtime.model.states import State
from penstock.runtime.topology.nodes import SinkNode, SourceNode
from penstock.serdes import Serde
from penstock.testing import TopologyTestDriver
from tests.cases.case import Case, Row, outcome
from tests.support import Kafka, unique, wait_until
from tests.support.engine import client, reaches

OF_EACH = 2
ROUNDS = 8
DAY_MS = 86_400_000
STRINGS: tuple[Serde, Serde] = (serdes.STRING, serdes.STRING)


def sample() -> list[Case]:
    """Return some cases of each module, spread over its list."""
    found: list[Case] = []
    for _, name, _ in pkgutil.iter_modules(tests.cases.__path__):
        module = import_module(f"tests.cases.{name}")
        fit = [case for case in getattr(module, "CASES", ()) if fits(case)]
        found += fit[:: max(1, len(fit) // OF_EACH)][:OF_EACH]
    return found


def fits(case: Case) -> bool:
    """Return True for a short case with at least one output."""
    return 2 <= len(case.given) <= ROUNDS and any(case.expected.values())


def today(case: Case) -> Case:
    """Return the case with its records at the beginning of today, and the driver's outputs for them."""
    start = time.time_ns() // 1_000_000 // DAY_MS * DAY_MS
    moved = replace(case, given=[(topic, key, value, start + at) for topic, key, value, at in case.given])
    return replace(moved, expected=outcome(moved)[0])


@dataclass
class Application:
    """A case that runs on the broker. `rounds`: the number of records in each output topic after each input record."""

    case: Case
    names: Mapping[str, str]
    id: str
    state_dir: Path
    rounds: Sequence[Mapping[str, int]]
    streams: KafkaStreams | None = None
    produced: dict[str, int] = field(default_factory=dict)

    def topology(self) -> Topology:
        """Return the case's topology with topics of its own."""
        topology = self.case.build()
        for name, node in topology._nodes.items():
            if isinstance(node, SourceNode):
                topology._nodes[name] = replace(node, topics=tuple(self.names.get(topic, topic) for topic in node.topics))
            elif isinstance(node, SinkNode) and isinstance(node.topic, str):
                topology._nodes[name] = replace(node, topic=self.names.get(node.topic, node.topic))
        return topology

    def start(self, broker: Kafka) -> None:
        self.streams = client(broker, self.topology(), self.id, self.state_dir, **{"commit.interval.ms": 20, **self.case.config})
        self.streams.start()

    def stop(self) -> None:
        if self.streams is not None:
            self.streams.close(20_000, leave_group=False)
            self.streams = None

    def pipe(self, broker: Kafka, number: int) -> None:
        """Write the record of a round."""
        topic, key, value, at = self.case.given[number]
        key_serde, value_serde = self.case.serdes.get(topic, STRINGS)
        raw_key = None if key is None else key_serde.serializer(topic)(key)
        raw_value = None if value is None else value_serde.serializer(topic)(value)
        broker.produce(self.names[topic], [(raw_key, raw_value)], partition=0, timestamps=[at])
        self.produced[self.names[topic]] = self.produced.get(self.names[topic], 0) + 1

    def committed(self) -> bool:
        """Return True if all input is committed."""
        assert self.streams is not None
        offsets = {
            at.topic: offset
            for thread in self.streams.metadata_for_local_threads()
            for task in thread.active_tasks
            for at, offset in task.committed_offsets.items()
        }
        return all(offsets.get(topic, 0) >= count for topic, count in self.produced.items())


def after_each(case: Case) -> list[dict[str, int]]:
    """Return the number of records in each output topic of a case after each of its records, in the driver."""
    counts: list[dict[str, int]] = []
    with TopologyTestDriver(case.build(), case.config, 0) as driver:
        outputs = {topic: driver.create_output_topic(topic, *case.serdes.get(topic, STRINGS)) for topic in case.expected}
        for topic, key, value, at in case.given:
            driver.create_input_topic(topic, *case.serdes.get(topic, STRINGS)).pipe_input(key, value, at)
            counts.append({topic: output.get_queue_size() for topic, output in outputs.items()})
    return counts


class Outputs:
    """Reads the output topics of all applications, committed records only."""

    def __init__(self, broker: Kafka, topics: Sequence[str]) -> None:
        settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": unique("reader"), "isolation.level": "read_committed"}
        self._consumer = Consumer({**settings, "enable.auto.commit": False})
        self._consumer.assign([TopicPartition(topic, 0, 0) for topic in topics])
        self.found: dict[str, list[tuple[bytes | None, bytes | None, int]]] = {topic: [] for topic in topics}

    def look(self) -> None:
        for message in self._consumer.consume(1000, 0.02):
            assert message.error() is None, message.error()
            self.found[str(message.topic())].append((message.key(), message.value(), message.timestamp()[1]))

    def rows(self, topic: str, key_serde: Serde, value_serde: Serde) -> list[Row]:
        read_key, read_value = key_serde.deserializer(topic), value_serde.deserializer(topic)
        return [
            (None if key is None else read_key(key), None if value is None else read_value(value), at)
            for key, value, at in self.found[topic]
        ]

    def close(self) -> None:
        self._consumer.close()


def create_all(broker: Kafka, names: Sequence[str]) -> None:
    """Create topics that accept records with any timestamp."""
    admin = broker.admin
    new = [NewTopic(name, num_partitions=1, replication_factor=1, config={"retention.ms": "-1"}) for name in names]
    for done in admin.create_topics(new).values():
        done.result(30)
    wait_until(lambda: set(names) <= broker.topics(), what="the topics")


@contextmanager
def applications(broker: Kafka, cases: Sequence[Case], folder: Path) -> Iterator[tuple[list[Application], Outputs]]:
    """Start the cases side by side."""
    running: list[Application] = []
    with ExitStack() as stack:
        for number, case in enumerate(cases):
            names = {topic: unique(f"case-{topic}") for topic in [*(topic for topic, *_ in case.given), *case.expected]}
            running.append(Application(case, names, unique("case"), folder / str(number), after_each(case)))
        create_all(broker, [name for each in running for name in each.names.values()])
        outputs = Outputs(broker, [each.names[topic] for each in running for topic in each.case.expected])
        stack.callback(outputs.close)
        for each in running:
            stack.callback(each.stop)
            each.start(broker)
        yield running, outputs


def settled(running: Sequence[Application], outputs: Outputs, number: int) -> bool:
    """Return True if the round's outputs have arrived and its input is committed."""
    outputs.look()
    for each in running:
        wanted = each.rounds[min(number, len(each.rounds) - 1)]
        if any(len(outputs.found[each.names[topic]]) < count for topic, count in wanted.items()) or not each.committed():
            return False
    return True


@pytest.mark.parametrize("restarts", [False, True], ids=["", "restarted in the middle"])
def test_a_sample_of_the_cases_has_the_same_outcome_on_a_broker(broker: Kafka, tmp_path: Path, restarts: bool) -> None:
    cases = [today(case) for case in sample()]
    with applications(broker, cases[::2] if restarts else cases, tmp_path) as (running, outputs):
        for number in range(max(len(each.case.given) for each in running)):
            for each in running:
                if restarts and number == len(each.case.given) // 2:
                    each.stop()
                    each.start(broker)
                if number < len(each.case.given):
                    each.pipe(broker, number)
            for each in running:
                assert each.streams is not None
                reaches(each.streams, State.RUNNING)
            wait_until(lambda number=number: settled(running, outputs, number), 30, f"the outcome of round {number}")  # type: ignore[misc]
        for each in running:
            for topic, expected in each.case.expected.items():
                found = outputs.rows(each.names[topic], *each.case.serdes.get(topic, STRINGS))
                assert found == list(expected), f"{each.case.name}: {topic}"
