"""The families that history is held against (tests/support/history.py, and those of the differential tests) as streams on a broker: the
same outputs and stores as in the test driver, byte for byte. So are Spark's (tests/dagster/test_spark_history.py).

All records are on the topics before the applications start, side by side. Each application has topics of its own, whose names begin with
its id; the test driver gets the same names, since stores and headers contain some of them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from penstock import KafkaStreams, StreamsConfig, Topology
from penstock.runtime.model.states import State
from penstock.runtime.tasks.plan import TaskPlan
from penstock.runtime.topology.nodes import SinkNode, SourceNode
from tests.broker.test_cases import create_all
from tests.support import Kafka, unique, wait_until
from tests.support.engine import client, on_worker, reaches, worker_of
from tests.support.history import (
    FAMILIES,
    FIRST_MS,
    SKIPS,
    Family,
    Made,
    Sent,
    by_driver,
    in_order,
    letters_apart,
    records,
    with_unreadable,
)
from tests.support.history_families import family_of, input_of, names_of_today
from tests.support.seeds import entries

DAY_MS = 86_400_000
DEAD_LETTERS = "errors.dead.letter.queue.topic.name"

AT_ONCE = 30
"""Most applications that run side by side."""
IDLE_MS = 1_000


def renamed(topology: Topology, prefix: str) -> Topology:
    """Return a topology that is not resolved yet with a prefix on the names of its topics, except internal ones."""

    def name(topic: str) -> str:
        return topic if topic in topology._repartitions else f"{prefix}{topic}"

    for key, node in topology._nodes.items():
        if isinstance(node, SourceNode):
            pattern = None if node.pattern is None else re.compile(prefix + node.pattern.pattern)
            topology._nodes[key] = replace(node, topics=tuple(map(name, node.topics)), pattern=pattern)
        elif isinstance(node, SinkNode) and isinstance(node.topic, str):
            topology._nodes[key] = replace(node, topic=name(node.topic))
        elif isinstance(node, SinkNode) and not isinstance(node.topic, str):
            topology._nodes[key] = replace(node, topic=_chosen(node.topic, prefix))
    topology._source_changelogs = {store: name(topic) for store, topic in topology._source_changelogs.items()}
    return topology


def _chosen(choose: Callable[..., str], prefix: str) -> Callable[..., str]:
    if choose.__code__.co_argcount == 3:
        return lambda key, value, context: prefix + choose(key, value, context).removeprefix(prefix)
    return lambda key, value: prefix + choose(key, value)


@dataclass
class Stream:
    """A family as an application. `sent`: by topic."""

    name: str
    family: Family
    sent: Mapping[str, Sequence[Sent]]
    id: str
    folder: Path
    inputs: set[str]
    """Topics that its tasks read, internal ones included."""
    sinks: set[str] = field(default_factory=set)
    streams: KafkaStreams | None = None
    expected: Made = field(default_factory=Made)
    error: Exception | None = None
    """Error of the test driver."""
    waiting: list[tuple[str, Sent]] = field(default_factory=list)
    """Records that are not produced yet: if a sub-topology reads a repartition topic and another one, they come one by one, each when the
    one before it is processed. Else the order of the two topics, and which responses of a foreign-key join a newer record overtakes, would
    depend on how busy the machine is."""
    produced: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, family: Family, sent: Mapping[str, Sequence[Sent]], folder: Path) -> Stream:
        """Return a family with topics of its own, and run it through the test driver."""
        application = unique("family")
        prefix = f"{application}."
        config = {**family.config, "application.id": application}
        if DEAD_LETTERS in config:
            config[DEAD_LETTERS] = f"{prefix}{config[DEAD_LETTERS]}"
        own = replace(
            family,
            build=lambda: renamed(family.build(), prefix),
            topics=tuple(prefix + topic for topic in family.topics),
            global_topics=tuple(prefix + topic for topic in family.global_topics),
            config=config,
        )
        resolved = own.build().resolved(StreamsConfig({**config, "bootstrap.servers": "nowhere:9092"}))
        if resolved.patterns:
            resolved = resolved.matched(own.topics)
        internal = {topic.name for topic in resolved.internal_topics()}
        inputs = {topic for part in resolved.sub_topologies() for topic in part.source_topics}
        made = cls(str(family), own, {prefix + topic: each for topic, each in sent.items()}, application, folder / application, inputs)
        made.sinks = {*resolved.sink_topics, *({str(config[DEAD_LETTERS])} if DEAD_LETTERS in config else ())}
        try:
            made.expected = by_driver(own, made.sent, made.folder / "driver")
        except Exception as error:  # noqa: BLE001 (whatever it is, the application must fail too)
            made.error = error
        if any({*part.source_topics} - internal and {*part.source_topics} & internal for part in resolved.sub_topologies()):
            made.waiting = list(in_order(made.sent))
        return made

    def topics(self) -> set[str]:
        """Return all topics that must exist, without internal ones."""
        return {*self.sent, *self.expected.outputs, *self.sinks}

    def start(self, broker: Kafka) -> None:
        config = {key: value for key, value in self.family.config.items() if key not in ("application.id", "bootstrap.servers")}
        own = (
            {"max.task.idle.ms": -1, "commit.interval.ms": 10} if self.waiting else {"max.task.idle.ms": IDLE_MS, "commit.interval.ms": 50}
        )
        self.streams = client(broker, self.family.build(), self.id, self.folder / "state", **{**config, **own})
        self.streams.start()

    def close(self) -> None:
        if self.streams is not None:
            self.streams.close(20_000)

    def is_done(self, broker: Consumer) -> bool:
        """Return True if all tasks have committed all of their input. The ends are asked for after the committed offsets."""
        assert self.streams is not None
        if self.error is not None:
            return self.streams.state is State.ERROR
        assert self.streams.failure is None, (self.name, self.streams.failure)
        committed = {
            at.topic: offset
            for thread in self.streams.metadata_for_local_threads()
            for task in thread.active_tasks
            for at, offset in task.committed_offsets.items()
        }
        ends = {
            topic: self.produced[topic] if topic in self.sent else broker.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)[1]
            for topic in self.inputs
        }
        return all(committed.get(topic, 0) == end for topic, end in ends.items())

    def made(self, broker: Kafka) -> Made:
        """Return what came of the records."""
        assert self.streams is not None
        worker, found = worker_of(self.streams), Made()
        for topic in self.expected.outputs:
            sent = []
            for each in broker.consume(topic):
                headers = [(name, value or b"") for name, value in each.headers]
                sent.append(Sent(each.key, each.value, each.timestamp, headers or None))
            found.outputs[topic] = [without_offset(each, self.id) for each in sent]

        def copy() -> None:
            for task in worker._assembled.tasks.all():
                for name, store in task.stores.items():
                    store.checkpoint(self.folder / "found" / name)
                    found.stores[name] = entries(self.folder / "found" / name)

        on_worker(worker, copy)
        return found


def streams_of(folder: Path) -> list[Stream]:
    found = []
    for family in FAMILIES:
        random = Random(f"{family}")
        sent = {topic: records(random, 20 if str(family) == "foreign_keys" else 60, null_keys=family.null_keys) for topic in family.topics}
        sent |= {topic: records(random, 10, null_keys=False) for topic in family.global_topics}
        found.append(Stream.of(family, sent, folder))
    found.append(Stream.of(SKIPS, {"in": with_unreadable(Random(5), 100)}, folder))
    start = FIRST_MS // DAY_MS * DAY_MS  # clients take the time 0 for none
    for name in names_of_today():
        moved = {
            topic: [replace(each, timestamp=start + each.timestamp) for each in sent] for topic, sent in input_of(name, Random(1)).items()
        }
        found.append(Stream.of(family_of(name), moved, folder))
    return found


def without_offset(sent: Sent, application: str) -> Sent:
    """Return a dead letter without the offset of a record in a repartition topic, where markers of transactions have offsets too."""
    headers = dict(sent.headers or ())
    if not (headers.get("__streams.errors.topic") or b"").startswith(f"{application}-".encode()):
        return sent
    return replace(sent, headers=[(name, value) for name, value in sent.headers or () if name != "__streams.errors.offset"])


class Records:
    """Producer of the records of all streams."""

    def __init__(self, broker: Kafka) -> None:
        self._producer = Producer(broker.connection.client({"max.in.flight.requests.per.connection": 1, "linger.ms": 0}))

    def begin(self, streams: Sequence[Stream]) -> None:
        """Produce all records but those that come one by one."""
        for stream in streams:
            for topic, sent in stream.sent.items():
                for each in sent if not stream.waiting or topic in stream.family.global_topics else ():
                    self._produce(stream, topic, each)
        assert self._producer.flush(60) == 0

    def next(self, stream: Stream) -> None:
        """Produce the next record of a stream."""
        self._produce(stream, *stream.waiting.pop(0))
        assert self._producer.flush(60) == 0

    def _produce(self, stream: Stream, topic: str, sent: Sent) -> None:
        self._producer.produce(topic, sent.value, sent.key, 0, timestamp=sent.timestamp, headers=[*(sent.headers or ())])
        stream.produced[topic] += 1


def differences(stream: Stream, found: Made) -> list[str]:
    """Return what a broker's outputs and stores have otherwise than those of the test driver."""
    said = []
    expected = {topic: [without_offset(each, stream.id) for each in sent] for topic, sent in stream.expected.outputs.items()}
    theirs, ours = letters_apart(expected), letters_apart(found.outputs)
    for topic in sorted({*theirs, *ours}):
        if theirs.get(topic) != ours.get(topic):
            said.append(f"{stream.name} {topic}: {ours.get(topic)} instead of {theirs.get(topic)}")
    for store in sorted({*stream.expected.stores, *found.stores}):
        if stream.expected.stores.get(store) != found.stores.get(store):
            said.append(f"{stream.name} store {store}: {found.stores.get(store)} instead of {stream.expected.stores.get(store)}")
    return said


