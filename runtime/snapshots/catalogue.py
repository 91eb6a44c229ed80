"""Finds snapshots: `find("/path/or/uri")` gives the newest complete one there, or the one of an id.

    <root>/<snapshot id>/snapshot.json            root: a folder or URI that holds the snapshots of one application

Only a snapshot with its `snapshot.json` is seen. What somebody may give in its place by mistake (a task's part, an instance's share, the
folder of a running task, a half one) is told apart, and the message says which it is and what to give.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from runtime.errors import StateDirectoryError
from runtime.snapshots.manifest import MANIFEST, SNAPSHOT, ApplicationManifest, TaskManifest, decode_manifest, task_order
from runtime.snapshots.places import Place, absolute, place_of


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
        """Where the part of a task lies. Raises StateDirectoryError with the tasks that there are."""
        where = self.manifest.tasks.get(task)
        if where is None:
            raise StateDirectoryError(f"snapshot {self.place} has no task {task!r}; there are {', '.join(self.tasks)}")
        return place_of(where) if absolute(where) else self.place / where

    def task(self, task: str) -> TaskManifest:
        """The manifest of a task's part. Raises StateDirectoryError, also where the part has gone away since."""
        place = self.task_place(task)
        data = (place / MANIFEST).read()
        if data is None:
            raise StateDirectoryError(
                f"snapshot {self.id} of {self.manifest.application}: the part of task {task} is not at {place}: it is on another machine, "
                f"or was removed with the instance's state. Export a snapshot that is to outlive its instances"
            )
        return decode_manifest(data, TaskManifest, place / MANIFEST)


def find(where: str | Path | Place, snapshot: str | None = None) -> Snapshot:
    """The snapshot `snapshot`, or the newest complete one, of those at `where`: a root of snapshots, or one snapshot itself.

    Raises StateDirectoryError: nothing there, no such snapshot (it names those that there are), one that is half there, or something else
    in the place of a snapshot.
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
    """The ids of the complete snapshots below a root, oldest first."""
    return [child.name for child in root.children() if (child / SNAPSHOT).size() is not None]


def require_complete(root: Place, snapshot: str) -> None:
    """Raises StateDirectoryError, as `find`, unless a snapshot of this id is there, whatever its manifest looks like."""
    if snapshot not in complete_ids(root):
        find(root, snapshot)


def find_all(root: Place, unreadable: Callable[[StateDirectoryError], object]) -> list[Snapshot]:
    """All complete snapshots below a root, oldest first. One whose manifest cannot be read is left out, and `unreadable` hears why."""
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
    """Why nothing was found, in words."""
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
