"""Processes that the kernel has killed for lack of memory, from its own log.

The log names a process by its id alone, and ids are reused: only a record between the process's creation and `before` is about it. In a
container the log has the ids of the host, which are others than those seen inside, so nothing is known there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

_LOG = Path("/dev/kmsg")
_NAMESPACE = Path("/proc/self/ns/pid")
_FIRST_NAMESPACE = "pid:[4026531836]"
"""The namespace whose ids the kernel logs; a constant of the kernel (`PROC_PID_INIT_INO`)."""
_RECORD_BYTES = 8_192
_FACILITY_SHIFT = 3
"""A record's priority is its facility, shifted by so many bits, and its level. The facility is 0 in what the kernel itself says only."""


def killed_for_memory(pid: int, after: float, before: float) -> float | None:
    """Return when the kernel has killed this process for lack of memory, between these times (seconds since the epoch). None if its log
    does not say so, or cannot be read: often only root may."""
    if not _has_our_ids():
        return None
    for priority, at, message in _records():
        if priority >> _FACILITY_SHIFT == 0 and f"Killed process {pid} " in message and after < at < before:
            return at
    return None


def _has_our_ids() -> bool:
    """Return True if the kernel's log has the ids that this process sees."""
    try:
        return os.readlink(_NAMESPACE) == _FIRST_NAMESPACE
    except OSError:
        return False


def _records() -> Iterator[tuple[int, float, str]]:
    """Yield the records (`priority,sequence,microseconds since boot,flags;message`): priority, time, and message."""
    try:
        log = os.open(_LOG, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return
    boot = time.time() - time.monotonic()
    try:
        while data := _read(log):
            for record in data.decode(errors="replace").splitlines():
                head, _, message = record.partition(";")
                priority, _, rest = head.partition(",")
                microseconds = rest.partition(",")[2].partition(",")[0]
                if priority.isdigit() and microseconds.isdigit():
                    yield int(priority), boot + int(microseconds) / 1e6, message
    finally:
        os.close(log)


def _read(log: int) -> bytes:
    """Return the next record; empty at the end of the log."""
    while True:
        try:
            return os.read(log, _RECORD_BYTES)
        except BrokenPipeError:  # records were overwritten since the last one was read: the next read continues after them
            continue
        except OSError:  # BlockingIOError: the end
            return b""