def differing(broker: Kafka, streams: Sequence[Stream]) -> list[str]:
    """Run applications side by side, and return what they make otherwise than the test driver."""
    create_all(broker, sorted({topic for stream in streams for topic in stream.topics()}))
    all_records = Records(broker)
    all_records.begin(streams)
    with ExitStack() as stack:
        settings = {"group.id": unique("ends"), "isolation.level": "read_uncommitted"}  # a commit ends before its markers are written
        ends = stack.enter_context(closing(Consumer(broker.connection.client(settings))))

        def wait_for(stream: Stream) -> None:
            wait_until(lambda: stream.is_done(ends), 60, f"the end of {stream.name}")

        for stream in streams:
            stack.callback(stream.close)
            stream.start(broker)
        for stream in streams:
            assert stream.streams is not None
            if stream.error is None:
                reaches(stream.streams, State.RUNNING, 60)
        while slow := [stream for stream in streams if stream.waiting]:
            for stream in slow:
                wait_for(stream)
                all_records.next(stream)
        for stream in streams:
            wait_for(stream)
        return [each for stream in streams if stream.error is None for each in differences(stream, stream.made(broker))]


@pytest.mark.nightly
def test_a_stream_on_a_broker_makes_what_history_is_held_against(broker: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results that are due at the end of a window are looked for at each record, as in the test driver, and not once per second."""
    monkeypatch.setattr(TaskPlan.__init__, "__defaults__", (0,))
    streams = streams_of(tmp_path)
    found = [differing(broker, streams[first : first + AT_ONCE]) for first in range(0, len(streams), AT_ONCE)]
    assert [each for of_some in found for each in of_some] == []
