"""The position at which a source partition starts if its committed offset is missing or no longer on the log.

Kafka Streams' `AutoOffsetReset` (KIP-1106), for a topic (`Consumed(offset_reset_policy=…)`) or for all (`auto.offset.reset`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from penstock.runtime.model.durations import Duration, to_ms

_ISO_8601 = re.compile(r"P(?:(\d+)D)?(?:T(?=\d)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d{1,3})?)S)?)?", re.IGNORECASE)
"""The format of Java's `Duration.toString`, from days to milliseconds."""
_BY_DURATION = "by_duration"


class Strategy(Enum):
    """The four strategies."""

    EARLIEST = "earliest"
    LATEST = "latest"
    NONE = "none"
    BY_DURATION = _BY_DURATION


@dataclass(frozen=True, slots=True)
class AutoOffsetReset:
    """A reset policy, created by `earliest()`, `latest()`, `none()` or `by_duration(…)`. `str()` returns its configuration value."""

    strategy: Strategy
    duration_ms: int = 0

    @classmethod
    def earliest(cls) -> AutoOffsetReset:
        """Start at the first record."""
        return cls(Strategy.EARLIEST)

    @classmethod
    def latest(cls) -> AutoOffsetReset:
        """Start at the end."""
        return cls(Strategy.LATEST)

    @classmethod
    def none(cls) -> AutoOffsetReset:
        """Stop the client with an error that names the partition."""
        return cls(Strategy.NONE)

    @classmethod
    def by_duration(cls, duration: Duration) -> AutoOffsetReset:
        """Start at the first record that is no older than `duration`; at the end if there is none. Raises ValueError if it is negative."""
        return cls(Strategy.BY_DURATION, to_ms(duration, "the duration of an offset reset"))

    @classmethod
    def of(cls, setting: AutoOffsetReset | str) -> AutoOffsetReset:
        """Parse `earliest`, `latest`, `none` or `by_duration:PT1H` (ISO 8601); a policy is returned as it is. Raises ValueError."""
        if isinstance(setting, AutoOffsetReset):
            return setting
        name, _, duration = str(setting).partition(":")
        if name == _BY_DURATION:
            return cls(Strategy.BY_DURATION, _milliseconds(duration))
        try:
            return cls(Strategy(setting))
        except ValueError:
            raise ValueError(f"an offset reset is earliest, latest, none or by_duration:<ISO 8601 duration>, not {setting!r}") from None

    def __str__(self) -> str:
        if self.strategy is not Strategy.BY_DURATION:
            return str(self.strategy.value)
        seconds, milliseconds = divmod(self.duration_ms, 1000)
        return f"{_BY_DURATION}:PT{seconds}{f'.{milliseconds:03d}' if milliseconds else ''}S"


def _milliseconds(text: str) -> int:
    match = _ISO_8601.fullmatch(text)
    if match is None or not any(match.groups()):
        raise ValueError(f"by_duration takes an ISO 8601 duration such as PT1H, PT30M or P1DT12H, not {text!r}")
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return round(1000 * (seconds + 60 * (minutes + 60 * (hours + 24 * days))))
