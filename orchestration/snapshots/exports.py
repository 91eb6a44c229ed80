"""Export of snapshots to another place. Each instance copies its own files.

    <uri>/<application>/<id>/<task>/…         by the instances' child processes (`runtime/snapshots/export_process.py`)
                            /snapshot.json    by the caller, when every task's part is there: an export without it is never read

Files of an instance that does not run are copied by this process in the same way, if they are on this machine.
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

from penstock.orchestration.declarations.applications import Application
from penstock.orchestration.instances.operations import Operations
from penstock.orchestration.kafka.task_commands import RefusedError
from penstock.orchestration.snapshots.taking import Progress, forget, living_instances, local_root
from penstock.runtime.coordination.commands import CommandClient
from penstock.runtime.model.errors import BrokerUnavailableError, StateDirectoryError, StreamsError
from penstock.runtime.snapshots.catalogue import Snapshot, complete_ids, find
from penstock.runtime.snapshots.export_manager import ExportManager, ExportProgress, expanded
from penstock.runtime.snapshots.manifest import MANIFEST, SNAPSHOT, ApplicationManifest, TaskManifest, decode_manifest, encoded, time_of_id
from penstock.runtime.snapshots.opening import place_of
from penstock.runtime.snapshots.places import Place

logger = logging.getLogger(__name__)

STALLED_SECONDS = 120.0
"""An export without progress for this long is abandoned; it can be resumed."""
LEFTOVER_MS = 24 * 60 * 60_000
"""Age after which an incomplete export is removed: a living writer would have resumed it."""
_POLL_SECONDS = 1.0
_ANSWER_SECONDS = 15.0
_MOST_CUT_OFF = 3


@dataclass(frozen=True, slots=True)
class _Share:
    """The parts of a snapshot that one instance stores."""

    instance: str
    folder: Path
    tasks: tuple[str, ...]


Ask = Callable[[bool], ExportProgress]
"""Returns the progress of a share's export; starts or resumes it if the argument is True."""


def export_root(application: Application, uri: str | None = None) -> str:
    """Return the URI of the application's exported snapshots, with `${NAME}` as declared. Raises RefusedError if there is none."""
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
    """Return the URI of a name below another URI, keeping its query."""
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
    """Copy a complete snapshot (default: the newest) to `uri` (default: as declared), and wait. `progress` counts bytes.

    Safe to repeat: existing files are not copied again. Older exports are removed from the declared place only. Raises RefusedError,
    StateDirectoryError (no such snapshot, or the other place refuses), StreamsError (an instance makes no progress),
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
    """Have all shares copied concurrently."""
    total = snapshot.manifest.bytes
    with ExitStack() as stack:
        client = stack.enter_context(CommandClient(application.id, application.connection, actor))
        living = living_instances(client, application, actor)
        own = ExportManager()
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
                    f"the export of snapshot {snapshot.id} has made no progress for {STALLED_SECONDS:.0f} s: {waiting}. "
                    "Export it again to continue"
                )
            time.sleep(_POLL_SECONDS)


def _next(share: _Share, ask: Ask, before: ExportProgress, cut_off: dict[_Share, int]) -> ExportProgress:
    """Return a share's progress; start or resume its export unless it is running. Raises StateDirectoryError if it failed."""
    try:
        found = ask(before.state != "running")
    except (StateDirectoryError, BrokerUnavailableError):
        raise
    except StreamsError as error:  # no answer: it may be restarting
        logger.warning("%s; asking again", error)
        return msgspec.structs.replace(before, state="silent")
    if found.state == "cut off":
        cut_off[share] += 1
        if cut_off[share] > _MOST_CUT_OFF:
            raise StateDirectoryError(f"{share.instance}: the process that exports was ended {cut_off[share]} times; its log may say why")
        logger.warning("the export of %s was cut off; it continues", share.instance)
    if found.state == "failed":
        raise StateDirectoryError(f"{share.instance}: {found.error}")
    return found


def _shares(snapshot: Snapshot) -> list[_Share]:
    tasks: dict[tuple[str, Path], list[str]] = defaultdict(list)
    for task, where in snapshot.manifest.tasks.items():
        tasks[snapshot.manifest.instances.get(task, ""), Path(where).parent].append(task)
    return [_Share(instance, folder, tuple(names)) for (instance, folder), names in tasks.items()]


def _asking(client: CommandClient, snapshot_id: str, share: _Share, uri: str) -> Ask:
    """Return an `Ask` for a share that its instance copies."""

    def ask(start: bool) -> ExportProgress:
        args: dict[str, object] = {"snapshot_id": snapshot_id, "uri": uri, "tasks": list(share.tasks), "start": start}
        result = client.send("export-snapshot", instance=share.instance, args=args, timeout_s=_ANSWER_SECONDS)
        if not result.ok:
            raise RefusedError(f"{share.instance} cannot export snapshot {snapshot_id}: {result.reason}")
        return msgspec.convert(dict(result.data), ExportProgress)

    return ask


def _asking_here(exports: ExportManager, share: _Share, uri: str) -> Ask:
    """Return an `Ask` for a share of an instance that does not run, copied by this process. Raises RefusedError if its files are
    elsewhere."""
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
    """Return the manifest of the copy. Raises StateDirectoryError if a part is missing."""
    parts = []
    for task in snapshot.tasks:
        data = (place / task / MANIFEST).read()
        if data is None:
            raise StateDirectoryError(f"{place / task} has no {MANIFEST}, although its instance said that all was copied")
        parts.append(decode_manifest(data, TaskManifest, place / task / MANIFEST))
    places: Mapping[str, str] = {task: task for task in snapshot.tasks}
    whole = snapshot.manifest
    return ApplicationManifest.of(parts, places, topology_hash=whole.topology_hash, formats=whole.formats, settled=whole.settled)


def prune_exported(root: Place, *, keep: int | None, now_ms: int, spared: str = "") -> list[str]:
    """Remove all complete snapshots below `root` but the newest `keep` (None: remove none) and `spared`, and those that have been
    incomplete for a day; return their ids."""
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
