"""Durations of the public API: a `timedelta`, or whole milliseconds."""

from __future__ import annotations

from datetime import timedelta

Duration = timedelta | int
"""A `timedelta`, or whole milliseconds as an int."""


def to_ms(duration: Duration, what: str = "a duration") -> int:
    """Convert to whole milliseconds. Raises ValueError for a negative duration, TypeError for any other type; `what` names it in the
    message."""
    if isinstance(duration, timedelta):
        milliseconds = duration // timedelta(milliseconds=1)
    elif isinstance(duration, int) and not isinstance(duration, bool):
        milliseconds = duration
    else:
        raise TypeError(f"{what} is a datetime.timedelta or whole milliseconds (int), not {type(duration).__name__}")
    if milliseconds < 0:
        raise ValueError(f"{what} must not be negative: {milliseconds} ms")
    return milliseconds
