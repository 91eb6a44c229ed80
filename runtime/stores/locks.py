"""Locks of directories: one process at a time uses the state of an application, one task at a time the directory of a task.

`flock` on a file in the directory: the system releases it when the process ends, however it ends, so a lock is never stale. The holder's
process id is in the file, for the error message of a second process. The file is removed only together with its directory, by the holder of
the lock; a process that waited for it has then locked a file that no longer exists, and tries again.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from pathlib import Path

from penstock.runtime.model.errors import StateDirectoryError, StateDirectoryLockedError

LOCK_FILE = ".lock"
WORKERS_FILE = ".workers"
FILE_MODE = 0o640
FOLDER_MODE = 0o750
STOP_IT = (
    "stop it (with penstock stop, if penstock started it). Only another instance of the application, beside that process, gets a state.dir "
    "and a client.id of its own: an instance that had this folder would begin without its stores that have no changelog"
)
_RETRY_SECONDS = 0.05
"""Interval of the attempts, because there is no lock with a timeout."""
_MOVED = (
    ", and set state.dir to that (for instances that penstock starts: move .penstock, and set PENSTOCK_HOME). In an empty folder, stores "
    "without a changelog would begin empty"
)
_REMEDIES = {
    errno.EACCES: ("give this user the right to read and write there", f"move the state to a folder that it may write{_MOVED}"),
    errno.EPERM: ("give this user the right to read and write there", f"move the state to a folder that it may write{_MOVED}"),
    errno.EROFS: ("", f"move the state to a disk that can be written{_MOVED}"),
    errno.ENOSPC: ("the disk is full: make room", f"move the state to another disk{_MOVED}"),
    errno.EDQUOT: ("this user's share of the disk is used up: make room", f"move the state to another disk{_MOVED}"),
    errno.ENOTDIR: ("a file stands where a folder should be: remove it", "set state.dir to a folder if it names that file"),
    errno.EEXIST: ("a file stands where a folder should be: remove it", "set state.dir to a folder if it names that file"),
    errno.EMFILE: ("this process has too many files open (about 10 per store): raise the limit (ulimit -n)", ""),
    errno.ENFILE: ("this system has too many files open", ""),
    errno.EFBIG: ("files of this process may not grow so large: raise the limit (ulimit -f)", ""),
}
"""Advice by error number, and further advice if the path is in the state directory."""


def unusable(what: str, error: OSError) -> StateDirectoryError:
    """Return the error for a file or directory that the system refuses, with what to do about it where that is known."""
    ways = _REMEDIES.get(error.errno or 0, ("", f"move the state to a folder that this user may write{_MOVED}"))
    return StateDirectoryError(f"{what} cannot be used: {error.strerror or error}{_join_ways(ways)}")


def remedy(text: str, *, state: bool = True) -> str:
    """Return what to do about an error of which only the system's message is left, as in RocksDB's errors; empty where that is unknown.
    `state`: it concerns the state directory, which can be configured."""
    ways = next((ways for number, ways in _REMEDIES.items() if os.strerror(number) in text), ("", ""))
    return _join_ways(ways if state else ways[:1])


def _join_ways(ways: tuple[str, ...]) -> str:
    text = ", or ".join(filter(None, ways))
    return f". To solve it: {text}" if text else ""


class FolderLock:
    """The lock of one directory, not acquired. `what` names the directory's use in messages, as in `task 0_3`."""

    def __init__(self, folder: Path, what: str) -> None:
        self._folder = folder
        self._what = what
        self._descriptor: int | None = None

    @property
    def held(self) -> bool:
        return self._descriptor is not None

    def acquire(self) -> None:
        """Acquire the lock; does nothing if this object holds it. Raises StateDirectoryLockedError, naming the process that holds it;
        StateDirectoryError where the directory cannot be used."""
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
        """Return the lock file, locked. A directory that another process has removed meanwhile is created again."""
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
                f"{self._what} ({self._folder}) is in use by process {holder}: {STOP_IT}",
                holder,
            ) from error
        return descriptor

    def _is_of_folder(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), os.stat(self._folder / LOCK_FILE))
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Release the lock. Does nothing if it is not held."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)


class SharedLock:
    """A lock that the workers of an instance share, each in a process of its own, as long as they live. Before it starts such workers, a
    client waits with `await_none` for those of its predecessor: after a kill they take a moment to end."""

    def __init__(self, folder: Path, what: str) -> None:
        self._path = folder / WORKERS_FILE
        self._what = what
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Join the holders. Raises StateDirectoryLockedError while another process waits for them to end; StateDirectoryError."""
        descriptor = self._open()
        if not _locked(descriptor, fcntl.LOCK_SH):
            os.close(descriptor)
            raise StateDirectoryLockedError(f"{self._what} ({self._path}) is locked by another process")
        self._descriptor = descriptor

    def await_none(self, timeout_s: float) -> None:
        """Wait until no process holds it. Raises StateDirectoryLockedError if one still does after `timeout_s`, and StateDirectoryError."""
        deadline = time.monotonic() + timeout_s
        descriptor = self._open()
        try:
            while not _locked(descriptor, fcntl.LOCK_EX):
                if time.monotonic() > deadline:
                    pid = lock_holder(self._path)
                    raise StateDirectoryLockedError(
                        f"{self._what} ({self._path}) is in use by workers of a process that is gone, which do not end: kill them"
                        f"{f' (process {pid})' if pid else ''}, then start again"
                    )
                time.sleep(_RETRY_SECONDS)
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
    """Return the process that holds a lock on a file, where the system shows it (Linux: /proc/locks). The file is not opened, because
    closing it would release a POSIX lock that this process itself may hold."""
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
    """Make renames in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
