"""Search for a seed or snapshot."""

from __future__ import annotations

from penstock.runtime.snapshots.catalogue import Snapshot, complete_ids, find
from penstock.runtime.snapshots.opening import place_of


def find_seed(where: str, application_id: str) -> Snapshot:
    """Return the seed or snapshot at a path or URI; of several, also in a sub-folder named after the application, the newest complete one.
    Raises StateDirectoryError."""
    place = place_of(where)
    below = place / application_id
    return find(below if not complete_ids(place) and complete_ids(below) else place)
