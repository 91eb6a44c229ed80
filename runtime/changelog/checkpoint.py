"""The `.checkpoint` file: positions of a task's stores, for readers while the stores are closed (KIP-116, KIP-892).

The format is Kafka Streams' (`OffsetCheckpoint`), so that its tools can read it: UTF-8 lines `0` (version), the number of entries, then
`topic partition offset`. A task's file holds the offset of the *last applied* record, the file of the global stores the *next* one; this
module converts both to `NextOffset`. -4 stands for an unknown offset.

In-memory stores are left out: their content ends with the process. The file is written after a flush, when `CheckpointInterval` is due, and
when a task is closed.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from penstock.runtime.model.clock import Clock
from penstock.runtime.model.errors import StateDirectoryError
from penstock.runtime.model.ids import NextOffset, TopicPartition
from penstock.runtime.model.metrics import TASK, Metrics
from penstock.runtime.stores.locks import remedy, sync_directory

logger = logging.getLogger(__name__)

FILE_NAME = ".checkpoint"
GLOBAL_DIRECTORY = "global"
_VERSION = "0"
_UNKNOWN = -4


class CheckpointInterval:
    """`statestore.checkpoint.interval.ms` (KIP-116). Evaluated at the commits of a worker, for active, standby, learner and global tasks
    together, so checkpoints come at multiples of the commit interval. Monotonic time in ms; 0 means at each commit."""

    __slots__ = ("_interval_ms", "_last_ms")

    def __init__(self, interval_ms: int, now_ms: int) -> None:
        self._interval_ms = interval_ms
        self._last_ms = now_ms

    def is_due(self, now_ms: int, at_least_ms: int = 0) -> bool:
        """Return True if the interval has passed, and `at_least_ms`; begin the next one then."""
        if now_ms - self._last_ms < max(self._interval_ms, at_least_ms):
            return False
        self._last_ms = now_ms
        return True


def measure_checkpoint(metrics: Metrics, clock: Clock, task: str, began_ms: int) -> None:
    """Count a checkpoint that was just written and began at a monotonic time in ms. Metrics per task, or of `global`: `checkpoint-total`,
    `checkpoint-latency` (ms), `checkpoint-age-ms` (since the last one)."""
    ended_ms = clock.monotonic_ms()
    metrics.counter("checkpoint-total", TASK, task_id=task).add()
    metrics.latency("checkpoint-latency", TASK, task_id=task).record(ended_ms - began_ms)
    metrics.gauge_of("checkpoint-age-ms", TASK, lambda: float(clock.monotonic_ms() - ended_ms), task_id=task)


def write_checkpoint(directory: Path, offsets: Mapping[TopicPartition, NextOffset | None]) -> None:
    """Write `<directory>/.checkpoint` durably and atomically; without offsets remove the file. None: unknown.

    Call it after the stores were flushed. Raises StateDirectoryError when the file cannot be written.
    """
    path = directory / FILE_NAME
    applied = 0 if directory.name == GLOBAL_DIRECTORY else 1
    lines = [f"{partition.topic} {partition.partition} {_in_file(offset, applied)}\n" for partition, offset in offsets.items()]
    try:
        if not lines:
            path.unlink(missing_ok=True)
            return
        written = path.with_name(FILE_NAME + ".tmp")
        with open(written, "w", encoding="utf-8", newline="\n", opener=_private) as file:
            file.write(f"{_VERSION}\n{len(lines)}\n")
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())
        written.replace(path)
        sync_directory(directory)
    except OSError as error:
        raise StateDirectoryError(f"{path} cannot be written: {error}{remedy(str(error))}") from error


def read_checkpoint(directory: Path) -> dict[TopicPartition, NextOffset | None]:
    """Return the offsets of `<directory>/.checkpoint`; empty without a file. None: unknown.

    Other negative offsets are left out with a warning, as in Kafka Streams. An invalid file is removed with a warning and counts as
    missing: the next checkpoint writes it again. Raises StateDirectoryError when it cannot be read.
    """
    path = directory / FILE_NAME
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise StateDirectoryError(f"{path} cannot be read: {error}") from error
    try:
        return _parsed(path, data.decode().splitlines())
    except ValueError as error:
        logger.warning("%s is not a checkpoint file and is removed; the next checkpoint writes it again: %s", path, error)
        remove_checkpoint(directory)
        return {}


def remove_checkpoint(directory: Path) -> None:
    """Remove the file, which is invalid once a store was emptied. Raises StateDirectoryError."""
    try:
        (directory / FILE_NAME).unlink(missing_ok=True)
    except OSError as error:
        raise StateDirectoryError(f"{directory / FILE_NAME} cannot be removed: {error}") from error


def _parsed(path: Path, lines: Sequence[str]) -> dict[TopicPartition, NextOffset | None]:
    """Raises ValueError."""
    if not lines or lines[0] != _VERSION:
        raise ValueError(f"version {lines[0] if lines else '(empty file)'} is not known, only {_VERSION}")
    if len(lines) < 2 or not lines[1].isdigit() or int(lines[1]) != len(lines) - 2:
        raise ValueError(f"line 2 must be the number of entries, which is {max(0, len(lines) - 2)}")
    applied = 0 if path.parent.name == GLOBAL_DIRECTORY else 1
    return dict(entry for line in lines[2:] if (entry := _entry(path, line, applied)) is not None)


def _entry(path: Path, line: str, applied: int) -> tuple[TopicPartition, NextOffset | None] | None:
    fields = line.split()
    if len(fields) != 3 or not fields[1].isdecimal() or not fields[2].removeprefix("-").isdecimal():
        raise ValueError(f"{line!r} is not an entry: expected <topic> <partition> <offset>")
    topic, number, offset = fields[0], int(fields[1]), int(fields[2])
    if offset == _UNKNOWN:
        return TopicPartition(topic, number), None
    if offset < 0:
        logger.warning("%s: the offset %d of %s-%d is negative and left out", path, offset, topic, number)
        return None
    return TopicPartition(topic, number), NextOffset(offset + applied)


def _in_file(offset: NextOffset | None, applied: int) -> int:
    """Convert a next offset. 0 means that nothing was applied, for which a task's file has no number."""
    if offset is None or offset < applied:
        return _UNKNOWN
    return offset - applied


def _private(path: str, flags: int) -> int:
    """Open with the permissions of all state: readable by the group at most."""
    return os.open(path, flags, 0o640)
