"""Survey of an application for a reset: its topics, offsets and disks, and the plan. Read only.

An application's own topics are known from all topologies that it ever ran, which the coordination topic keeps, and from the declared one.
Names alone prove nothing: `a-b-counts-changelog` may be a topic of application `a` or of `a-b`. A topic that looks like one of this
application's but is in none of its topologies is shown and not deleted, unless the user names it.
"""

from __future__ import annotations

import socket
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from penstock.orchestration.declarations.applications import Application
from penstock.orchestration.declarations.project_paths import ProjectPaths
from penstock.orchestration.drawing.description import parse
from penstock.orchestration.kafka.task_commands import RefusedError
from penstock.orchestration.resets.target import Edge, Target
from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.coordination.group import members_group
from penstock.runtime.coordination.past import read_past
from penstock.runtime.coordination.records import (
    DESIRED,
    HOLD,
    MEMBER,
    RESET,
    SHAPE,
    TOPOLOGY,
    Desired,
    Hold,
    Member,
    Reset,
    StateShape,
    TopologyText,
    Written,
)
from penstock.runtime.coordination.resets import reset_command
from penstock.runtime.coordination.topics import coordination_topic, guard_topic, heartbeats_topic
from penstock.runtime.kafka.topic_admin import TopicAdmin
from penstock.runtime.model.errors import StateDirectoryLockedError, TopologyError
from penstock.runtime.model.ids import NextOffset, TopicPartition
from penstock.runtime.stores.directory import StateDirectory
from penstock.runtime.topology.factory import build_topology
from penstock.runtime.topology.shape import TopologyShape
from penstock.runtime.topology.topology import Topology

_INTERNAL = ("-changelog", "-repartition")
_MOST_SHOWN = 20


@dataclass(slots=True)
class Past:
    """Records of an application on the coordination topic."""

    members: dict[str, Member] = field(default_factory=dict)
    desired: dict[str, Desired] = field(default_factory=dict)
    holds: dict[str, Hold] = field(default_factory=dict)
    topologies: list[TopologyText] = field(default_factory=list)
    """All topologies that ran, the newest last."""
    shapes: list[TopologyShape] = field(default_factory=list)
    """Shapes of the state, as recorded by members."""
    reset: Reset | None = None

    @classmethod
    def read(cls, config: StreamsConfig, topics: TopicAdmin) -> Past:
        """Read the coordination topic. Raises BrokerUnavailableError, StreamsError."""
        past, topic = cls(), coordination_topic(config.application_id)
        if topic in topics.describe([topic]):
            for record in read_past(config, MEMBER, DESIRED, HOLD, TOPOLOGY, SHAPE, RESET):
                past._add(record)
        return past

    def _add(self, record: Written) -> None:
        match record:
            case Member():
                self.members[record.identity] = record
            case Desired():
                self.desired[record.instance] = record
            case Hold():
                self.holds[record.task] = record
            case StateShape():
                self.shapes.append(record.shape)
            case TopologyText():
                self.topologies.append(record)
            case Reset():
                self.reset = record

    @property
    def unfinished(self) -> Reset | None:
        """The reset that has begun and not ended, if any."""
        return None if self.reset is None or self.reset.ended else self.reset

    @property
    def internal(self) -> set[str]:
        """Changelogs and repartition topics of all topologies that ran."""
        shapes = [*self.shapes, *(topology.shape for topology in self.topologies if topology.shape is not None)]
        logs = {store.changelog for shape in shapes for store in shape.stores if store.changelog and not store.of_source}
        return logs.union(*(shape.repartitions for shape in shapes))

    @property
    def inputs(self) -> set[str]:
        """Known input topics of the last topology; those of patterns are known only if a reset has not ended."""
        shape = self.topologies[-1].shape if self.topologies else None
        named = set() if shape is None else {topic for topics in shape.sources.values() for topic in topics}
        return named.union(() if self.unfinished is None else self.unfinished.inputs)

    @property
    def outputs(self) -> set[str]:
        """Output topics of the last topology that have a fixed name and do not fill a global table."""
        parts = parse(self.topologies[-1].text).parts if self.topologies else ()
        sinks = {topic for part in parts for node in part.nodes if node.kind == "sink" for topic in node.topics}
        global_topics = {topic for part in parts if part.is_global for node in part.nodes if node.kind == "source" for topic in node.topics}
        return {topic for topic in sinks - global_topics if not topic.startswith("[")}


