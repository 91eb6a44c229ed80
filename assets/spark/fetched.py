"""Copies of what lies at a URI, on the disk of an executor: fetched once for all tasks of Spark that read it there.

    <first of SPARK_LOCAL_DIRS>/penstock-snapshots/<digest>/          a copy, held against the manifest's sizes and checksums
                                                  /<digest>.lock      held while it is being fetched

`SPARK_LOCAL_DIRS` is what Spark tells its Pythons: folders of the executor's own, which are removed when it ends. So a
frame that is used twice is fetched once, and nothing stays behind. Where Spark says nothing (in the processes that plan), a copy lives as
long as it is read.
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

from runtime.errors import StateDirectoryError
from runtime.snapshots.manifest import StoreManifest, TaskManifest
from runtime.snapshots.places import Place, telling
from runtime.snapshots.reading import copy_store, files_of, store_files

LOCAL_DIRS = "SPARK_LOCAL_DIRS"
_FOLDER = "penstock-snapshots"


@contextmanager
def fetched(place: Place, task: TaskManifest, store: StoreManifest) -> Iterator[Path]:
    """The folder of a store's files, for reading; `place` is that of the task's part. Raises StateDirectoryError, naming the file, where
    one is missing or damaged, or cannot be written here."""
    kept = os.environ.get(LOCAL_DIRS, "").split(",")[0]
    if place.local is not None or not kept:
        with store_files(place, task, store) as folder:
            yield folder
        return
    yield _copy(place, task, store, Path(kept) / _FOLDER) / store.directory


def _copy(place: Place, task: TaskManifest, store: StoreManifest, cache: Path) -> Path:
    """The copy; fetched if it is not there. Of several processes that want it one fetches, and the others wait for it."""
    files = msgspec.json.encode(files_of(task, store))
    copy = cache / hashlib.sha256(f"{place.uri}\0{store.name}\0".encode() + files).hexdigest()[:32]
    if copy.is_dir():
        return copy
    with telling("written", cache):
        cache.mkdir(parents=True, exist_ok=True)
        lock = copy.with_suffix(".lock").open("w")
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if copy.is_dir():
            return copy
        building = copy.with_suffix(".building")
        shutil.rmtree(building, ignore_errors=True)  # of somebody who was killed
        try:
            copy_store(place, task, store, building)
        except StateDirectoryError:
            shutil.rmtree(building, ignore_errors=True)
            raise
        building.rename(copy)
    return copy
