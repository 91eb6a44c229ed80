"""A seed's files on their way into the state directory.

    <state.dir>/<application.id>/.seeding/<task>/rocksdb/<store>/     brought: linked where the seed is on the same disk, or copied
                                 <task>/rocksdb/<store>/              placed: with the changelog's end, in one rename per task

Files of tables never change, so they are linked and cost nothing; the others are copied, for the store will write to them. A task's folder
appears whole. What a killed attempt has left under `.seeding` is thrown away by the next one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from runtime.changelog.checkpoint import write_checkpoint
from runtime.changelog.staleness import metas_at_end
from runtime.errors import StateDirectoryError
from runtime.ids import NextOffset, Partition
from runtime.operators.kept_time import OBSERVED_TIME, time_as_kept
from runtime.seeds.entries import latest
from runtime.seeds.plan import SeededStore, SeededTask
from runtime.snapshots.manifest import StoreManifest, TaskManifest
from runtime.snapshots.places import Place
from runtime.snapshots.reading import check, copy_store, files_of
from runtime.stores.directory import StateDirectory
from runtime.stores.duplicates import sequence_as_kept
from runtime.stores.layout import KEPT_LAYOUT, encode_layout
from runtime.stores.locks import FOLDER_MODE, unusable
from runtime.stores.rocks_placing import look_beside, place
from runtime.stores.segmented import STREAM_TIME, TIME
from runtime.tasks.kept import times_as_kept

_TABLE = ".sst"
_TIMED = ("window", "session", "versioned")


def bring_store(where: Place, task: TaskManifest, store: StoreManifest, target: Path) -> None:
    """A store's files in the new folder `target`, held against the manifest. Raises StateDirectoryError where one is missing or damaged, or
    the disk refuses."""
    local = where.local
    aside = target.with_name(f".{target.name}.brought")
    try:
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True, mode=FOLDER_MODE)
        if local is None:
            copy_store(where, task, store, aside)
        else:
            check(where, files_of(task, store))
            _take_local(local / store.directory, aside / store.directory)
        (aside / store.directory).rename(target)
        shutil.rmtree(aside)
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
        except OSError:  # another disk, or one that knows no links
            target.unlink(missing_ok=True)
    shutil.copyfile(source, target)


class Staging:
    """The folder in which a seed waits. Belongs to whoever holds the directory's lock."""

    def __init__(self, directory: StateDirectory) -> None:
        self._directory = directory
        self._root = directory.path / ".seeding"

    def begin(self) -> None:
        """Throws away what is left of an attempt before. Raises StateDirectoryError."""
        try:
            shutil.rmtree(self._root, ignore_errors=not self._root.exists())
            self._root.mkdir(mode=FOLDER_MODE)
        except OSError as error:
            raise unusable(f"the folder {self._root}", error) from error

    def bring(self, task: SeededTask) -> None:
        """The files of a task's stores. Raises StateDirectoryError."""
        if task.manifest is not None and task.place is not None:
            (self._root / str(task.task) / "rocksdb").mkdir(parents=True, mode=FOLDER_MODE)
            for store in task.stores:
                bring_store(task.place, task.manifest, store.manifest, self.path(task, store))

    def path(self, task: SeededTask, store: SeededStore) -> Path:
        """Where a store that was brought lies."""
        return self._root / str(task.task) / "rocksdb" / store.name

    def complete(self, task: SeededTask, store: SeededStore, inputs: Mapping[Partition, NextOffset]) -> dict[str, bytes]:
        """Writes into a store what it must know beside its entries, but where its changelog ends, and returns all that it knows. What a
        snapshot's store knows of its times is kept."""
        path, layout = self.path(task, store), store.layout
        kept = look_beside(path).metas
        metas = {KEPT_LAYOUT: encode_layout(layout), **times_as_kept(task.stream_time, task.times)}
        wanted = [STREAM_TIME, *([OBSERVED_TIME] if layout.kind in ("window", "session") and not layout.duplicates else [])]
        if layout.kind in _TIMED and not kept.keys() >= set(wanted):
            found = latest(path, layout)
            metas |= {STREAM_TIME: TIME.pack(found.time)}
            if OBSERVED_TIME in wanted:
                metas |= {OBSERVED_TIME: time_as_kept(found.timestamp)}
            if layout.duplicates:
                metas |= sequence_as_kept(found.sequence)
        known = {**metas, **kept, KEPT_LAYOUT: metas[KEPT_LAYOUT]}
        place(path, inputs, known)
        return known

    def put_in_place(self, task: SeededTask, ends: Mapping[Partition, NextOffset], topic_ids: Mapping[str, str], now_ms: int) -> None:
        """Makes the stores of a task, which are at the ends of their changelogs, its state on this machine. Raises
        StateDirectoryLockedError, StateDirectoryError."""
        folder = self._root / str(task.task)
        self._directory.wipe_task(task.task)
        on_disk = [store for store in task.stores if store.persistent]
        try:
            for store in task.stores:
                if not store.persistent:
                    shutil.rmtree(self.path(task, store))
            if not on_disk:
                return
            offsets: dict[Partition, NextOffset | None] = {}
            for store in on_disk:
                log = store.changelog
                if log is not None:
                    place(self.path(task, store), {log: ends[log]}, metas_at_end(topic_ids[log.topic], now_ms))
                    offsets[log] = ends[log]
            write_checkpoint(folder, offsets)
            folder.rename(self._directory.path / str(task.task))
        except OSError as error:
            raise unusable(f"the folder {self._directory.path / str(task.task)}", error) from error

    def end(self) -> None:
        """Nothing waits any more."""
        shutil.rmtree(self._root, ignore_errors=True)
