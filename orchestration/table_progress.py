"""Whether a table is to be made anew: how far its store is, as the control plane knows it, against how far it was the last time.

A store's progress is the sum of the next offsets of its changelog's partitions, as of the newest checkpoint of each task. (Rejected: the
input's lag or the clock alone; the first says nothing about the store, the second makes tables of nothing new.) A store that is in no
checkpoint, as one in memory, goes by what its application has committed of its inputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

import msgspec
from sqlalchemy import select
from sqlalchemy.orm import Session

from orchestration.control_plane.models import Checkpoint, Task
from orchestration.state_tables import Refresh
from runtime.states import TaskKind


class Seen(msgspec.Struct, frozen=True):
    """How far the store was when the table was last asked for, and when that was."""

    progress: int
    at: datetime


def store_progress(session: Session, application: str, store: str) -> int | None:
    """How many records the store's changelog has had, as far as checkpoints tell; None where nothing is known yet."""
    rows = session.scalars(select(Checkpoint).where(Checkpoint.application == application))
    told = _newest([offsets for row in rows if isinstance(offsets := row.stores.get(store), Mapping)])
    if told:
        return sum(told.values())
    tasks = session.scalars(select(Task).where(Task.application == application, Task.kind == TaskKind.ACTIVE.value))
    sums = [task.offset_sum for task in tasks if task.offset_sum is not None]
    return sum(sums) if sums else None


def _newest(checkpoints: Iterable[Mapping[object, object]]) -> dict[str, int]:
    """The largest next offset of each partition: an active task and its copies tell of the same ones."""
    found: dict[str, int] = {}
    for offsets in checkpoints:
        for partition, offset in offsets.items():
            if isinstance(partition, str) and isinstance(offset, int):
                found[partition] = max(found.get(partition, 0), offset)
    return found


def why_not(refresh: Refresh, progress: int | None, seen: Seen | None, now: datetime, *, failed: bool, running: bool) -> str | None:
    """Why a table is not made anew now; None: it is to be made.

    `failed`: the last run of it did, so that it is behind whatever the progress is. `running`: a run of it has not ended.
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
    # Fewer than before: the changelog was made anew, so what the table holds is of another life of it.
    if 0 <= moved < refresh.records and not failed:
        return f"{moved:,} new records in checkpoints, of {refresh.records:,}"
    return None
