"""Copies of snapshots from a URI on the disk of an executor, fetched once for all Spark tasks that read them there.

    <first of SPARK_LOCAL_DIRS>/penstock-snapshots/<digest>/          a copy, checked against the manifest's sizes and checksums
                                                  /<digest>.lock      held during the fetch

Spark sets `SPARK_LOCAL_DIRS` for its Python processes: folders of the executor, which are removed when it ends. So a
frame that is used twice is fetched once, and no files remain. Where the variable is not set (in the processes that plan), a copy is
removed after the read.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from penstock.runtime.model.errors import StateDirectoryError
from penstock.runtime.snapshots.manifest import StoreManifest, TaskManifest
from penstock.runtime.snapshots.places import Place, place_errors
from penstock.runtime.snapshots.reading import copy_store, files_of, store_files

LOCAL_DIRS = "SPARK_LOCAL_DIRS"
_FOLDER = "penstock-snapshots"


@contextmanager
def fetched(place: Place, task: TaskManifest, store: StoreManifest) -> Iterator[Path]:
    """Return the folder of a store's files, for reading; `place` is that of the task's part. Raises StateDirectoryError, naming the file,
    if one is missing or damaged, or cannot be written here."""
    kept = os.environ.get(LOCAL_DIRS, "").split(",")[0]
    if place.local is not None or not kept:
        with store_files(place, task, store) as folder:
            yield folder
        return
    yield _copy(place, task, store, Path(kept) / _FOLDER) / store.directory


def _copy(place: Place, task: TaskManifest, store: StoreManifest, cache: Path) -> Path:
    """Return the copy; fetch it if necessary. If several processes want it, one fetches, and the others wait for it."""
    files = msgspec.json.encode(files_of(task, store))
    copy = cache / hashlib.sha256(f"{place.uri}\0{store.name}\0".encode() + files).hexdigest()[:32]
    if copy.is_dir():
        return copy
    with place_errors("written", cache):
        cache.mkdir(parents=True, exist_ok=True)
        lock = copy.with_suffix(".lock").open("w")
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if copy.is_dir():
            return copy
        building = copy.with_suffix(".building")
        shutil.rmtree(building, ignore_errors=True)  # left by a process that was killed
        try:
            copy_store(place, task, store, building)
        except StateDirectoryError:
            shutil.rmtree(building, ignore_errors=True)
            raise
        building.rename(copy)
    return copy
