"""Snapshots copied to another place: by the instances that have the files, each its own share.

    <uri>/<application>/<id>/<task>/…         by the instances' child processes (`runtime/snapshots/export.py`)
                            /snapshot.json    by who asked for it, when every task's part is there: only then anybody reads it

An instance that does not run leaves its files behind; if they are on this machine they are copied from here in the same way.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec

from orchestration.applications import Application
from orchestration.operations import Operations
from orchestration.snapshots import Progress, forget, living_instances, local_root
from orchestration.tasks import RefusedError
from runtime.coordination.commands import CommandClient
from runtime.errors import BrokerUnavailableError, StateDirectoryError, StreamsError
from runtime.snapshots.catalogue import Snapshot, complete_ids, find
from runtime.snapshots.exports import ExportProgress, Exports, expanded
from runtime.snapshots.manifest import MANIFEST, SNAPSHOT, ApplicationManifest, TaskManifest, decode_manifest, encoded, time_of_id
from runtime.snapshots.places import Place, place_of

logger = logging.getLogger(__name__)

STALLED_SECONDS = 120.0
"""An export that gets no further for so long is given up; it can be gone on with."""
LEFTOVER_MS = 24 * 60 * 60_000
"""What is not complete at the other place after so long is removed: whoever wrote it would have gone on with it."""
_LOOK_SECONDS = 1.0
_ANSWER_SECONDS = 15.0
_MOST_CUT_OFF = 3


@dataclass(frozen=True, slots=True)
class _Share:
    """The parts that one instance has."""

    instance: str
    folder: Path
    tasks: tuple[str, ...]


Ask = Callable[[bool], ExportProgress]
"""Asks how far a share is; begins with it, or goes on, if that is True."""


def export_root(application: Application, uri: str | None = None) -> str:
    """The URI below which the application's exported snapshots are, with `${NAME}` as it was written. Raises RefusedError for none."""
    where = uri or application.snapshots.export
    if where is None:
        raise RefusedError(
            f"where to? Name a place (--to s3://bucket/folder), or declare one in streams.toml: "
            f'[applications.{application.id}.snapshots] export = "s3://bucket/folder"'
        )
    if not where.startswith(("/", "${")) and "://" not in where:
        raise RefusedError(f"{where!r} is neither a URI (s3://bucket/folder) nor an absolute path")
    return below(where, application.id)


def below(uri: str, name: str) -> str:
    """A name below a URI, before its query."""
    path, mark, query = uri.partition("?")
    return f"{path.rstrip('/')}/{name}{mark}{query}"


