"""What a rehearsal says on its way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class Reporter:
    """What a rehearsal says on its way: `step` is called with each new step, `progress` with an amount done and the total."""

    step: Callable[[str], None] = lambda text: None
    progress: Callable[[int, int], None] = lambda done, total: None
