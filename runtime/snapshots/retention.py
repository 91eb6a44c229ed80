"""Which snapshots stay: the newest complete ones. What was left half is removed once it is so old that nobody can still be at work on it.

Here for the parts that one instance keeps in its state directory. It does not see the other instances' parts, so it is told when a snapshot
is complete, and notes that by an empty file.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Collection
from pathlib import Path

logger = logging.getLogger(__name__)

KEPT = 3
"""Complete snapshots that stay: readers may still be busy with an older one."""
LEFTOVER_MS = 60 * 60_000
"""A snapshot that is still not complete after so long never will be."""
COMPLETE = ".complete"


def mark_complete(snapshots: Path, snapshot_id: str) -> bool:
    """Notes that all tasks' parts of a snapshot are there, here or elsewhere. False if this instance has no part of it."""
    if not (snapshots / snapshot_id).is_dir():
        return False
    (snapshots / snapshot_id / COMPLETE).touch()
    return True


def prune(snapshots: Path, now_ms: int, *, keep: int = KEPT, unwanted: Collection[str] = ()) -> list[str]:
    """Removes all but the newest `keep` complete snapshots, those that are `unwanted`, and old leftovers; gives their ids.

    A folder that cannot be removed now is tried again the next time. `now_ms` is wall-clock time.
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
    """Removes a snapshot's folder, and says whether that worked. It gets a name with a dot first: nobody finds half of it."""
    doomed = path if path.name.startswith(".") else path.with_name(f".{path.name}.removed")
    try:
        if doomed != path:
            shutil.rmtree(doomed, ignore_errors=True)
            path.rename(doomed)
        shutil.rmtree(doomed)
    except FileNotFoundError:  # another worker of this instance was faster
        return False
    except OSError as error:
        logger.warning("old snapshot %s cannot be removed: %s", path, error)
        return False
    return True
