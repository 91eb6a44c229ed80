"""Settings of the garbage collector for an engine that makes millions of small objects without cycles.

CPython looks for cycles after every 700 new containers, and examines survivors again and again: entries of stores, which live until they
are evicted, messages, batches. None of them is part of a cycle. Measured on a count per key, the collector took a sixth of the time. While
a worker runs, objects that existed at its start are excluded (`gc.freeze`), and the rest is examined less often. The collector stays
enabled: user code may make cycles.
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
def relaxed_collector() -> Iterator[None]:
    """Apply these settings until the last worker of the process has left the block. A collector that was disabled stays disabled."""
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
