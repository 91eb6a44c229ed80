"""Search for snapshots: `find("/path/or/uri")` returns the newest complete one there, or the one with a given id.

    <root>/<snapshot id>/snapshot.json            root: a folder or URI that holds the snapshots of one application

Only folders with a `snapshot.json` are found. For other folders that users give by mistake (a task's part, an instance's share, the folder
of a running task, an incomplete snapshot) the message says what it is and what to give instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.runtime.model.errors import StateDirectoryError
from penstock.runtime.snapshots.manifest import MANIFEST, SNAPSHOT, ApplicationManifest, TaskManifest, decode_manifest, task_order
from penstock.runtime.snapshots.opening import place_of
from penstock.runtime.snapshots.places import Place, absolute


@dataclass(frozen=True)
class Snapshot:
    """A complete snapshot: its manifest, and the folder that holds it."""

    manifest: ApplicationManifest
    place: Place

    @property
    def id(self) -> str:
        return self.manifest.snapshot

    @property
    def tasks(self) -> list[str]:
        """The names of the tasks, `global` among them if there are global stores."""
        return sorted(self.manifest.tasks, key=task_order)

    def task_place(self, task: str) -> Place:
        """Return the place of a task's part. Raises StateDirectoryError, naming the known tasks, for an unknown one."""
        where = self.manifest.tasks.get(task)
        if where is None:
            raise StateDirectoryError(f"snapshot {self.place} has no task {task!r}; there are {', '.join(self.tasks)}")
        return place_of(where) if absolute(where) else self.place / where

    def task(self, task: str) -> TaskManifest:
        """Return the manifest of a task's part. Raises StateDirectoryError for an unknown task, and if the part was removed since."""
        place = self.task_place(task)
        data = (place / MANIFEST).read()
        if data is None:
            raise StateDirectoryError(
                f"snapshot {self.id} of {self.manifest.application}: the part of task {task} is not at {place}: it is on another machine, "
                f"or was removed with the instance's state. Export a snapshot that is to outlive its instances"
            )
        return decode_manifest(data, TaskManifest, place / MANIFEST)


def find(where: str | Path | Place, snapshot: str | None = None) -> Snapshot:
    """Return the snapshot with id `snapshot`, or the newest complete one, at `where`: a root of snapshots, or one snapshot itself.

    Raises StateDirectoryError if nothing is there, if there is no such snapshot (naming those that exist), if it is incomplete, or if the
    folder is something else.
    """
    place = where if isinstance(where, Place) else place_of(where)
    own = _read(place)
    if own is not None:
        if snapshot not in (None, own.id):
            raise StateDirectoryError(f"{place} is snapshot {own.id}, not {snapshot}")
        return own
    if snapshot is not None:
        found = _read(place / snapshot)
        if found is not None:
            return found
    complete = complete_ids(place)
    if snapshot is None and complete:
        newest = _read(place / complete[-1])
        if newest is not None:
            return newest
    raise StateDirectoryError(_instead(place, snapshot, complete))


def complete_ids(root: Place) -> list[str]:
    """Return the ids of the complete snapshots below a root, oldest first."""
    return [child.name for child in root.children() if (child / SNAPSHOT).size() is not None]


def require_complete(root: Place, snapshot: str) -> None:
    """Raise StateDirectoryError, as `find`, unless there is a complete snapshot with this id. Its manifest is not read."""
    if snapshot not in complete_ids(root):
        find(root, snapshot)


def find_all(root: Place, unreadable: Callable[[StateDirectoryError], object]) -> list[Snapshot]:
    """Return all complete snapshots below a root, oldest first. If a manifest cannot be read, `unreadable` is called with the error."""
    found = []
    for name in complete_ids(root):
        try:
            snapshot = _read(root / name)
        except StateDirectoryError as error:
            unreadable(error)
        else:
            found += [snapshot] if snapshot is not None else []
    return found


def _read(place: Place) -> Snapshot | None:
    data = (place / SNAPSHOT).read()
    if data is None:
        return None
    manifest = decode_manifest(data, ApplicationManifest, place / SNAPSHOT)
    if manifest.missing or not manifest.tasks:
        raise StateDirectoryError(
            f"{place / SNAPSHOT} is of a snapshot that is not complete: tasks {', '.join(manifest.missing)} are missing"
        )
    return Snapshot(manifest, place)


def _instead(place: Place, snapshot: str | None, complete: Sequence[str]) -> str:
    """Return the message of why nothing was found, and what to give instead."""
    named = f"there is no snapshot {snapshot!r} at {place}" if snapshot else f"there is no snapshot at {place}"
    those = f"; complete are {', '.join(complete[-10:])}" if complete else ""
    if snapshot is not None and ((place / snapshot).children() or (place / snapshot).modified_ms() is not None):
        return f"snapshot {snapshot!r} at {place} is not complete: it has no {SNAPSHOT}, so parts are missing or still being written{those}"
    if complete:
        return named + those
    names = {child.name for child in place.children()}
    if MANIFEST in names:
        return f"{place} is one task's part of a snapshot; give the snapshot, the folder that holds {SNAPSHOT}"
    if "rocksdb" in names or "CURRENT" in names:
        return (
            f"{place} is the folder of a running task's stores, not a snapshot: they change all the time. Take one: penstock snapshot take"
        )
    parts = sorted((name for name in names if (place / name / MANIFEST).size() is not None), key=str)
    if parts:
        return f"{place} holds parts of a snapshot ({', '.join(parts)}) but no {SNAPSHOT}: it is half there, or one instance's share of it"
    below = sorted(name for name in names if complete_ids(place / name))
    if below:
        return f"{named}: it holds the snapshots of {', '.join(below)}; give one of these folders"
    return f"{named}: {'there is nothing' if not names else 'nothing in it is a complete snapshot'}"
