"""How time is cut into windows (Kafka Streams' `TimeWindows`)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from runtime.durations import Duration, to_ms
from runtime.errors import TopologyError


@dataclass(frozen=True, slots=True)
class TimeWindows:
    """Windows of a fixed size, all in ms: tumbling, or hopping where the advance is shorter than the size. Made by `of_size_and_grace` or
    `of_size_with_no_grace`. A window starts at a multiple of the advance and holds [start, start + size)."""

    size_ms: int
    advance_ms: int
    grace_ms: int

    def __post_init__(self) -> None:
        if self.size_ms <= 0:
            raise TopologyError(f"TimeWindows: the size must be positive, not {self.size_ms} ms")
        if not 0 < self.advance_ms <= self.size_ms:
            raise TopologyError(f"TimeWindows: the advance must be in (0, {self.size_ms}] ms, not {self.advance_ms} ms")

    @classmethod
    def of_size_and_grace(cls, size: Duration, after_window_end: Duration) -> TimeWindows:
        """Tumbling windows that take late records for `after_window_end` more."""
        size_ms = to_ms(size, "the window size")
        return cls(size_ms, size_ms, to_ms(after_window_end, "the grace period"))

    @classmethod
    def of_size_with_no_grace(cls, size: Duration) -> TimeWindows:
        """Tumbling windows that are over when stream time reaches their end."""
        return cls.of_size_and_grace(size, 0)

    def advance_by(self, advance: Duration) -> TimeWindows:
        """Hopping windows: one begins every `advance`."""
        return replace(self, advance_ms=to_ms(advance, "the advance"))
