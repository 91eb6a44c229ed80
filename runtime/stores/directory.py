"""The state directory of an application on this machine, laid out as Kafka Streams' (`StateDirectory`):

    <state.dir>/<application.id>/.lock                             held while a client of the application uses the directory
                                 kafka-streams-process-metadata    {"processId": "<uuid>"}: the identity that outlives restarts
                                 <sub-topology>_<partition>/       a task: .checkpoint, rocksdb/<store>/
                                 global/                           the global stores, likewise
                                 snapshots/                        what snapshot commands left

Folders have the mode rwxr-x---, as there.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import uuid
from collections.abc import Collection
from pathlib import Path

from runtime.errors import StateDirectoryError, StateDirectoryLockedError, StreamsError
from runtime.ids import TaskId

_LOCK = ".lock"
_METADATA = "kafka-streams-process-metadata"
_MODE = 0o750
_GLOBAL = "global"


class StateDirectory:
    """The folder of one application. Nothing is made or read before `lock`."""

    def __init__(self, state_dir: Path | str, application_id: str) -> None:
        self.path = Path(state_dir) / application_id
        self._lock: int | None = None
        self._process_id: str | None = None

    # --- lock ---------------------------------------------------------------------------------------------------------------

    def lock(self) -> None:
        """Makes the folder if need be and takes its lock, which ends with the process at the latest.

        Raises StateDirectoryLockedError, naming the process that holds it; StateDirectoryError when the folder cannot be used.
        """
        if self._lock is not None:
            raise StreamsError(f"the state directory {self.path} is locked already")
        try:
            self.path.mkdir(mode=_MODE, parents=True, exist_ok=True)
            descriptor = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except OSError as error:
            raise StateDirectoryError(
                f"the state directory {self.path} cannot be used: {error.strerror}. Set state.dir to a folder that this user may write"
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(descriptor)
            raise StateDirectoryLockedError(
                f"the state directory {self.path} is in use by process {holder}: stop it, or give this instance a state.dir of its own"
            ) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._lock = descriptor
        try:
            self._process_id = self._read_or_make_process_id()
        except OSError as error:
            self.unlock()
            raise StateDirectoryError(f"the state directory {self.path} cannot be written: {error}") from error

    def unlock(self) -> None:
        """Gives the lock back. Nothing happens if it is not held."""
        if self._lock is not None:
            descriptor, self._lock = self._lock, None
            os.close(descriptor)

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
        written.replace(path)
        return made

    # --- folders ------------------------------------------------------------------------------------------------------------

    def task_directory(self, task: TaskId) -> Path:
        """The task's folder, made if need be. Raises StateDirectoryError."""
        return self._made(self.path / str(task))

    def global_directory(self) -> Path:
        """The folder of the global stores, made if need be. Raises StateDirectoryError."""
        return self._made(self.path / _GLOBAL)

    def _made(self, path: Path) -> Path:
        try:
            path.mkdir(mode=_MODE, parents=True, exist_ok=True)
        except OSError as error:
            raise StateDirectoryError(f"the folder {path} cannot be made: {error.strerror}") from error
        return path

    def tasks_on_disk(self) -> list[TaskId]:
        """Tasks that have a folder with something in it, in order."""
        if not self.path.exists():
            return []
        return sorted(task for path in self.path.iterdir() if (task := _task(path)) is not None and any(path.iterdir()))

    def wipe(self) -> None:
        """Removes the state of all tasks and global stores; identity and snapshots stay. Raises StateDirectoryError."""
        for task in self.tasks_on_disk():
            self.wipe_task(task)
        self._remove(self.path / _GLOBAL)

    def wipe_task(self, task: TaskId) -> None:
        """Removes a task's folder; its stores must be closed. Raises StateDirectoryError."""
        self._remove(self.path / str(task))

    def clean(self, keep: Collection[TaskId], idle_ms: int, now_ms: int) -> list[TaskId]:
        """Removes the folders of tasks that are not in `keep` and in which nothing was written for `idle_ms` (`state.cleanup.delay.ms`).

        `now_ms` is wall-clock time. Returns the tasks that were removed. Raises StateDirectoryError.
        """
        idle = [task for task in self.tasks_on_disk() if task not in keep and now_ms - _last_written_ms(self.path / str(task)) >= idle_ms]
        for task in idle:
            self.wipe_task(task)
        return idle

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


def _last_written_ms(path: Path) -> int:
    return max(each.stat().st_mtime_ns for each in (path, *path.rglob("*"))) // 1_000_000


def lock_holder(path: Path) -> int | None:
    """The process that holds a lock on a file, where the system tells (Linux: /proc/locks). The file is not opened: closing it would give
    up a POSIX lock that this process itself may hold."""
    try:
        status = os.stat(path)
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return None
    wanted = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    for line in lines:
        fields = line.split()
        if wanted in fields:
            pid = int(fields[fields.index(wanted) - 1])
            return pid if pid > 0 else None
    return None
