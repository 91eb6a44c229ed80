"""A task's stores as they were at one commit, left on disk for others to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from runtime.ids import NextOffset, Partition, TaskId


def write_snapshot(
    root: Path, application: str, task: TaskId, stores: Sequence[object], input_offsets: Mapping[Partition, NextOffset], stream_time: int, at_ms: int
) -> Path:
    """Writes `<root>/<task>/` (root = `<state.dir>/<application.id>/snapshots/<snapshot id>`) with a checkpoint of each store and `manifest.json`.

    Call it between a commit and the next record. Atomic: the folder appears whole or not at all. Returns the folder.
    """
