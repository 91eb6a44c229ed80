"""The user's cache folder: downloads and build results, shared by all projects of this user, that can be deleted at any time."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def cache_dir(*, create: bool = True) -> Path:
    """Return `PENSTOCK_CACHE` if set, else the platform's cache folder of this user (on Linux `~/.cache/penstock`); created if missing,
    unless `create` is False."""
    named = os.environ.get("PENSTOCK_CACHE")
    path = Path(named).expanduser().resolve() if named else Path(platformdirs.user_cache_dir("penstock"))
    if create:
        path.mkdir(parents=True, exist_ok=True)
    return path
