"""Lines of the application's code that call Penstock."""

from __future__ import annotations

import os
import sys
from types import FrameType

_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(__file__))), "")


def is_ours(file: str) -> bool:
    """Return True for a file of Penstock."""
    return file.startswith(_PACKAGE)


def call_site() -> str | None:
    """Return the public function that is running, and the application's line that called it: `count at topology.py:31`."""
    frame, called = sys._getframe(1), ""
    while is_ours(frame.f_code.co_filename) or _is_generated(frame):
        if frame.f_back is None:
            return None
        called = type(frame.f_locals["self"]).__name__ if frame.f_code.co_name == "__init__" else frame.f_code.co_name
        frame = frame.f_back
    return f"{called} at {os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


def _is_generated(frame: FrameType) -> bool:
    """Return True for the `__init__` of a dataclass of Penstock, which has no file."""
    return frame.f_code.co_filename == "<string>" and str(frame.f_globals.get("__name__")).startswith("penstock.")
