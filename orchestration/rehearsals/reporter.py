"""Steps and progress of a rehearsal, for whoever shows them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class Reporter:
    """Shows a rehearsal's progress: `step` is called with each new step, `progress` with an amount done and the total."""

    step: Callable[[str], None] = lambda text: None
    progress: Callable[[int, int], None] = lambda done, total: None
