"""The state directory of an application on this machine, with the layout of Kafka Streams' `StateDirectory`:

    <state.dir>/<application.id>/.lock                             held while a client of the application uses the directory
                                 kafka-streams-process-metadata    {"processId": "<uuid>"}: the identity that survives restarts
                                 <sub-topology>_<partition>/       a task: .lock, .checkpoint, rocksdb/<store>/
                                 global/                           the global stores; global-2/ … of further workers
                                 snapshots/                        written by snapshot commands

Directories have the mode rwxr-x---, as there, whatever the umask, because they contain the application's data. The application's lock shows
who uses the directory, and gives its identity to one client only. A task's lock is held while the task's stores are open: the cleaner
respects it, and so do workers in processes of their own, which share the directory of their instance. Each of those holds a share of
`.workers` while it lives: the next client waits until all of them have ended.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import threading
import uuid
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

from penstock.runtime.model.errors import StateDirectoryError, StateDirectoryLockedError, StreamsError
from penstock.runtime.model.ids import TaskId
from penstock.runtime.stores.locks import FILE_MODE, FOLDER_MODE, LOCK_FILE, FolderLock, SharedLock, unusable

logger = logging.getLogger(__name__)

_METADATA = "kafka-streams-process-metadata"
_OTHERS = 0o027
"""Permissions that others, and write access that the group, must not have."""
_GLOBAL = "global"
_ASIDE = ".removed-"
"""Prefix of a task's directory that is being removed."""
PREVIOUS_WORKERS_SECONDS = 15.0
"""Time that workers may take to end after their main process, and some more."""


