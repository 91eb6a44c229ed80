"""Decision whether a table is due to be rebuilt: compares its store's progress in the database with that of the last build.

A store's progress is the sum of the next offsets of its changelog's partitions, as of the newest checkpoint of each task. (Rejected: the
input's lag or the clock alone. The first says nothing about the store, the second rebuilds tables without new data.) A store that is in no
checkpoint, such as one in memory, uses the committed input offsets of its application instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

import msgspec
from sqlalchemy import select
from sqlalchemy.orm import Session

from penstock.orchestration.database.models import Checkpoint, Task
from penstock.orchestration.declarations.state_tables import Refresh
from penstock.runtime.model.states import TaskKind


class Seen(msgspec.Struct, frozen=True):
    """Progress of the store when the table was last requested, and the time of that request."""

    progress: int
    at: datetime


def store_progress(session: Session, application: str, store: str) -> int | None:
    """Return the number of records in the store's changelog, as of the checkpoints; None if there are none yet."""
    rows = session.scalars(select(Checkpoint).where(Checkpoint.application == application))
    offsets_seen = _newest([offsets for row in rows if isinstance(offsets := row.stores.get(store), Mapping)])
    if offsets_seen:
        return sum(offsets_seen.values())
    tasks = session.scalars(select(Task).where(Task.application == application, Task.kind == TaskKind.ACTIVE.value))
    sums = [task.offset_sum for task in tasks if task.offset_sum is not None]
    return sum(sums) if sums else None


def _newest(checkpoints: Iterable[Mapping[object, object]]) -> dict[str, int]:
    """Return the largest next offset of each partition: an active task and its standbys report the same partitions."""
    found: dict[str, int] = {}
    for offsets in checkpoints:
        for partition, offset in offsets.items():
            if isinstance(partition, str) and isinstance(offset, int):
                found[partition] = max(found.get(partition, 0), offset)
    return found


def why_not(refresh: Refresh, progress: int | None, seen: Seen | None, now: datetime, *, failed: bool, running: bool) -> str | None:
    """Return why a table is not rebuilt now; None if it is due.

    `failed`: the last run failed, so the table is behind whatever the progress is. `running`: a run has not ended.
    """
    if progress is None:
        return "nothing is known of the store yet"
    if running:
        return "a run of it has not ended"
    if seen is None:
        return None
    wait = seen.at + timedelta(minutes=refresh.minutes) - now
    if wait > timedelta(0):
        return f"made {(now - seen.at).total_seconds() / 60:.0f} minutes ago, at most every {refresh.minutes}"
    moved = progress - seen.progress
    # A smaller progress: the changelog was deleted and created again, so the table's rows are from before.
    if 0 <= moved < refresh.records and not failed:
        return f"{moved:,} new records in checkpoints, of {refresh.records:,}"
    return None
