"""The state directory of an application on this machine, laid out as Kafka Streams' (`StateDirectory`):

    <state.dir>/<application.id>/.lock                             held while a client of the application uses the directory
                                 kafka-streams-process-metadata    {"processId": "<uuid>"}: the identity that outlives restarts
                                 <sub-topology>_<partition>/       a task: .lock, .checkpoint, rocksdb/<store>/
                                 global/                           the global stores, likewise; global-2/ … of further workers
                                 snapshots/                        what snapshot commands left

Folders have the mode rwxr-x---, as there, whatever the umask: what is in a state directory is the application's data. The application's
lock says whose directory this is, and keeps its identity with one client. A task's lock is held while the task's stores are open: the
cleaner goes by it, and so do workers in processes of their own, which share the directory of their instance. Each of those holds a share of
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

from runtime.errors import StateDirectoryError, StateDirectoryLockedError, StreamsError
from runtime.ids import TaskId
from runtime.stores.locks import FILE_MODE, FOLDER_MODE, LOCK_FILE, FolderLock, SharedLock, unusable

logger = logging.getLogger(__name__)

_METADATA = "kafka-streams-process-metadata"
_OTHERS = 0o027
"""What others must not be allowed, and the group not to write."""
_GLOBAL = "global"
_ASIDE = ".removed-"
"""Begins the name of a task's folder that is being removed."""
FORMER_WORKERS_SECONDS = 15.0
"""How long workers may take to end when their main process is gone, and a bit more."""


class StateDirectory:
    """The folder of one application. Nothing is made or read before `lock`."""

    def __init__(self, state_dir: Path | str, application_id: str) -> None:
        self.path = Path(state_dir) / application_id
        self._lock = FolderLock(self.path, "the state directory")
        self._share = SharedLock(self.path, "the state directory")
        self._looking = threading.Lock()
        self._alone = False
        self._process_id: str | None = None

    # --- lock ---------------------------------------------------------------------------------------------------------------

    def lock(self) -> None:
        """Makes the folder if need be and takes its lock, which ends with the process at the latest.

        Raises StateDirectoryLockedError, naming the process that holds it; StateDirectoryError when the folder cannot be used.
        """
        if self._lock.held:
            raise StreamsError(f"the state directory {self.path} is locked already")
        self._made(self.path)
        self._lock.acquire()
        try:
            self._keep_others_out()
            self._process_id = self._read_or_make_process_id()
            for left in self.path.glob(f"{_ASIDE}*"):  # by a process that was killed
                self._remove(left)
        except OSError as error:
            self.unlock()
            raise unusable(f"the state directory ({self.path})", error) from error

    def unlock(self) -> None:
        """Gives the lock back. Nothing happens if it is not held."""
        self._lock.release()

    def join(self) -> None:
        """In a worker's process, as long as that lives: a client is at the directory, though its own process holds the lock of it. Raises
        StateDirectoryLockedError, StateDirectoryError."""
        self._share.acquire()

    def await_former_workers(self) -> None:
        """In the client's process: returns when no worker is left of a client before, which was killed perhaps. Asked again, by another
        thread perhaps, it only waits for the first answer: its own workers are there by then. Raises StateDirectoryLockedError when one
        does not end; StateDirectoryError."""
        with self._looking:
            if not self._alone:
                self._share.await_none(FORMER_WORKERS_SECONDS)
                self._alone = True

    def _keep_others_out(self) -> None:
        """A folder that is open to others, made by hand perhaps, is closed to them; where that is not allowed, it is told."""
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
        """The identity of this instance over restarts, a UUID. Known once the lock was taken."""
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
        """The task's folder, made if need be. Raises StateDirectoryError."""
        return self._made(self.path / str(task))

    def task_lock(self, task: TaskId) -> FolderLock:
        """The lock of the task's folder, not taken yet. Whoever opens the task's stores holds it."""
        return FolderLock(self.path / str(task), f"task {task}")

    def global_directory(self, worker: int = 1) -> Path:
        """The folder of a worker's copy of the global stores, made if need be. Raises StateDirectoryError."""
        return self._made(self.path / (_GLOBAL if worker == 1 else f"{_GLOBAL}-{worker}"))

    def remove_global_copies(self, above: int) -> None:
        """Removes the copies of workers with larger numbers than `above`, which are no more. Raises StateDirectoryError."""
        for path in self.path.glob(f"{_GLOBAL}-*"):
            number = path.name.removeprefix(f"{_GLOBAL}-")
            if number.isdecimal() and int(number) > above:
                self._remove(path)

    def _made(self, path: Path) -> Path:
        try:
            if not path.is_dir():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.mkdir(exist_ok=True)
                path.chmod(FOLDER_MODE)
        except OSError as error:
            raise unusable(f"the folder {path}", error) from error
        return path

    def tasks_on_disk(self) -> list[TaskId]:
        """Tasks that have a folder with something in it, in order."""
        if not self.path.exists():
            return []
        return sorted(task for path in self.path.iterdir() if (task := _task(path)) is not None and _has_content(path))

    def wipe(self) -> None:
        """Removes the state of all tasks and global stores; identity and snapshots stay.

        Raises StateDirectoryLockedError where a task is in use, StateDirectoryError.
        """
        for task in self.tasks_on_disk():
            self.wipe_task(task)
        for path in [self.path / _GLOBAL, *self.path.glob(f"{_GLOBAL}-*")]:
            self._remove(path)

    def wipe_task(self, task: TaskId) -> None:
        """Removes a task's folder, if there is one. Raises StateDirectoryLockedError where the task is in use, StateDirectoryError."""
        self._wipe_task(task, lambda: True)

    def _wipe_task(self, task: TaskId, still: Callable[[], bool]) -> bool:
        """True if it was removed. `still` is asked with the lock held. The folder is put aside first: whoever wants to open the task from
        then on, in another process perhaps, makes a new one, and not the one that is being emptied."""
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
        """Removes the folders of tasks that are not in `keep`, not locked, and in which nothing was written for `idle_ms`
        (`state.cleanup.delay.ms`).

        `now_ms` is wall-clock time. Returns the tasks that were removed. Raises StateDirectoryError.
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
            logger.info("the state of task %s, to which nothing was written for %d s, is removed", task, idle_ms // 1000)
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
    """Of what is in a task's folder. None for one that changes while it is looked at: it is in use, or another worker removes it."""
    try:
        times = [each.stat().st_mtime_ns for each in path.rglob("*") if each.name != LOCK_FILE]
    except FileNotFoundError:
        return None
    return max(times) // 1_000_000 if times else None