@dataclass(frozen=True, slots=True)
class Survey:
    """Plan of a reset. `offsets`: new offset of each input partition; `committed`: its current one. `folders`: state directories on this
    machine; `elsewhere`: instances on other machines, by name, with the host. `own_inputs`: input topics that the application writes itself
    and that begin at their end: their records are written again."""

    application_id: str
    target: Target
    topics: Sequence[str]
    strangers: Sequence[str]
    outputs: Sequence[str]
    own_inputs: Sequence[str]
    offsets: Mapping[TopicPartition, NextOffset]
    committed: Mapping[TopicPartition, NextOffset]
    folders: Sequence[Path]
    elsewhere: Mapping[str, str]
    transactional_ids: Sequence[str]
    instances: Sequence[str]
    holds: Sequence[str]
    unfinished: Reset | None

    @property
    def nothing(self) -> bool:
        """True if there is no trace of the application."""
        return not (self.topics or self.committed or self.folders or self.transactional_ids or self.instances or self.unfinished)

    def lines(self, *, delete_outputs: bool) -> Iterator[str]:
        """Yield the plan as text, a line for each kind of object."""
        if self.unfinished is not None:
            before = reset_command(self.unfinished, self.application_id)
            yield f"a reset that was begun by {self.unfinished.by} and has not ended is brought to its end (it was {before})"
        yield f"changelogs and repartition topics deleted: {_listed(self.topics)}"
        if self.strangers:
            yield (
                f"left alone, since no topology of {self.application_id} that is known has them: {_listed(self.strangers)} (another "
                "application's, or of a time that is forgotten: --internal-topics deletes those that you name)"
            )
        yield f"input offsets set to {self.target}: {_listed(list(self._moves()))}"
        if self.own_inputs:
            yield (
                f"of these, written by {self.application_id} itself, and therefore read from their end: {_listed(self.own_inputs)} "
                "(what it wrote is written again; --to OFFSETS may name another start)"
            )
        if forgotten := sorted({partition.topic for partition in self.committed.keys() - self.offsets.keys()}):
            yield f"committed offsets deleted: {_listed(forgotten)}"
        yield f"local state deleted on this machine: {_listed([str(folder) for folder in self.folders])}"
        if self.elsewhere:
            places = [f"{name} on {host}" for name, host in sorted(self.elsewhere.items())]
            yield f"local state deleted at the next start: {_listed(places)}"
        yield f"pauses by hand, members, commands and topologies forgotten ({coordination_topic(self.application_id)}), and all events"
        if self.holds:
            yield f"tasks that were paused by hand run again: {_listed(self.holds)}"
        yield f"output topics {'emptied' if delete_outputs else 'kept (--delete-outputs yes empties them)'}: {_listed(self.outputs)}"
        yield "kept: input topics, dead letters, snapshots, exports, seeds, tables, the audit trail"
        yield f"instances stay stopped until you start them (penstock start): {_listed(self.instances)}"

    def _moves(self) -> Iterator[str]:
        for partition, offset in sorted(self.offsets.items()):
            before = self.committed.get(partition)
            yield f"{partition} {'' if before is None else f'{before} → '}{offset}"


@dataclass(frozen=True, slots=True)
class Subject:
    """The application to reset. `named`: additional internal topics named by the user. `force`: treat instances on other machines that are
    in no group as dead."""

    application: Application
    config: StreamsConfig
    paths: ProjectPaths
    target: Target
    named: Collection[str] = ()
    force: bool = False

    @property
    def id(self) -> str:
        return self.application.id


def survey(subject: Subject, topics: TopicAdmin, past: Past) -> Survey:
    """Find everything that belongs to an application. Raises RefusedError, BrokerUnavailableError, StreamsError."""
    names = topics.names()
    declared = _declared(subject, names)
    internal = _internal(subject, past, declared) & names
    inputs, outputs = _read_and_written(past, declared)
    # A killed instance leaves its transaction open until the reset fences it. The offsets that it would commit are not needed here.
    committed = topics.committed_offsets(subject.id, stable=False)
    if declared is None:
        inputs |= {partition.topic for partition in committed}
    inputs -= internal | {guard_topic(subject.id), heartbeats_topic(subject.id)}
    strangers = sorted(name for name in names - internal if _may_belong(name, subject.id, names))
    # A reset that was killed may have deleted them already.
    gone = set() if past.unfinished is None else {name for name in set(subject.named) - names if _may_belong(name, subject.id, names)}
    if unknown := sorted(set(subject.named) - set(strangers) - internal - gone):
        raise RefusedError(f"{', '.join(unknown)}: no topic of that name looks like one of {subject.id}'s own ({subject.id}-…-changelog)")
    deleted = internal | (set(subject.named) - gone)
    # By name, since a topic that may not be described is in no list: its offsets would stay, and nothing would say so.
    there = topics.partition_counts((inputs | outputs) - deleted)
    partitions = [TopicPartition(name, number) for name in sorted(inputs & there.keys()) for number in range(there[name])]
    offsets, own_inputs = _begin(subject, topics, partitions, outputs)
    host = socket.gethostname()
    return Survey(
        application_id=subject.id,
        target=subject.target,
        topics=sorted(deleted),
        strangers=[name for name in strangers if name not in deleted],
        outputs=sorted((outputs & there.keys()) - inputs),
        own_inputs=own_inputs,
        offsets=offsets,
        committed=committed,
        folders=_folders(subject, past),
        elsewhere={member.instance: member.host for member in past.members.values() if member.host != host},
        transactional_ids=sorted({member.transactional_id for member in past.members.values()}),
        instances=sorted({*subject.application.instances, *past.desired, *(member.instance for member in past.members.values())}),
        holds=sorted(past.holds),
        unfinished=past.unfinished,
    )


