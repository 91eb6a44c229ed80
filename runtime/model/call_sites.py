"""Lines of the application's code that call Penstock."""

from __future__ import annotations

import os
import sys

_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(__file__))), "")


def is_ours(file: str) -> bool:
    """Return True for a file of Penstock."""
    return file.startswith(_PACKAGE)


def call_site() -> str | None:
    """Return the public function that is running, and the application's line that called it: `count at topology.py:31`."""
    frame, called = sys._getframe(1), ""
    while is_ours(frame.f_code.co_filename):
        if frame.f_back is None:
            return None
        called, frame = frame.f_code.co_name, frame.f_back
    return f"{called} at {os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