def export_snapshot(
    operations: Operations,
    application: Application,
    *,
    actor: str,
    snapshot_id: str | None = None,
    uri: str | None = None,
    progress: Progress = lambda done, total: None,
) -> Snapshot:
    """Copies a complete snapshot (default: the newest) to `uri` (default: as declared), and waits. `progress` counts bytes.

    Safe to repeat: what is there is not copied again. Older ones are removed from the place that is declared, never from another. Raises
    RefusedError, StateDirectoryError (no such snapshot, or the other place refuses), StreamsError (an instance does not get on),
    BrokerUnavailableError.
    """
    root = export_root(application, uri)
    snapshot = find(local_root(operations, application), snapshot_id)
    place = place_of(expanded(below(root, snapshot.id)))
    if (place / SNAPSHOT).size() is None:
        _copy(application, snapshot, below(root, snapshot.id), actor, progress)
        (place / SNAPSHOT).write(iter([encoded(_manifest(snapshot, place))]))
    total = snapshot.manifest.bytes
    progress(total, total)
    keep = application.snapshots.export_keep if uri in (None, application.snapshots.export) else None
    prune_exported(place_of(expanded(root)), keep=keep, now_ms=time.time_ns() // 1_000_000, spared=snapshot.id)
    return find(place)


def _copy(application: Application, snapshot: Snapshot, uri: str, actor: str, progress: Progress) -> None:
    """Has all shares copied, side by side."""
    total = snapshot.manifest.bytes
    with ExitStack() as stack:
        client = stack.enter_context(CommandClient(application.id, application.bootstrap_servers, actor))
        living = living_instances(client, application, actor)
        own = Exports()
        stack.callback(own.close)
        asks: dict[_Share, Ask] = {
            share: _asking(client, snapshot.id, share, uri) if share.instance in living else _asking_here(own, share, uri)
            for share in _shares(snapshot)
        }
        found = dict.fromkeys(asks, ExportProgress(state="none"))
        cut_off = dict.fromkeys(asks, 0)
        moved_at, last = time.monotonic(), 0
        while True:
            for share, ask in asks.items():
                if found[share].state != "done":
                    found[share] = _next(share, ask, found[share], cut_off)
            done = sum(each.done for each in found.values())
            progress(min(done, total), total)
            if all(each.state == "done" for each in found.values()):
                return
            if done != last:
                moved_at, last = time.monotonic(), done
            if time.monotonic() - moved_at > STALLED_SECONDS:
                waiting = ", ".join(f"{share.instance} ({each.state})" for share, each in found.items() if each.state != "done")
                raise StreamsError(
                    f"the export of snapshot {snapshot.id} has not got on for {STALLED_SECONDS:.0f} s: {waiting}. Export it again to go on"
                )
            time.sleep(_LOOK_SECONDS)


def _next(share: _Share, ask: Ask, before: ExportProgress, cut_off: dict[_Share, int]) -> ExportProgress:
    """How far a share is now; its instance is set to it (again) unless it is at it. Raises StateDirectoryError where it has failed."""
    try:
        found = ask(before.state != "running")
    except (StateDirectoryError, BrokerUnavailableError):
        raise
    except StreamsError as error:  # it does not answer: it may be starting again
        logger.warning("%s; asking again", error)
        return msgspec.structs.replace(before, state="silent")
    if found.state == "cut off":
        cut_off[share] += 1
        if cut_off[share] > _MOST_CUT_OFF:
            raise StateDirectoryError(f"{share.instance}: the process that exports was ended {cut_off[share]} times; its log may say why")
        logger.warning("the export of %s was cut off; it goes on", share.instance)
    if found.state == "failed":
        raise StateDirectoryError(f"{share.instance}: {found.error}")
    return found


def _shares(snapshot: Snapshot) -> list[_Share]:
    tasks: dict[tuple[str, Path], list[str]] = defaultdict(list)
    for task, where in snapshot.manifest.tasks.items():
        tasks[snapshot.manifest.instances.get(task, ""), Path(where).parent].append(task)
    return [_Share(instance, folder, tuple(names)) for (instance, folder), names in tasks.items()]


def _asking(client: CommandClient, snapshot_id: str, share: _Share, uri: str) -> Ask:
    """A share that its instance copies."""

    def ask(start: bool) -> ExportProgress:
        args: dict[str, object] = {"snapshot_id": snapshot_id, "uri": uri, "tasks": list(share.tasks), "start": start}
        result = client.send("export-snapshot", instance=share.instance, args=args, timeout_s=_ANSWER_SECONDS)
        if not result.ok:
            raise RefusedError(f"{share.instance} cannot export snapshot {snapshot_id}: {result.reason}")
        return msgspec.convert(dict(result.data), ExportProgress)

    return ask


def _asking_here(exports: Exports, share: _Share, uri: str) -> Ask:
    """A share of an instance that does not run, copied from here. Raises RefusedError where its files are not on this machine."""
    if not share.folder.is_dir():
        raise RefusedError(
            f"instance {share.instance} does not run, and its part of the snapshot ({', '.join(share.tasks)}) is not on this machine at "
            f"{share.folder}: start it, or take a new snapshot"
        )

    def ask(start: bool) -> ExportProgress:
        if start:
            exports.start(share.folder, uri, share.tasks)
        return exports.progress(share.folder, uri)

    return ask


def _manifest(snapshot: Snapshot, place: Place) -> ApplicationManifest:
    """The manifest of the copy. Raises StateDirectoryError if a part is not there after all."""
    parts = []
    for task in snapshot.tasks:
        data = (place / task / MANIFEST).read()
        if data is None:
            raise StateDirectoryError(f"{place / task} has no {MANIFEST}, although its instance said that all was copied")
        parts.append(decode_manifest(data, TaskManifest, place / task / MANIFEST))
    told: Mapping[str, str] = {task: task for task in snapshot.tasks}
    return ApplicationManifest.of(parts, told, topology_hash=snapshot.manifest.topology_hash)


def prune_exported(root: Place, *, keep: int | None, now_ms: int, spared: str = "") -> list[str]:
    """Removes all but the newest `keep` complete snapshots below `root` (None: none of them) and `spared`, and what has been half there for
    a day; gives their ids."""
    complete = complete_ids(root)
    gone = [] if keep is None else [name for name in complete[: max(0, len(complete) - keep)] if name != spared]
    gone += [
        child.name
        for child in root.children()
        if child.name not in complete and (at_ms := time_of_id(child.name)) is not None and now_ms - at_ms > LEFTOVER_MS
    ]
    for name in gone:
        forget(root, name)
    return gone
