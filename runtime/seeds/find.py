"""Where seeds and snapshots are looked for."""

from __future__ import annotations

from runtime.snapshots.catalogue import Snapshot, complete_ids, find
from runtime.snapshots.places import place_of


def find_seed(where: str, application_id: str) -> Snapshot:
    """The seed or snapshot at a path or URI; the newest complete one, where it holds several, also under a folder of the application's
    name. Raises StateDirectoryError."""
    place = place_of(where)
    below = place / application_id
    return find(below if not complete_ids(place) and complete_ids(below) else place)
