"""Start of a module of this package in a process of its own, with this process's import path."""

from __future__ import annotations

import os
import sys


def command(module: str, *arguments: str) -> list[str]:
    """Return the command line that runs a module. The current folder is not on its path unless it is on this process's (`-P`)."""
    return [sys.executable, "-P", "-m", module, *arguments]


def environment() -> dict[str, str]:
    """Return this process's environment, with its import path as it is now."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in sys.path)}
