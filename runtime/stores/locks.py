"""Locks of folders: one process at a time uses the state of an application, one task at a time the folder of a task.

`flock` on a file in the folder: the system gives it back when the process ends, however it ends, so a lock is never stale. The holder's
process id stands in the file, for the message that a second one gets. The file goes with its folder only, by whoever holds the lock; who
waited at the door then has locked a file that is no longer there, and tries again.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from pathlib import Path

from runtime.errors import StateDirectoryError, StateDirectoryLockedError

LOCK_FILE = ".lock"
WORKERS_FILE = ".workers"
FILE_MODE = 0o640
FOLDER_MODE = 0o750
_LOOK_SECONDS = 0.05
"""There is no waiting for a lock with a time-out: it is looked at."""
_WAYS_OUT = {
    errno.EACCES: ("give this user the right to read and write there", "set state.dir to a folder that it may write"),
    errno.EPERM: ("give this user the right to read and write there", "set state.dir to a folder that it may write"),
    errno.EROFS: ("", "set state.dir to a folder on a disk that can be written"),
    errno.ENOSPC: ("the disk is full: make room", "set state.dir to a folder on another disk"),
    errno.EDQUOT: ("this user's share of the disk is used up: make room", "set state.dir to a folder on another disk"),
    errno.ENOTDIR: ("a file stands where a folder should be: remove it", "set state.dir to another folder"),
    errno.EEXIST: ("a file stands where a folder should be: remove it", "set state.dir to another folder"),
    errno.EMFILE: ("this process has too many files open (about 10 per store): raise the limit (ulimit -n)", ""),
    errno.ENFILE: ("this system has too many files open", ""),
    errno.EFBIG: ("files of this process may not grow so large: raise the limit (ulimit -f)", ""),
}
"""What to do, and what else where the folder is one of the state directory."""


def unusable(what: str, error: OSError) -> StateDirectoryError:
    """The error for a file or folder that the system refuses, with the way out where there is one."""
    ways = _WAYS_OUT.get(error.errno or 0, ("", "set state.dir to a folder that this user may write"))
    return StateDirectoryError(f"{what} cannot be used: {error.strerror or error}{_told(ways)}")


def way_out(text: str, *, state: bool = True) -> str:
    """What to do about an error of which only the system's words are left, as in RocksDB's; empty where nothing is known. `state`: it is
    about the state directory, which may be another one."""
    ways = next((ways for number, ways in _WAYS_OUT.items() if os.strerror(number) in text), ("", ""))
    return _told(ways if state else ways[:1])


def _told(ways: tuple[str, ...]) -> str:
    told = ", or ".join(filter(None, ways))
    return f". The way out: {told}" if told else ""


class FolderLock:
    """The lock of one folder, not taken yet. `what` names the folder's use in messages, as in `task 0_3`."""

    def __init__(self, folder: Path, what: str) -> None:
        self._folder = folder
        self._what = what
        self._descriptor: int | None = None

    @property
    def held(self) -> bool:
        return self._descriptor is not None

    def acquire(self) -> None:
        """Takes the lock; nothing happens if it is held by this object. Raises StateDirectoryLockedError, naming the process that holds it;
        StateDirectoryError where the folder cannot be used."""
        if self._descriptor is not None:
            return
        descriptor = self._open()
        while not self._is_of_folder(descriptor):
            os.close(descriptor)
            descriptor = self._open()
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            os.close(descriptor)
            raise unusable(f"{self._what} ({self._folder})", error) from error
        self._descriptor = descriptor

    def _open(self) -> int:
        """The lock file, locked. A folder that another process has removed meanwhile is made again."""
        try:
            self._folder.mkdir(mode=FOLDER_MODE, exist_ok=True)
            descriptor = os.open(self._folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        except OSError as error:
            raise unusable(f"{self._what} ({self._folder})", error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(descriptor)
            raise StateDirectoryLockedError(
                f"{self._what} ({self._folder}) is in use by process {holder}: stop it, or give this instance a state.dir of its own"
            ) from error
        return descriptor

    def _is_of_folder(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), os.stat(self._folder / LOCK_FILE))
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Gives the lock back. Nothing happens if it is not held."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)


class SharedLock:
    """A lock that the workers of an instance hold together, each in a process of its own, as long as they live. Whoever starts such workers
    first sees that none is left of a client before (`await_none`): one that was killed leaves workers that take a moment to end."""

    def __init__(self, folder: Path, what: str) -> None:
        self._path = folder / WORKERS_FILE
        self._what = what
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Joins the holders. Raises StateDirectoryLockedError while somebody waits for them to end; StateDirectoryError."""
        descriptor = self._open()
        if not _locked(descriptor, fcntl.LOCK_SH):
            os.close(descriptor)
            raise StateDirectoryLockedError(f"{self._what} ({self._path}) is locked by another process")
        self._descriptor = descriptor

    def await_none(self, timeout_s: float) -> None:
        """Returns when nobody holds it. Raises StateDirectoryLockedError when somebody still does after `timeout_s`, and
        StateDirectoryError."""
        deadline = time.monotonic() + timeout_s
        descriptor = self._open()
        try:
            while not _locked(descriptor, fcntl.LOCK_EX):
                if time.monotonic() > deadline:
                    raise StateDirectoryLockedError(
                        f"{self._what} ({self._path}) is in use by workers of a process that is gone, which do not end: kill them, or give "
                        "this instance a state.dir of its own"
                    )
                time.sleep(_LOOK_SECONDS)
        finally:
            os.close(descriptor)

    def _open(self) -> int:
        try:
            return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        except OSError as error:
            raise unusable(f"{self._what} ({self._path})", error) from error


def _locked(descriptor: int, operation: int) -> bool:
    try:
        fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


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


def sync_directory(path: Path) -> None:
    """Makes what was renamed in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
