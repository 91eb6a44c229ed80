"""Watchdog of the workers' processes, on a thread that runs no user code.

The supervisor's thread runs listeners, and a listener may wait for a response of the very worker that is frozen. So that thread cannot be
the one that detects it: it would notice only when the listener returns, after a minute.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable
from typing import Protocol

from penstock.runtime.model.clock import Clock

logger = logging.getLogger(__name__)

CHECK_SECONDS = 0.5
PAUSED_MS = 3_000
"""With more than this between two checks, this process itself was paused (Ctrl-Z, a suspended machine)."""


class Watched(Protocol):
    """A process that is killed when it no longer runs (`ProcessWorker`)."""

    def check(self) -> None: ...


class Watchdog:
    """Checks every process twice a second."""

    def __init__(self, processes: Callable[[], Iterable[Watched]], clock: Clock) -> None:
        self._processes = processes
        self._clock = clock
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread. Returns at once."""
        self._over.set()

    def _run(self) -> None:
        looked_ms = self._clock.monotonic_ms()
        while not self._over.wait(CHECK_SECONDS):
            passed_ms = self._clock.monotonic_ms() - looked_ms
            looked_ms += passed_ms
            if passed_ms < PAUSED_MS:  # otherwise the workers' messages of that time are read first
                self._check_all()

    def _check_all(self) -> None:
        for process in self._processes():
            try:
                process.check()
            except Exception:
                logger.exception("a worker's process cannot be watched")


def is_stopped(pid: int) -> bool:
    """Return True for a child of this process that was stopped (SIGSTOP) and not continued. False where the system does not say."""
    if not hasattr(os, "waitid"):
        return False
    try:
        found = os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return found is not None
