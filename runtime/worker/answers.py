"""What a worker answers to a command."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple


class Answer(NamedTuple):
    """How a command ended: `ok`, and if not, why; `data` is for the one who sent it."""

    ok: bool
    reason: str = ""
    data: Mapping[str, object] = {}


Work = Callable[[], Answer | None]
"""A command that takes more than a moment: called once per turn, until it gives the answer."""
