"""A worker's answer to a command."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple


class Answer(NamedTuple):
    """Result of a command: `ok`, and if not, the reason; `data` goes to the sender."""

    ok: bool
    reason: str = ""
    data: Mapping[str, object] = {}


Work = Callable[[], Answer | None]
"""A command that takes several turns: called once per turn, until it returns the answer."""
