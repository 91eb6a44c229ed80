"""Opening the place of a path or URI."""

from __future__ import annotations

from pathlib import Path

from penstock.runtime.model.extras import extra
from penstock.runtime.snapshots.places import LocalPlace, Place


def place_of(where: str | Path) -> Place:
    """Return the place of a path, or of a URI such as `s3://bucket/folder`. Raises StateDirectoryError for a URI that cannot be opened."""
    if isinstance(where, str) and "://" in where:
        with extra("cloud", f"A folder of snapshots by URI ({where.partition('://')[0]}://…)"):
            from penstock.runtime.snapshots.arrow import ArrowPlace  # Arrow takes long to import, and a path does not need it

        return ArrowPlace.of(where)
    return LocalPlace(Path(where))
