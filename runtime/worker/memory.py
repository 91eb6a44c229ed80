"""The garbage collector, set for an engine that makes millions of small objects without cycles.

CPython looks for cycles after every 700 new containers, and what survives is looked at again and again: entries of stores, which live
until they are evicted, messages, batches. None of them is part of a cycle. Measured on a count per key, the collector took a sixth of the
time.
While a worker runs, what exists at its start is left out (`gc.freeze`), and the rest is looked at less often. It stays switched on: user
code may well make cycles.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

YOUNG, MIDDLE, OLD = 100_000, 20, 100
"""Thresholds of the three generations while a worker runs."""

_lock = Lock()
_running = 0
_before: tuple[int, int, int] = (700, 10, 10)


@contextmanager
def calm_collector() -> Iterator[None]:
    """Sets the collector as above until the last worker of the process has left the block. A collector that somebody switched off stays
    off."""
    global _running, _before
    with _lock:
        _running += 1
        if _running == 1:
            _before = gc.get_threshold()
            gc.collect()
            gc.freeze()
            gc.set_threshold(YOUNG, MIDDLE, OLD)
    try:
        yield
    finally:
        with _lock:
            _running -= 1
            if _running == 0:
                gc.set_threshold(*_before)
                gc.unfreeze()
