"""Snapshots of an application: taken by the instances that run its tasks, combined, kept and deleted.

The owner of a task writes its part, as of a commit; there is no common cut between tasks. The snapshot is complete when it contains all
tasks with stores. Only then is `snapshot.json` written, atomically, to `<home>/snapshots/<application>/<id>/`. A task that moves, is being
restored, or has no owner is requested again until its part exists or the time is up.

An unfinished snapshot (Ctrl-C, a dead instance) is never read, and the instances remove it after an hour.

*Settled* offsets make a snapshot a cut through the whole application: those of a moment without records in transit between tasks.
A snapshot is consistent per task. Tasks connected by a repartition topic are consistent with each other if the reader has read everything
that the writers have written. That can be checked only while the topic exists, so the result is stored with the snapshot: a reset deletes
the topics.

The committed offsets are read first. If every part has the committed offsets, and the repartition topics contain nothing beyond them, then
the parts and these offsets belong together: any later record would be beyond the offset of a repartition topic. Records of an open
transaction count, because its offsets may become visible before its records.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from penstock.orchestration.declarations.applications import Application
from penstock.orchestration.instances.operations import Operations
from penstock.orchestration.kafka.observer import Observer
from penstock.orchestration.kafka.task_commands import RefusedError, TaskCommands
from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.coordination.commands import CommandClient
from penstock.runtime.coordination.records import Member
from penstock.runtime.coordination.unread_records import with_records
from penstock.runtime.kafka.topic_admin import TopicAdmin
from penstock.runtime.model.errors import BrokerUnavailableError, StateDirectoryError, StreamsError
from penstock.runtime.model.ids import NextOffset, TopicPartition
from penstock.runtime.model.states import State, TaskKind
from penstock.runtime.snapshots.catalogue import Snapshot, complete_ids, find, require_complete
from penstock.runtime.snapshots.manifest import (
    GLOBAL,
    SNAPSHOT,
    ApplicationManifest,
    PartitionOffset,
    TaskSummary,
    encoded,
    new_snapshot_id,
    task_order,
)
from penstock.runtime.snapshots.places import LocalPlace, Place
from penstock.runtime.snapshots.retention import remove

logger = logging.getLogger(__name__)

TAKE_SECONDS = 120.0
_ANSWER_SECONDS = 15.0
_AGAIN_SECONDS = 0.5
_LIVING = (State.RUNNING, State.REBALANCING, State.RESTORING)
Progress = Callable[[int, int], None]
"""Receives the amount done, and the total."""


@dataclass(slots=True)
class _Gathered:
    """Parts of a snapshot that the instances have written so far."""

    expected: list[str] | None = None
    parts: dict[str, TaskSummary] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    trouble: dict[str, str] = field(default_factory=dict)

    @property
    def missing(self) -> list[str]:
        return [] if self.expected is None else [task for task in self.expected if task not in self.parts]

    @property
    def complete(self) -> bool:
        return self.expected is not None and not self.missing

    def take_in(self, data: dict[str, object]) -> None:
        """Add the content of an instance's answer."""
        answer = msgspec.convert(data, _Answer)
        self.expected = sorted({*(self.expected or ()), *answer.expected}, key=task_order)
        for part in answer.parts:
            if part.task not in self.parts:
                self.parts[part.task] = part
                self.places[part.task] = f"{answer.directory}/{part.task}"


class _Answer(msgspec.Struct):
    directory: str
    expected: list[str]
    parts: list[TaskSummary]


def local_root(operations: Operations, application: Application) -> Place:
    """Return the folder of the application's complete snapshots."""
    return LocalPlace(operations.paths.snapshots(application.id))


