"""The user's cache folder: what was downloaded or made once for all projects of this user, and can be deleted at any time."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def cache_dir() -> Path:
    """`PENSTOCK_CACHE` if it is set, else the platform's cache folder of this user (on Linux `~/.cache/penstock`); created if missing."""
    named = os.environ.get("PENSTOCK_CACHE")
    path = Path(named).expanduser().resolve() if named else Path(platformdirs.user_cache_dir("penstock"))
    path.mkdir(parents=True, exist_ok=True)
    return path
