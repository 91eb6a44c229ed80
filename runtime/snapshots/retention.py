"""Retention of snapshots: the newest complete ones are kept, and incomplete ones are removed when they are too old to be in progress.

This module covers the parts in one instance's state directory. The instance does not see the others' parts, so it is informed when a
snapshot is complete, and marks that with an empty file.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Collection
from pathlib import Path

logger = logging.getLogger(__name__)

KEPT = 3
"""Number of complete snapshots to keep. More than one, because readers may still use an older one."""
LEFTOVER_MS = 60 * 60_000
"""Age after which an incomplete snapshot is abandoned."""
COMPLETE = ".complete"


def mark_complete(snapshots: Path, snapshot_id: str) -> bool:
    """Mark a snapshot as complete: all tasks' parts exist, on any instance. Returns False if this instance has no part of it."""
    if not (snapshots / snapshot_id).is_dir():
        return False
    (snapshots / snapshot_id / COMPLETE).touch()
    return True


def prune(snapshots: Path, now_ms: int, *, keep: int = KEPT, unwanted: Collection[str] = ()) -> list[str]:
    """Remove complete snapshots beyond the newest `keep`, the `unwanted` ones, and abandoned ones. Returns the removed ids.

    Removing a folder that cannot be removed is retried by the next call. `now_ms` is wall-clock time.
    """
    found = sorted((path for path in snapshots.iterdir() if path.is_dir()), key=lambda path: path.name) if snapshots.is_dir() else []
    complete = [path for path in found if (path / COMPLETE).exists() and not path.name.startswith(".")]
    kept = {path.name for path in complete[len(complete) - min(keep, len(complete)) :]} - set(unwanted)
    gone = [
        path
        for path in found
        if path.name not in kept
        and (path in complete or path.name in unwanted or path.name.startswith(".") or _age(path, now_ms) > LEFTOVER_MS)
    ]
    return [path.name for path in gone if remove(path)]


def _age(path: Path, now_ms: int) -> int:
    try:
        return now_ms - path.stat().st_mtime_ns // 1_000_000
    except FileNotFoundError:
        return 0


def remove(path: Path) -> bool:
    """Remove a snapshot's folder; return True on success. It is first renamed to a hidden name, so that no reader finds half of it."""
    doomed = path if path.name.startswith(".") else path.with_name(f".{path.name}.removed")
    try:
        if doomed != path:
            shutil.rmtree(doomed, ignore_errors=True)
            path.rename(doomed)
        shutil.rmtree(doomed)
    except FileNotFoundError:  # another worker of this instance removed it first
        return False
    except OSError as error:
        logger.warning("old snapshot %s cannot be removed: %s", path, error)
        return False
    return True
