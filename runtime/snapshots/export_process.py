"""The process of an export: `python -m penstock.runtime.snapshots.export_process FOLDER URI TASK…` copies tasks' parts of a snapshot.

FOLDER is an instance's share of a snapshot. URI is the snapshot's folder at the target; `${NAME}` in it is replaced from this process's
environment. The process runs at the lowest priority beside the instance whose files it reads, which never change.

    URI/<task>/<store>/…            the files, unchanged
       /<task>/manifest.json        written last, with a checksum of each file: readers ignore a part without it

After a kill or an interruption it can be started again: files that are there with the right size and checksum are not copied again. A lock
allows one process per folder and URI. Its progress is in a file in FOLDER, which `export_manager.py` reads.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from penstock.runtime.model.errors import StateDirectoryError
from penstock.runtime.snapshots.export_manager import ExportProgress, expanded, lock_path, progress_path
from penstock.runtime.snapshots.manifest import MANIFEST, SnapshotFile, TaskManifest, decode_manifest, encoded, read_manifest
from penstock.runtime.snapshots.opening import place_of
from penstock.runtime.snapshots.places import LocalPlace, Place
from penstock.runtime.snapshots.reading import PIECE

REPORT_SECONDS = 0.5
"""Least time between two writes of the progress file."""


def export(folder: Path, target: Place, tasks: Sequence[str], report: Callable[[int, int], None]) -> None:
    """Copy the parts of `tasks` from `folder` to `target`. `report` is called often, with the bytes copied and the bytes of all files.

    Raises StateDirectoryError if a part is missing, a file is damaged, or the target cannot be written.
    """
    parts = {task: read_manifest(folder / task) for task in tasks}
    total, done = sum(part.bytes for part in parts.values()), 0
    report(0, total)
    for task, part in parts.items():
        before = done

        def report_copied(copied: int, before: int = before) -> None:
            report(before + copied, total)

        if not _is_copied(target / task, part):
            _copy_task(LocalPlace(folder) / task, target / task, part, report_copied)
        done += part.bytes
        report(done, total)


def _is_copied(target: Place, part: TaskManifest) -> bool:
    """Return True if all of the part was copied before: its manifest, which is written last, is there and names the same files."""
    data = (target / MANIFEST).read()
    if data is None:
        return False
    found = decode_manifest(data, TaskManifest, target / MANIFEST)
    return [(file.path, file.bytes) for file in found.files] == [(file.path, file.bytes) for file in part.files]


def _copy_task(source: Place, target: Place, part: TaskManifest, report: Callable[[int], None]) -> None:
    done = 0
    files: list[SnapshotFile] = []
    for file in part.files:

        def report_copied(copied: int, before: int = done) -> None:
            report(before + copied)

        files.append(_copy_file(source / file.path, target / file.path, file, report_copied))
        done += file.bytes
    (target / MANIFEST).write(iter([encoded(msgspec.structs.replace(part, files=files))]))


def _copy_file(source: Place, target: Place, file: SnapshotFile, report: Callable[[int], None]) -> SnapshotFile:
    """Copy a file unless it is at the target already; return it with its checksum."""
    if target.size() == file.bytes:
        here = _digest(source, file)
        if _digest(target, file) == here:
            return msgspec.structs.replace(file, sha256=here)
    digest = hashlib.sha256()

    def pieces() -> Iterator[bytes]:
        size = 0
        for piece in source.reading(PIECE):
            digest.update(piece)
            size += len(piece)
            report(size)
            yield piece
        _require_size(source, size, file)

    target.write(pieces())
    written = target.size()
    if written != file.bytes:
        raise StateDirectoryError(f"{target} has {written} bytes after {file.bytes} were written: the copy is incomplete")
    return msgspec.structs.replace(file, sha256=digest.hexdigest())


def _digest(place: Place, file: SnapshotFile) -> str:
    digest, size = hashlib.sha256(), 0
    for piece in place.reading(PIECE):
        digest.update(piece)
        size += len(piece)
    _require_size(place, size, file)
    return digest.hexdigest()


def _require_size(place: Place, size: int, file: SnapshotFile) -> None:
    if size != file.bytes:
        raise StateDirectoryError(f"{place} is damaged: it has {size:,} bytes, and the snapshot's manifest says {file.bytes:,}")


class _ProgressFile:
    """Writer of the progress file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written_at = 0.0
        self._bytes = (0, 0)

    def update(self, done: int, total: int) -> None:
        self._bytes = (done, total)
        if time.monotonic() - self._written_at >= REPORT_SECONDS:
            self._written_at = time.monotonic()
            self.write("running")

    def write(self, state: str, error: str = "") -> None:
        progress = ExportProgress(state=state, done=self._bytes[0], total=self._bytes[1], error=error)
        LocalPlace(self._path).write(iter([msgspec.json.encode(progress)]))


def main(arguments: Sequence[str]) -> int:
    """Run the process and return its exit status. 0: all parts are copied; 1: failed, with the reason in the progress file; 2: another
    process exports this folder to this URI."""
    folder, uri, *tasks = arguments
    share = Path(folder)
    with lock_path(share, uri).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return 2
        progress = _ProgressFile(progress_path(share, uri))
        try:
            export(share, place_of(expanded(uri)), tasks, progress.update)
        except StateDirectoryError as error:
            progress.write("failed", str(error))
            return 1
        progress.write("done")
        return 0


if __name__ == "__main__":
    os.nice(19)
    sys.exit(main(sys.argv[1:]))
