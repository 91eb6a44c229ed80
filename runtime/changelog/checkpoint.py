"""The `.checkpoint` file: how far the stores of a task are, for those who look at a task while its stores are closed (KIP-116, KIP-892).

The format is Kafka Streams' (`OffsetCheckpoint`), so that its tools can read it: UTF-8 lines `0` (version), the number of entries, then
`topic partition offset`. A task's file holds the offset of the *last applied* record, the file of the global stores the *next* one; in this
module both become `NextOffset`, and nothing outside knows. -4 stands for an offset that is not known.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path

from runtime.errors import StateDirectoryError
from runtime.ids import NextOffset, Partition

logger = logging.getLogger(__name__)

FILE_NAME = ".checkpoint"
GLOBAL_DIRECTORY = "global"
_VERSION = "0"
_UNKNOWN = -4


def write_checkpoint(directory: Path, offsets: Mapping[Partition, NextOffset | None]) -> None:
    """Writes `<directory>/.checkpoint`, durably and in one step; without offsets the file is removed. None: not known.

    Call it after the stores were flushed. Raises StateDirectoryError when the file cannot be written.
    """
    path = directory / FILE_NAME
    applied = 0 if directory.name == GLOBAL_DIRECTORY else 1
    lines = [f"{partition.topic} {partition.number} {_in_file(offset, applied)}\n" for partition, offset in offsets.items()]
    try:
        if not lines:
            path.unlink(missing_ok=True)
            return
        written = path.with_name(FILE_NAME + ".tmp")
        with written.open("w", encoding="utf-8", newline="\n") as file:
            file.write(f"{_VERSION}\n{len(lines)}\n")
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())
        written.replace(path)
        _sync_directory(directory)
    except OSError as error:
        raise StateDirectoryError(f"{path} cannot be written: {error}") from error


def read_checkpoint(directory: Path) -> dict[Partition, NextOffset | None]:
    """The offsets of `<directory>/.checkpoint`; nothing when there is no file. None: not known.

    A negative offset that is not the sign for unknown is left out, with a warning, as in Kafka Streams. Raises StateDirectoryError for
    a file that is not a checkpoint.
    """
    path = directory / FILE_NAME
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise StateDirectoryError(f"{path} cannot be read: {error}") from error
    if not lines or lines[0] != _VERSION:
        version = lines[0] if lines else "(empty file)"
        raise StateDirectoryError(f"{path}: version {version} of checkpoint files is not known, only {_VERSION}")
    if len(lines) < 2 or not lines[1].isdigit() or int(lines[1]) != len(lines) - 2:
        raise StateDirectoryError(f"{path}: line 2 must tell the number of entries, which is {max(0, len(lines) - 2)}")
    applied = 0 if directory.name == GLOBAL_DIRECTORY else 1
    return dict(entry for line in lines[2:] if (entry := _entry(path, line, applied)) is not None)


def _entry(path: Path, line: str, applied: int) -> tuple[Partition, NextOffset | None] | None:
    fields = line.split()
    try:
        topic, number, offset = fields[0], int(fields[1]), int(fields[2])
    except (IndexError, ValueError):
        fields = []
    if len(fields) != 3:
        raise StateDirectoryError(f"{path}: {line!r} is not an entry: expected <topic> <partition> <offset>")
    if offset == _UNKNOWN:
        return Partition(topic, number), None
    if offset < 0:
        logger.warning("%s: the offset %d of %s-%d is negative and left out", path, offset, topic, number)
        return None
    return Partition(topic, number), NextOffset(offset + applied)


def _in_file(offset: NextOffset | None, applied: int) -> int:
    """0 as the next offset means that nothing was applied: a task's file has no number for that."""
    if offset is None or offset < applied:
        return _UNKNOWN
    return offset - applied


def _sync_directory(directory: Path) -> None:
    """Makes the rename durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
