"""Finding of the examination on one subject."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """Outcome of a finding."""

    OK = "ok"
    WARNING = "warning"
    """A start works; something else may not, or not for long."""
    WRONG = "wrong"
    """A start fails, or would lose data."""
    UNKNOWN = "unknown"
    """It could not be looked at."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of `penstock doctor`. `remedy`: the way out, a sentence or a command."""

    subject: str
    outcome: Outcome
    text: str
    remedy: str = ""
