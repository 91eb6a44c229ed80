"""Plan of a history run: one stage per sub-topology, ordered by the repartition topics between them.

Everything that this run could not do right is refused here, before anything is read, in one error that names each object.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from penstock.assets.spark.history.errors import HistoryError
from penstock.assets.spark.seeds.plan import SeedApplication
from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.model.errors import WrongPartitionsError
from penstock.runtime.serdes.windowed import window_bytes
from penstock.runtime.stores.custom import build_store
from penstock.runtime.topology.internal_topics import plan_partitions, task_count
from penstock.runtime.topology.nodes import SinkNode, SubTopology
from penstock.runtime.topology.topology import Topology

_PARTITIONERS = ("murmur2", "murmur2_random")
"""Partitioners of the producer that send a key where Kafka's default does."""


@dataclass(frozen=True, slots=True)
class StagePlan:
    """One sub-topology, or the sub-topologies of a circle, whose tasks take turns. `topics`: what its tasks read, in the order of the
    engine's queues, without those that only the circle writes; `repartitions`: those of them that an earlier stage writes; `global_topics`:
    those of the global stores that it may read."""

    sub_topologies: tuple[int, ...]
    circle: bool
    tasks: int
    topics: tuple[str, ...]
    repartitions: frozenset[str]
    global_topics: tuple[str, ...]
    stores: tuple[str, ...]
    sinks: tuple[str, ...]

    @property
    def sub_topology(self) -> int:
        """The first sub-topology, by which the stage is named."""
        return self.sub_topologies[0]

    @property
    def label(self) -> str:
        """Name of the stage in messages."""
        if not self.circle:
            return f"sub-topology {self.sub_topology}"
        numbers = ", ".join(str(number) for number in self.sub_topologies)
        return f"sub-topolog{'y' if len(self.sub_topologies) == 1 else 'ies'} {numbers}, in turns"

    @property
    def spark_tasks(self) -> int:
        """Number of Spark tasks: the tasks of a circle run in one."""
        return 1 if self.circle else self.tasks


@dataclass(frozen=True, slots=True)
class HistoryPlan:
    """Stages in the order in which they run. `partitions`: the number of each known topic. `inputs` are read by tasks, `global_inputs` by
    global stores."""

    application: SeedApplication
    topology_hash: str
    stages: tuple[StagePlan, ...]
    partitions: Mapping[str, int]
    inputs: tuple[str, ...]
    global_inputs: tuple[str, ...]
    repartitions: frozenset[str]


def history_topology(application: SeedApplication, given: Collection[str]) -> Topology:
    """Return the application's topology; patterns match the topics for which input is given. Raises TopologyError."""
    return application.topology().matched(tuple(given))


def plan_history(
    application: SeedApplication, given: Collection[str], partitions: Mapping[str, int], existing: Collection[str] = ()
) -> HistoryPlan:
    """Return the plan. `given`: the topics for which input is given; `partitions`: the number of partitions of every source topic, and of
    each sink topic that exists; `existing`: the topics that patterns may match.

    Raises HistoryError with everything that cannot be done right; TopologyError, StreamsConfigError.
    """
    topology = history_topology(application, given)
    parts, internal = topology.sub_topologies(), topology.internal_topics()
    repartitions = {topic.name: topic for topic in internal if topic.kind == "repartition"}
    inputs = sorted({topic for part in parts for topic in part.source_topics} - repartitions.keys())
    global_inputs = list(topology.global_topics)
    problems = [
        *_missing_inputs(inputs, global_inputs, given),
        *_unmatched(application, given, existing),
        *_wrong_counts([*inputs, *global_inputs], partitions),
        *_own_topics(parts, inputs, global_inputs),
        *_custom_stores(parts),
        *_partitioner(application),
    ]
    writers = {name: topic.writers for name, topic in repartitions.items()}
    order = _order(parts, writers)
    problems += [problem for each in order for problem in _mixed_writers(each, writers)]
    counts: dict[str, int] = {}
    if not problems:
        try:
            counts = plan_partitions(parts, internal, topology.copartition_groups(), partitions)
        except WrongPartitionsError as error:
            problems.append(str(error))
        else:
            problems += _unknown_sinks(parts, counts)
    if problems:
        raise HistoryError(f"application {application.id} cannot be run over history:" + "".join(f"\n  {text}" for text in problems))
    global_topics = {entry.store.name: entry.topic for entry in topology.global_stores()}
    return HistoryPlan(
        application=application,
        topology_hash=topology.hash(),
        stages=tuple(_stage(each, writers, counts, global_topics) for each in order),
        partitions=counts,
        inputs=tuple(inputs),
        global_inputs=tuple(global_inputs),
        repartitions=frozenset(repartitions),
    )


def _stage(
    parts: Sequence[SubTopology], writers: Mapping[str, tuple[int, ...]], counts: Mapping[str, int], global_topics: Mapping[str, str]
) -> StagePlan:
    inside = _inside(parts, writers)
    topics = tuple(sorted({topic for part in parts for topic in part.source_topics} - inside)) if inside else parts[0].source_topics
    return StagePlan(
        sub_topologies=tuple(part.id for part in parts),
        circle=bool(inside),
        tasks=sum(task_count(part, counts) for part in parts),
        topics=topics,
        repartitions=frozenset(writers) & frozenset(topics),
        global_topics=tuple(sorted({topic for name, topic in global_topics.items() if any(_may_read(part, name) for part in parts)})),
        stores=tuple(builder.name for part in parts for builder in part.stores),
        sinks=tuple(sorted({name for part in parts for sink in part.sinks if (name := _name(sink)) not in inside})),
    )


