"""One job of Spark at a time on this machine: each uses all cores, and its share of the memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

_FILE = "spark.lock"


@contextmanager
def spark_turn(home: Path, say: Callable[[str], object], *, local: bool) -> Iterator[None]:
    """Wait until no other job of the project's home runs on this machine, and say so. A job on a cluster (not `local`) does not wait."""
    if not local:
        yield
        return
    home.mkdir(parents=True, exist_ok=True)
    lock = FileLock(home / _FILE, is_singleton=True)  # one per process, re-entrant on this thread
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say("another run's Spark is at work on this machine: waiting for its end")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