class StateDirectory:
    """The state directory of one application. Nothing is created or read before `lock`."""

    def __init__(self, state_dir: Path | str, application_id: str) -> None:
        self.path = Path(state_dir) / application_id
        self._lock = FolderLock(self.path, "the state directory")
        self._share = SharedLock(self.path, "the state directory")
        self._waiting = threading.Lock()
        self._alone = False
        self._process_id: str | None = None

    # --- lock ---------------------------------------------------------------------------------------------------------------

    def lock(self) -> None:
        """Create the directory if necessary and lock it; the lock ends with the process at the latest.

        Raises StateDirectoryLockedError, naming the process that holds it; StateDirectoryError when the directory cannot be used.
        """
        if self._lock.held:
            raise StreamsError(f"the state directory {self.path} is locked already")
        self._create(self.path)
        self._lock.acquire()
        try:
            self._restrict_permissions()
            self._process_id = self._read_or_make_process_id()
            for left in self.path.glob(f"{_ASIDE}*"):  # by a process that was killed
                self._remove(left)
        except OSError as error:
            self.unlock()
            raise unusable(f"the state directory ({self.path})", error) from error

    def unlock(self) -> None:
        """Release the lock. Does nothing if it is not held."""
        self._lock.release()

    def join(self) -> None:
        """Note, in a worker's process and as long as it lives, that the directory is in use, although the client's process holds its lock.
        Raises StateDirectoryLockedError, StateDirectoryError."""
        self._share.acquire()

    def await_previous_workers(self) -> None:
        """Wait, in the client's process, until no worker of a previous client is left, for example of one that was killed. Further calls,
        also from other threads, only wait for the first: after that its own workers are there. Raises StateDirectoryLockedError if one
        does not end; StateDirectoryError."""
        with self._waiting:
            if not self._alone:
                self._share.await_none(PREVIOUS_WORKERS_SECONDS)
                self._alone = True

    def _restrict_permissions(self) -> None:
        """Remove the permissions of others from the directory, if it was created by hand for example; log if that is not permitted."""
        mode = self.path.stat().st_mode & 0o777
        if not mode & _OTHERS:
            return
        try:
            self.path.chmod(mode & ~_OTHERS)
            logger.warning("%s was open to others (mode %03o) and is closed to them now (%03o)", self.path, mode, mode & ~_OTHERS)
        except PermissionError:
            logger.warning("%s holds the application's data and is open to others (mode %03o): chmod 750 it", self.path, mode)

    @property
    def process_id(self) -> str:
        """The UUID of this instance, which survives restarts. Known once the lock was taken."""
        if self._process_id is None:
            raise StreamsError(f"the state directory {self.path} was never locked")
        return self._process_id

    def _read_or_make_process_id(self) -> str:
        path = self.path / _METADATA
        try:
            return str(uuid.UUID(json.loads(path.read_text(encoding="utf-8"))["processId"]))
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            # None yet, or half written by a crash: a new identity costs stickiness only.
            made = str(uuid.uuid4())
        written = path.with_name(_METADATA + ".tmp")
        written.write_text(json.dumps({"processId": made}), encoding="utf-8")
        written.chmod(FILE_MODE)
        written.replace(path)
        return made

    # --- folders ------------------------------------------------------------------------------------------------------------

    def task_directory(self, task: TaskId) -> Path:
        """Return the task's directory, creating it if necessary. Raises StateDirectoryError."""
        return self._create(self.path / str(task))

    def task_lock(self, task: TaskId) -> FolderLock:
        """Return the lock of the task's directory, not acquired. It must be held while the task's stores are open."""
        return FolderLock(self.path / str(task), f"task {task}")

    def global_directory(self, worker: int = 1) -> Path:
        """Return the directory of a worker's copy of the global stores, creating it if necessary. Raises StateDirectoryError."""
        return self._create(self.path / (_GLOBAL if worker == 1 else f"{_GLOBAL}-{worker}"))

    def remove_global_copies(self, above: int) -> None:
        """Remove the copies of workers with larger numbers than `above`, which no longer exist. Raises StateDirectoryError."""
        for path in self.path.glob(f"{_GLOBAL}-*"):
            number = path.name.removeprefix(f"{_GLOBAL}-")
            if number.isdecimal() and int(number) > above:
                self._remove(path)

    def _create(self, path: Path) -> Path:
        try:
            if not path.is_dir():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.mkdir(exist_ok=True)
                path.chmod(FOLDER_MODE)
        except OSError as error:
            raise unusable(f"the folder {path}", error) from error
        return path

    def tasks_on_disk(self) -> list[TaskId]:
        """Return the tasks that have a directory with content, in order."""
        if not self.path.exists():
            return []
        return sorted(task for path in self.path.iterdir() if (task := _task(path)) is not None and _has_content(path))

    def wipe(self) -> None:
        """Remove the state of all tasks and global stores; identity and snapshots stay.

        Raises StateDirectoryLockedError where a task is in use, StateDirectoryError.
        """
        for task in self.tasks_on_disk():
            self.wipe_task(task)
        for path in [self.path / _GLOBAL, *self.path.glob(f"{_GLOBAL}-*")]:
            self._remove(path)

    def wipe_task(self, task: TaskId) -> None:
        """Remove a task's directory, if there is one. Raises StateDirectoryLockedError where the task is in use, StateDirectoryError."""
        self._wipe_task(task, lambda: True)

    def _wipe_task(self, task: TaskId, still: Callable[[], bool]) -> bool:
        """Remove a task's directory if `still`, called with the lock held, returns True. Return True if it was removed. The directory is
        renamed first: a process that opens the task from then on creates a new one, and does not use the one that is being emptied."""
        folder = self.path / str(task)
        if not folder.is_dir():
            return False
        lock = self.task_lock(task)
        lock.acquire()
        try:
            if not still():
                return False
            aside = self.path / f"{_ASIDE}{task}-{os.getpid()}"
            self._remove(aside)
            try:
                folder.rename(aside)
            except OSError as error:
                raise StateDirectoryError(f"the folder {folder} cannot be removed: {error}") from error
            self._remove(aside)
            return True
        finally:
            lock.release()

    def clean(self, keep: Collection[TaskId], idle_ms: int, now_ms: int) -> list[TaskId]:
        """Remove the directories of tasks that are not in `keep`, not locked, and were not written to for `idle_ms`
        (`state.cleanup.delay.ms`). A directory's age does not show that its task runs elsewhere: the caller must know that, and keep all
        others.

        `now_ms` is wall-clock time. Return the removed tasks. Raises StateDirectoryError.
        """

        def idle(task: TaskId) -> bool:
            written_ms = _last_written_ms(self.path / str(task))
            return written_ms is not None and now_ms - written_ms >= idle_ms

        removed = []
        for task in self.tasks_on_disk():
            try:
                if task in keep or not idle(task) or not self._wipe_task(task, partial(idle, task)):
                    continue
            except StateDirectoryLockedError as error:
                logger.debug("not removed: %s", error)
                continue
            logger.info("the state of task %s, which has not run here for %d s, is removed", task, idle_ms // 1000)
            removed.append(task)
        return removed

    def _remove(self, path: Path) -> None:
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise StateDirectoryError(f"the folder {path} cannot be removed: {error}") from error


def _task(path: Path) -> TaskId | None:
    try:
        return TaskId.parse(path.name) if path.is_dir() else None
    except ValueError:
        return None


def _has_content(path: Path) -> bool:
    try:
        return any(each.name != LOCK_FILE for each in path.iterdir())
    except FileNotFoundError:  # another worker has removed it
        return False


def _last_written_ms(path: Path) -> int | None:
    """Return when something in a task's directory was last written. None if it changes during the check: it is in use, or another worker
    removes it."""
    try:
        times = [each.stat().st_mtime_ns for each in path.rglob("*") if each.name != LOCK_FILE]
    except FileNotFoundError:
        return None
    return max(times) // 1_000_000 if times else None