def refuse_living(subject: Subject, topics: TopicAdmin, past: Past, folders: Sequence[Path]) -> None:
    """Raise RefusedError if an instance lives on any machine, even suspended; BrokerUnavailableError, StreamsError."""
    problems = []
    for group in (members_group(subject.id), subject.id):
        if members := topics.members(group):
            problems.append(
                f"group {group} has members ({', '.join(members)}): stop every instance (penstock stop {subject.id}). One that was killed "
                "a moment ago counts until its session has ended (session.timeout.ms)"
            )
    for folder in folders:
        directory = StateDirectory(folder.parent, subject.id)
        try:
            directory.lock()
        except StateDirectoryLockedError as error:
            problems.append(f"{folder} is in use by process {error.holder}: stop it")
        else:
            directory.unlock()
    if not subject.force:
        problems += [
            f"instance {member.instance} on {member.host} (process {member.pid}) has not said that it closed: if it is dead, add --force"
            for member in past.members.values()
            if member.host != socket.gethostname() and not member.returns
        ]
    if problems:
        raise RefusedError(f"application {subject.id} is not stopped: {'; '.join(problems)}")


def _declared(subject: Subject, names: Collection[str]) -> Topology | None:
    """Return the declared topology; None if the application is not declared. Raises RefusedError."""
    factory = subject.application.factory
    if not factory:
        return None
    subject.paths.make_importable()
    try:
        return build_topology(factory).resolved(subject.config).matched(names)
    except TopologyError as error:
        raise RefusedError(
            f"the topology that streams.toml declares cannot be made: {error}. With --bootstrap-servers the reset goes by what Kafka knows"
        ) from error


def _begin(
    subject: Subject, topics: TopicAdmin, partitions: Sequence[TopicPartition], outputs: Collection[str]
) -> tuple[dict[TopicPartition, NextOffset], list[str]]:
    """Return the first offset of each input partition, and the topics that the application both writes and reads and that begin at their
    end: what it wrote there came from its other inputs, and would count twice. Raises as `Target.offsets`, and RefusedError if no other
    input is left."""
    to = subject.target.to
    given = to if isinstance(to, Mapping) else {}
    own = [partition for partition in partitions if partition.topic in outputs and partition not in given]
    others = [partition for partition in partitions if partition not in own]
    names = sorted({partition.topic for partition in own})
    if own and not others and to is not Edge.LATEST:
        raise RefusedError(
            f"{subject.id} writes all of its input topics itself ({', '.join(names)}), so it is not known which records come from others: "
            f"say where each partition begins (--to {own[0].topic}:{own[0].partition}=OFFSET,…), or --to latest"
        )
    # Up to the end of open transactions: those of this application are aborted.
    return subject.target.offsets(topics, others) | topics.high_watermarks(own), names


def _may_belong(topic: str, application_id: str, names: Collection[str]) -> bool:
    """Return True if the name may be that of an internal topic of this application, and not of one with a longer id."""
    if not topic.startswith(f"{application_id}-") or not topic.endswith(_INTERNAL):
        return False
    ends = [number for number, char in enumerate(topic) if char == "-" and number > len(application_id)]
    return not any(coordination_topic(topic[:end]) in names for end in ends)


def _internal(subject: Subject, past: Past, declared: Topology | None) -> set[str]:
    now = set() if declared is None else {topic.name for topic in declared.internal_topics()}
    return {name for name in now | past.internal if name.startswith(f"{subject.id}-")}


def _read_and_written(past: Past, declared: Topology | None) -> tuple[set[str], set[str]]:
    if declared is None:
        return past.inputs, past.outputs
    own = {topic.name for topic in declared.internal_topics()}
    read = {topic for part in declared.sub_topologies() for topic in part.source_topics}
    return read - own, set(declared.sink_topics) - own - set(declared.global_topics)


def _folders(subject: Subject, past: Past) -> list[Path]:
    """Return the application's state directories on this machine: of the project's instances, of those that reported theirs, and of a
    program that runs on its own with this configuration."""
    host = socket.gethostname()
    roots = [
        *sorted((subject.paths.home / "state").glob("*")),
        *(Path(member.state_dir) for member in past.members.values() if member.host == host and member.state_dir),
        subject.config.state_dir,
    ]
    found = {(root / subject.id).resolve(): None for root in roots if (root / subject.id).is_dir()}
    return list(found)


def _listed(names: Sequence[str]) -> str:
    if not names:
        return "none"
    more = f" and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else ""
    return f"{', '.join(names[:_MOST_SHOWN])}{more}"
