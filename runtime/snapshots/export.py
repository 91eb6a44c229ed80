"""`python -m runtime.snapshots.export FOLDER URI TASK…`: copies tasks' parts of a snapshot to another place.

FOLDER is an instance's share of a snapshot, URI the snapshot's folder at the other place, where `${NAME}` is read from this process's
environment. It runs in a process of its own, at the lowest priority, beside the instance whose files it reads: these never change.

    URI/<task>/<store>/…            the files, as they are
       /<task>/manifest.json        last, with a checksum of each file: a part without it is not read by anybody

Killed, or cut off, it is started again and goes on: what is there in the right size and with the right checksum is not copied again. One
process at a time works on a folder and URI. How far it is stands in a file in FOLDER, which `exports.py` reads.
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

from runtime.errors import StateDirectoryError
from runtime.snapshots.exports import ExportProgress, expanded, lock_path, progress_path
from runtime.snapshots.manifest import MANIFEST, SnapshotFile, TaskManifest, decode_manifest, encoded, read_manifest
from runtime.snapshots.places import LocalPlace, Place, place_of
from runtime.snapshots.reading import PIECE

TELL_SECONDS = 0.5


def export(folder: Path, target: Place, tasks: Sequence[str], tell: Callable[[int, int], None]) -> None:
    """Copies the parts of `tasks` from `folder` to `target`. `tell` hears of bytes done and of all bytes, often.

    Raises StateDirectoryError: a part is not here, a file is damaged, the other place refuses.
    """
    parts = {task: read_manifest(folder / task) for task in tasks}
    total, done = sum(part.bytes for part in parts.values()), 0
    tell(0, total)
    for task, part in parts.items():
        before = done

        def told(copied: int, before: int = before) -> None:
            tell(before + copied, total)

        if not _is_there(target / task, part):
            _copy_task(LocalPlace(folder) / task, target / task, part, told)
        done += part.bytes
        tell(done, total)


def _is_there(target: Place, part: TaskManifest) -> bool:
    """True if the whole part was copied before: its manifest, which comes last, is there and tells of the same files."""
    data = (target / MANIFEST).read()
    if data is None:
        return False
    found = decode_manifest(data, TaskManifest, target / MANIFEST)
    return [(file.path, file.bytes) for file in found.files] == [(file.path, file.bytes) for file in part.files]


def _copy_task(source: Place, target: Place, part: TaskManifest, told: Callable[[int], None]) -> None:
    done = 0
    files: list[SnapshotFile] = []
    for file in part.files:

        def told_of_file(copied: int, before: int = done) -> None:
            told(before + copied)

        files.append(_copied(source / file.path, target / file.path, file, told_of_file))
        done += file.bytes
    (target / MANIFEST).write(iter([encoded(msgspec.structs.replace(part, files=files))]))


def _copied(source: Place, target: Place, file: SnapshotFile, told: Callable[[int], None]) -> SnapshotFile:
    """Copies a file unless it is there; gives it with its checksum."""
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
            told(size)
            yield piece
        _require_size(source, size, file)

    target.write(pieces())
    written = target.size()
    if written != file.bytes:
        raise StateDirectoryError(f"{target} has {written} bytes after {file.bytes} were written: the copy is not whole")
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


class _Teller:
    """Keeps the progress file up to date, now and then."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._told_at = 0.0
        self._bytes = (0, 0)

    def tell(self, done: int, total: int) -> None:
        self._bytes = (done, total)
        if time.monotonic() - self._told_at >= TELL_SECONDS:
            self._told_at = time.monotonic()
            self.end("running")

    def end(self, state: str, error: str = "") -> None:
        progress = ExportProgress(state=state, done=self._bytes[0], total=self._bytes[1], error=error)
        LocalPlace(self._path).write(iter([msgspec.json.encode(progress)]))


def main(arguments: Sequence[str]) -> int:
    """The process. 0: all is there; 1: it is not, and the progress file says why; 2: another one is at it."""
    folder, uri, *tasks = arguments
    share = Path(folder)
    with lock_path(share, uri).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return 2
        teller = _Teller(progress_path(share, uri))
        try:
            export(share, place_of(expanded(uri)), tasks, teller.tell)
        except StateDirectoryError as error:
            teller.end("failed", str(error))
            return 1
        teller.end("done")
        return 0


if __name__ == "__main__":
    os.nice(19)
    sys.exit(main(sys.argv[1:]))