def take_snapshot(
    operations: Operations,
    application: Application,
    *,
    actor: str,
    snapshot_id: str | None = None,
    timeout_s: float = TAKE_SECONDS,
    progress: Progress = lambda done, total: None,
) -> Snapshot:
    """Take a snapshot of all the application's tasks and wait until it is complete. `progress` counts tasks.

    If `snapshot_id` is complete already, that snapshot is returned. Raises RefusedError (nothing runs, or a disk refuses; no incomplete
    snapshot is left visible), StreamsError (not complete in time; it names the missing tasks), BrokerUnavailableError.
    """
    root = local_root(operations, application)
    if snapshot_id is None:
        snapshot_id = new_snapshot_id(time.time_ns() // 1_000_000)
    elif (root / snapshot_id / SNAPSHOT).size() is not None:
        return find(root, snapshot_id)
    with CommandClient(application.id, application.connection, actor) as client:
        if not living_instances(client, application, actor):
            raise RefusedError(
                f"no instance of {application.id} runs, so there is no state to look at. "
                f"Start one: penstock start {next(iter(application.instances), 'INSTANCE')}"
            )
        gathered = _gather(client, application, snapshot_id, timeout_s, progress)
        members = client.members()
        if not gathered.parts:
            raise RefusedError(f"{application.id} has no stores, so there is nothing to take a snapshot of")
        manifest = ApplicationManifest.of(
            gathered.parts.values(),
            gathered.places,
            topology_hash=_topology(members),
            formats=client.store_formats(),
            settled=settled_offsets(application, gathered.parts.values()),
        )
        (root / snapshot_id / SNAPSHOT).write(iter([encoded(manifest)]))
        keep_newest(root, application.snapshots.keep)
        _send_retention(client, _living(members), {"complete": complete_ids(root), "keep": application.snapshots.keep})
    return find(root, snapshot_id)


def _gather(client: CommandClient, application: Application, snapshot_id: str, timeout_s: float, progress: Progress) -> _Gathered:
    deadline = time.monotonic() + timeout_s
    gathered = _Gathered()
    while True:
        members = client.members()
        for instance in _living(members):
            if not gathered.complete and (left := deadline - time.monotonic()) > 0:
                _ask(client, instance, snapshot_id, gathered, min(_ANSWER_SECONDS, left))
                progress(len(gathered.parts), len(gathered.expected or ()))
        if gathered.complete:
            return gathered
        if time.monotonic() >= deadline:
            raise StreamsError(_incomplete(snapshot_id, application, gathered, members, timeout_s))
        time.sleep(_AGAIN_SECONDS)


def _ask(client: CommandClient, instance: str, snapshot_id: str, gathered: _Gathered, timeout_s: float) -> None:
    """Request the missing tasks of one instance. An instance without an answer is asked again later. Raises RefusedError."""
    args: dict[str, object] = {"snapshot_id": snapshot_id, "global": GLOBAL not in gathered.parts}
    if gathered.expected is not None:
        args["tasks"] = gathered.missing
    try:
        result = client.send("snapshot", instance=instance, args=args, timeout_s=timeout_s)
    except BrokerUnavailableError:
        raise
    except StreamsError as error:
        gathered.trouble[instance] = str(error)
        return
    if result.ok:
        gathered.trouble.pop(instance, None)
        gathered.take_in(dict(result.data))
    elif result.data.get("again"):
        gathered.trouble[instance] = result.reason
    else:
        raise RefusedError(f"{instance} cannot write snapshot {snapshot_id}: {result.reason}")


def living_instances(client: CommandClient, application: Application, actor: str) -> list[str]:
    """Return the instances that answer commands; none if the members' group is empty, whatever they reported last."""
    with TaskCommands(application, actor) as commands:
        return _living(client.members()) if commands.owner_lives() else []


def _living(members: Iterable[Member]) -> list[str]:
    return sorted({member.instance for member in members if member.state in _LIVING})


def _topology(members: Sequence[Member]) -> str:
    return max(members, key=lambda member: member.heartbeat_ms).topology_hash if members else ""


def _incomplete(snapshot_id: str, application: Application, gathered: _Gathered, members: Sequence[Member], timeout_s: float) -> str:
    """Return a message that names the missing tasks, and why they are missing."""
    if gathered.expected is None:
        why = "; ".join(gathered.trouble.values())
        return f"snapshot {snapshot_id} of {application.id}: no instance has answered within {timeout_s:.0f} s: {why}"
    owners = {
        task: f"{report.state.value} on {member.instance}"
        for member in sorted(members, key=lambda member: member.heartbeat_ms)
        for task, report in member.tasks.items()
        if report.kind is TaskKind.ACTIVE
    }
    missing = [f"{task} ({'global stores' if task == GLOBAL else owners.get(task, 'no instance runs it')})" for task in gathered.missing]
    trouble = "".join(f"; {reason}" for reason in gathered.trouble.values())
    return (
        f"snapshot {snapshot_id} of {application.id} is not complete after {timeout_s:.0f} s: {len(missing)} of "
        f"{len(gathered.expected)} tasks are missing: {', '.join(missing)}{trouble}. "
        "Its parts are not read; take another one when the tasks run"
    )


def keep_newest(root: Place, keep: int) -> None:
    """Delete all complete snapshots at `root` but the newest `keep`. Manifests are not read, so a damaged one does no harm."""
    complete = complete_ids(root)
    for snapshot_id in complete[: max(0, len(complete) - keep)]:
        forget(root, snapshot_id)


def forget(root: Place, snapshot_id: str) -> None:
    """Remove a snapshot from `root`, first the file that marks it as complete."""
    (root / snapshot_id / SNAPSHOT).remove()
    (root / snapshot_id).remove()


def delete_snapshots(operations: Operations, application: Application, ids: Sequence[str], *, actor: str) -> None:
    """Delete snapshots here and on the instances, including those with a damaged manifest. Raises StateDirectoryError for an unknown id,
    with the known ones."""
    root = local_root(operations, application)
    for snapshot_id in ids:
        require_complete(root, snapshot_id)
    for snapshot_id in ids:
        shares = _shares_here(root, snapshot_id)
        forget(root, snapshot_id)
        for share in shares:
            remove(share)
    try:
        with CommandClient(application.id, application.connection, actor) as client:
            _send_retention(
                client, living_instances(client, application, actor), {"unwanted": list(ids), "keep": application.snapshots.keep}
            )
    except StreamsError as error:
        logger.warning("instances on other machines keep their parts of %s: %s", ", ".join(ids), error)


def _shares_here(root: Place, snapshot_id: str) -> set[Path]:
    """Return the instances' shares on this machine. Those of a damaged manifest are unknown here: the instances know theirs."""
    try:
        places = find(root, snapshot_id).manifest.tasks.values()
    except StateDirectoryError as error:
        logger.warning("%s", error)
        return set()
    return {share for share in (Path(place).parent for place in places) if share.is_dir()}


def _send_retention(client: CommandClient, instances: Sequence[str], args: dict[str, object]) -> None:
    """Have every living instance remove snapshots that are no longer kept. One that misses the command does so after the next snapshot."""
    for instance in instances:
        try:
            client.send("keep-snapshots", instance=instance, args=args, timeout_s=_ANSWER_SECONDS)
        except StreamsError as error:
            logger.warning("%s did not get the command that removes snapshots: %s", instance, error)


def settled_offsets(application: Application, parts: Iterable[TaskSummary]) -> list[PartitionOffset]:
    """Return the next offset of every input partition, including tasks without stores, if no record has been in transit between tasks since
    the first of these parts was written; otherwise nothing. Raises BrokerUnavailableError, StreamsError."""
    config = application.streams_config()
    topics = TopicAdmin(config)
    committed = topics.committed_offsets(application.id, stable=False)
    read = {topic for version in _newest_reads(application) for topic in version} | {partition.topic for partition in committed}
    counts = topics.partition_counts(read)
    partitions = [TopicPartition(topic, number) for topic, count in counts.items() for number in range(count)]
    starts, ends = topics.start_offsets(partitions), topics.high_watermarks(partitions)
    empty = {each: starts[each] for each in partitions if starts[each] == ends[each]}  # nothing to commit: their tasks start there
    offsets = {**empty, **{each: committed[each] for each in partitions if each in committed}}
    between = [each for each in partitions if _is_repartition(each.topic, application.id)]
    if between and not (_as_committed(parts, offsets) and _all_read(config, topics, between, offsets)):
        return []
    return PartitionOffset.of(offsets)


def _newest_reads(application: Application) -> list[tuple[str, ...]]:
    """Return the topics that each sub-topology of the topology started last reads. A pattern is not a topic; topics that it matches have
    committed offsets as soon as they have been read."""
    versions = [*Observer(application.id, application.connection).observe().versions.values()]
    return [part.reads for part in versions[-1].parts.values()] if versions else []


def _is_repartition(topic: str, application_id: str) -> bool:
    return topic.startswith(f"{application_id}-") and topic.endswith("-repartition")


def _as_committed(parts: Iterable[TaskSummary], offsets: Mapping[TopicPartition, NextOffset]) -> bool:
    """Return True if no task has committed since its part was written."""
    inputs = [(TopicPartition(at.topic, at.partition), at.next_offset) for part in parts if part.task != GLOBAL for at in part.inputs]
    return all(offsets.get(partition, offset) == offset for partition, offset in inputs)


def _all_read(
    config: StreamsConfig, topics: TopicAdmin, between: Collection[TopicPartition], offsets: Mapping[TopicPartition, NextOffset]
) -> bool:
    """Return True if these partitions contain no record beyond their offsets, committed or not."""
    stable, ends = topics.end_offsets(between), topics.high_watermarks(between)
    if stable != ends or not offsets.keys() >= set(between):
        return False
    left = {partition: offsets[partition] for partition in between if offsets[partition] < ends[partition]}
    return not (left and with_records(config, left, topics.give_up))