def _inside(parts: Sequence[SubTopology], writers: Mapping[str, tuple[int, ...]]) -> set[str]:
    """Return the topics between the sub-topologies of a circle; of any other stage there are none."""
    ids = {part.id for part in parts}
    return {topic for part in parts for topic in part.source_topics if ids & set(writers.get(topic, ()))}


def _may_read(part: SubTopology, store: str) -> bool:
    read = part.global_stores
    return read is None or store in read


def _name(sink: SinkNode) -> str:
    return sink.topic if isinstance(sink.topic, str) else f"chosen per record by {sink.name}"


# --- refusals ------------------------------------------------------------------------------------------------------------------------


def _missing_inputs(inputs: Sequence[str], global_inputs: Sequence[str], given: Collection[str]) -> Iterator[str]:
    wanted = {*inputs, *global_inputs}
    for topic in sorted(wanted - set(given)):
        what = "fills a global store" if topic in global_inputs else "is a source topic"
        yield f"topic {topic} {what}, and has no input: --input {topic}=URI, or --input {topic}=kafka for the topic itself"
    for topic in sorted(set(given) - wanted):
        yield f"topic {topic} has an input, but is not read by the topology, which reads {', '.join(sorted(wanted)) or 'nothing'}"


def _unmatched(application: SeedApplication, given: Collection[str], existing: Collection[str]) -> Iterator[str]:
    """Yield the topics that a stream would read by a pattern, and this run would not."""
    for topic, pattern in sorted(history_topology(application, existing).matched_topics.items()) if existing else ():
        if topic not in given:
            yield (
                f"topic {topic} exists and is read by the pattern {pattern}, and has no input: --input {topic}=URI, or "
                f"--input {topic}=kafka for the topic itself"
            )


def _wrong_counts(topics: Sequence[str], partitions: Mapping[str, int]) -> Iterator[str]:
    for topic in topics:
        if partitions.get(topic, 0) < 1:
            yield f"source topic {topic} does not exist, so its number of partitions is unknown: create it as the stream will read it"


def _own_topics(parts: Sequence[SubTopology], inputs: Sequence[str], global_inputs: Sequence[str]) -> Iterator[str]:
    for part in parts:
        for sink in part.sinks:
            if isinstance(sink.topic, str) and sink.topic in (*inputs, *global_inputs):
                yield (
                    f"topic {sink.topic} is written by {part.label(sink.name)} and read again by the topology: its records would count in "
                    "the history and in the stream. Topics between two parts of a topology must be internal: repartition()"
                )


def _custom_stores(parts: Sequence[SubTopology]) -> Iterator[str]:
    for part in parts:
        for builder in part.stores:
            if build_store(builder).layout.kind == "custom":
                yield f"store {builder.name} is one of your own, whose files only your code can read, so it cannot be part of a seed"


def _partitioner(application: SeedApplication) -> Iterator[str]:
    chosen = str(StreamsConfig(application.config).producer_properties().get("partitioner", _PARTITIONERS[0]))
    if chosen not in _PARTITIONERS:
        yield f"producer.partitioner = {chosen}: keys are sent to partitions by Kafka's default alone ({', '.join(_PARTITIONERS)})"


def _unknown_sinks(parts: Sequence[SubTopology], counts: Mapping[str, int]) -> Iterator[str]:
    for part in parts:
        for sink in part.sinks:
            if isinstance(sink.topic, str) and sink.topic not in counts and _counts_partitions(sink):
                yield (
                    f"sink topic {sink.topic} does not exist, and {part.label(sink.name)} chooses partitions of it by their number: "
                    "create the topic"
                )


def _counts_partitions(sink: SinkNode) -> bool:
    """Return True if the sink itself chooses partitions by their number."""
    windowed = sink.by_window_key and sink.key_serde is not None and window_bytes(sink.key_serde) > 0
    return sink.partitioner is not None or windowed


def _mixed_writers(parts: Sequence[SubTopology], writers: Mapping[str, tuple[int, ...]]) -> Iterator[str]:
    ids = {part.id for part in parts}
    for topic in sorted(_inside(parts, writers)):
        if others := set(writers[topic]) - ids:
            yield (
                f"topic {topic} is written by sub-topologies {', '.join(map(str, sorted(ids)))}, to which its records flow back, "
                f"and also by {', '.join(map(str, sorted(others)))}: the order of its records is unknown. Give the two topics of their own"
            )


def _order(parts: Sequence[SubTopology], writers: Mapping[str, tuple[int, ...]]) -> list[tuple[SubTopology, ...]]:
    """Return the sub-topologies, writers of a repartition topic before its readers; those of a circle together."""
    before = {part.id: {number for topic in part.source_topics for number in writers.get(topic, ())} for part in parts}
    for _ in parts:
        before = {number: found.union(*(before[other] for other in found)) for number, found in before.items()}
    ordered: list[tuple[SubTopology, ...]] = []
    left = list(parts)
    while left:
        waiting = {part.id for part in left}
        ready = [part for part in left if all(part.id in before[other] for other in before[part.id] & waiting)]
        done: set[int] = set()
        for part in ready:
            if part.id not in done:
                circle = tuple(other for other in ready if other is part or (other.id in before[part.id] and part.id in before[other.id]))
                ordered.append(circle)
                done |= {other.id for other in circle}
        left = [part for part in left if part.id not in done]
    return ordered
