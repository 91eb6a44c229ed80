"""Folder for the working files of a task on an executor.

It is removed at the end of the task. If the process is killed, the next task on the machine removes it: beside each folder is a file that
its process holds locked, and the system releases the lock with the process.

    <TMPDIR>/penstock-history-<token>/        the files
            /penstock-history-<token>.lock    locked while the task runs
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX = "penstock-history-"
_LOCK = ".lock"
_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW


@contextmanager
def working_folder() -> Iterator[Path]:
    """Create a folder, and remove those of processes that are gone."""
    parent = Path(tempfile.gettempdir())
    _remove_abandoned(parent)
    lock, descriptor = _new_lock(parent)
    try:
        folder = lock.with_suffix("")
        folder.mkdir(mode=0o700)
        try:
            yield folder
        finally:
            _remove(folder, lock)
    finally:
        os.close(descriptor)


def _new_lock(parent: Path) -> tuple[Path, int]:
    while True:
        lock = parent / f"{_PREFIX}{uuid.uuid4().hex[:12]}{_LOCK}"
        descriptor = os.open(lock, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if _is_at(descriptor, lock):  # another process may have locked and removed it first
            return lock, descriptor
        os.close(descriptor)


def _is_at(descriptor: int, lock: Path) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), os.stat(lock, follow_symlinks=False))
    return False


def _remove_abandoned(parent: Path) -> None:
    """Remove this user's folders whose lock no process holds."""
    for lock in parent.glob(f"{_PREFIX}*{_LOCK}"):
        with suppress(OSError):  # it is locked, or another user's, or was removed meanwhile
            descriptor = os.open(lock, _FLAGS)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(descriptor).st_uid == os.geteuid() and _is_at(descriptor, lock):
                    _remove(lock.with_suffix(""), lock)
            finally:
                os.close(descriptor)


def _remove(folder: Path, lock: Path) -> None:
    """Remove a folder whose lock this process holds. The lock file stays if files are left, for the next try."""
    shutil.rmtree(folder, ignore_errors=True)
    if not folder.exists():
        lock.unlink(missing_ok=True)
