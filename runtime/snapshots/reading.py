"""Reading a task's part of a snapshot as local files, verified with the sizes and checksums of its manifest.

Exported files have checksums. Files on the instance's own disk have only sizes, and RocksDB's own checksums of blocks.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.runtime.model.errors import StateDirectoryError
from penstock.runtime.snapshots.manifest import SnapshotFile, StoreManifest, TaskManifest
from penstock.runtime.snapshots.places import LocalPlace, Place

PIECE = 4 << 20
"""Bytes per read."""


@contextmanager
def store_files(place: Place, task: TaskManifest, store: StoreManifest) -> Iterator[Path]:
    """Provide the folder of a store's files, for reading: local files in place, others as a copy that is removed afterwards.

    `place` is the place of the task's part. Raises StateDirectoryError, naming the file, if one is missing or damaged.
    """
    local = place.local
    if local is not None:
        check(place, files_of(task, store))
        yield local / store.directory
        return
    with tempfile.TemporaryDirectory(prefix="penstock-snapshot-") as folder:
        yield copy_store(place, task, store, Path(folder))


def copy_store(place: Place, task: TaskManifest, store: StoreManifest, into: Path) -> Path:
    """Copy a store's files to its directory below `into`, and return that folder. Raises as `store_files`, and if the disk cannot be
    written; a file whose copy failed is not left behind."""
    target = into / store.directory
    for file in files_of(task, store):
        digest = hashlib.sha256()
        (LocalPlace(into) / file.path).write(_counted(place / file.path, file, digest))
    target.mkdir(parents=True, exist_ok=True)
    return target


def _counted(source: Place, file: SnapshotFile, digest: hashlib._Hash) -> Iterator[bytes]:
    """Yield the pieces of a file. Raises StateDirectoryError at its end if it differs from the manifest."""
    if source.size() is None:
        raise _missing(source)
    size = 0
    for piece in source.reading(PIECE):
        digest.update(piece)
        size += len(piece)
        yield piece
    if size != file.bytes:
        raise _wrong_size(source, size, file)
    if file.sha256 is not None and digest.hexdigest() != file.sha256:
        raise StateDirectoryError(
            f"{source} is damaged: its SHA-256 is {digest.hexdigest()}, and was {file.sha256} when it was copied there"
        )


def check(place: Place, files: list[SnapshotFile]) -> None:
    """Compare files with the manifest. Raises StateDirectoryError for the first that is missing or damaged."""
    for file in files:
        source = place / file.path
        if file.sha256 is None:
            size = source.size()
            if size is None:
                raise _missing(source)
            if size != file.bytes:
                raise _wrong_size(source, size, file)
        else:
            for _ in _counted(source, file, hashlib.sha256()):
                pass


def files_of(task: TaskManifest, store: StoreManifest) -> list[SnapshotFile]:
    """Return the files of one store."""
    return [file for file in task.files if file.path.startswith(f"{store.directory}/")]


def _missing(source: Place) -> StateDirectoryError:
    return StateDirectoryError(f"{source} is not there, although the snapshot's manifest names it: the snapshot is damaged")


def _wrong_size(source: Place, size: int, file: SnapshotFile) -> StateDirectoryError:
    return StateDirectoryError(f"{source} is damaged: it has {size:,} bytes, and the snapshot's manifest says {file.bytes:,}")
