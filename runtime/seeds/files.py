"""Transfer of a seed's files into the state directory.

    <state.dir>/<application.id>/.seeding/<task>/rocksdb/<store>/     fetched: hard links if the seed is on the same disk, else copies
                                 <task>/rocksdb/<store>/              installed with the changelog's end, by one rename per task

SST files never change, so they are linked; other files are copied, because the store will write to them. A task's folder appears complete.
The next attempt deletes files that a killed one left under `.seeding`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from penstock.runtime.changelog.checkpoint import write_checkpoint
from penstock.runtime.changelog.store_metadata import encode_changelog_end, encode_times
from penstock.runtime.model.errors import StateDirectoryError
from penstock.runtime.model.ids import NextOffset, TopicPartition
from penstock.runtime.operators.event_time import OBSERVED_TIME, encoded_time
from penstock.runtime.seeds.entries import latest
from penstock.runtime.seeds.plan import SeededStore, SeededTask
from penstock.runtime.snapshots.manifest import StoreManifest, TaskManifest
from penstock.runtime.snapshots.places import Place
from penstock.runtime.snapshots.reading import check, copy_store, files_of
from penstock.runtime.stores.directory import StateDirectory
from penstock.runtime.stores.duplicates import encode_sequence
from penstock.runtime.stores.layout import LAYOUT_META, encode_layout
from penstock.runtime.stores.locks import FOLDER_MODE, unusable
from penstock.runtime.stores.rocks_loading import inspect_store, place
from penstock.runtime.stores.segmented import STREAM_TIME, TIME

_TABLE = ".sst"
_TIMED = ("window", "session", "versioned")


def fetch_store(where: Place, task: TaskManifest, store: StoreManifest, target: Path) -> None:
    """Fetch a store's files into the new folder `target` and verify them with the manifest. Raises StateDirectoryError if one is missing or
    damaged, or on disk errors."""
    local = where.local
    temporary = target.with_name(f".{target.name}.fetching")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True, mode=FOLDER_MODE)
        if local is None:
            copy_store(where, task, store, temporary)
        else:
            check(where, files_of(task, store))
            _take_local(local / store.directory, temporary / store.directory)
        (temporary / store.directory).rename(target)
        shutil.rmtree(temporary)
    except OSError as error:
        raise unusable(f"the folder {target}", error) from error


def _take_local(source: Path, target: Path) -> None:
    if not (source / "CURRENT").is_file():
        raise StateDirectoryError(f"{source} holds no store")
    target.mkdir(parents=True)
    for file in source.iterdir():
        if file.is_file() and file.name != "LOCK":
            _take_file(file, target / file.name)


def _take_file(source: Path, target: Path) -> None:
    if source.suffix == _TABLE:
        try:
            os.link(source, target)
            return
        except OSError:  # another disk, or one without hard links
            target.unlink(missing_ok=True)
    shutil.copyfile(source, target)


class Staging:
    """Staging folder of a seed. Requires the lock of the state directory."""

    def __init__(self, directory: StateDirectory) -> None:
        self._directory = directory
        self._root = directory.path / ".seeding"

    def begin(self) -> None:
        """Delete the files of an earlier attempt. Raises StateDirectoryError."""
        try:
            shutil.rmtree(self._root, ignore_errors=not self._root.exists())
            self._root.mkdir(mode=FOLDER_MODE)
        except OSError as error:
            raise unusable(f"the folder {self._root}", error) from error

    def fetch(self, task: SeededTask) -> None:
        """Fetch the files of a task's stores. Raises StateDirectoryError."""
        if task.manifest is not None and task.place is not None:
            (self._root / str(task.task) / "rocksdb").mkdir(parents=True, mode=FOLDER_MODE)
            for store in task.stores:
                fetch_store(task.place, task.manifest, store.manifest, self.path(task, store))

    def path(self, task: SeededTask, store: SeededStore) -> Path:
        """Return the folder of a fetched store."""
        return self._root / str(task.task) / "rocksdb" / store.name

    def complete(self, task: SeededTask, store: SeededStore, inputs: Mapping[TopicPartition, NextOffset]) -> dict[str, bytes]:
        """Write a store's metadata, except the end of its changelog, and return all of it. Times in a snapshot's store are kept."""
        path, layout = self.path(task, store), store.layout
        kept = inspect_store(path).metas
        metas = {LAYOUT_META: encode_layout(layout, store.format), **encode_times(task.stream_time, task.times)}
        wanted = [STREAM_TIME, *([OBSERVED_TIME] if layout.kind in ("window", "session") and not layout.duplicates else [])]
        if layout.kind in _TIMED and not kept.keys() >= set(wanted):
            found = latest(path, layout)
            metas |= {STREAM_TIME: TIME.pack(found.time)}
            if OBSERVED_TIME in wanted:
                metas |= {OBSERVED_TIME: encoded_time(found.timestamp)}
            if layout.duplicates:
                metas |= encode_sequence(found.sequence)
        known = {**metas, **kept, LAYOUT_META: metas[LAYOUT_META]}
        place(path, inputs, known)
        return known

    def put_in_place(self, task: SeededTask, ends: Mapping[TopicPartition, NextOffset], topic_ids: Mapping[str, str], now_ms: int) -> None:
        """Install the stores of a task, which match the ends of their changelogs, as its local state. Raises StateDirectoryLockedError,
        StateDirectoryError."""
        folder = self._root / str(task.task)
        self._directory.wipe_task(task.task)
        on_disk = [store for store in task.stores if store.persistent]
        try:
            for store in task.stores:
                if not store.persistent:
                    shutil.rmtree(self.path(task, store))
            if not on_disk:
                return
            offsets: dict[TopicPartition, NextOffset | None] = {}
            for store in on_disk:
                log = store.changelog
                if log is not None:
                    place(self.path(task, store), {log: ends[log]}, encode_changelog_end(topic_ids[log.topic], now_ms))
                    offsets[log] = ends[log]
            write_checkpoint(folder, offsets)
            folder.rename(self._directory.path / str(task.task))
        except OSError as error:
            raise unusable(f"the folder {self._directory.path / str(task.task)}", error) from error

    def end(self) -> None:
        """Delete the staging folder."""
        shutil.rmtree(self._root, ignore_errors=True)
