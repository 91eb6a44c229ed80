"""Suppressed: which changes of a table are held back, and for how long (Kafka Streams' class of the same name, KIP-328).

hourly.suppress(Suppressed.until_window_closes(Suppressed.BufferConfig.unbounded()))
table.suppress(Suppressed.until_time_limit(timedelta(seconds=5), Suppressed.BufferConfig.max_records(1000)))
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from penstock.runtime.dsl.options import Named, name_of
from penstock.runtime.model.durations import Duration, to_ms
from penstock.runtime.model.errors import TopologyError
from penstock.runtime.operators.suppress import UNLIMITED


def _limit(limit: int) -> int:
    if type(limit) is not int or limit < 0:
        raise TopologyError(f"BufferConfig: a limit is a whole number and not negative, but is {limit!r}")
    return limit


@dataclass(frozen=True, slots=True)
class Suppressed:
    """Which changes of a table are held back. Made by `until_window_closes` and `until_time_limit`."""

    @dataclass(frozen=True, slots=True)
    class BufferConfig:
        """The limits of the buffer, and what happens when they are exceeded. Made by `unbounded`, `max_records` and `max_bytes`; the other
        methods return changed copies. Bytes are counted as in Kafka Streams: key, values, and the context of the record."""

        records: int = UNLIMITED
        bytes: int = UNLIMITED
        emits_early: bool = False
        logging: Mapping[str, str] | None = field(default_factory=dict)
        """Settings of the changelog topic; None: there is none."""

        @classmethod
        def unbounded(cls) -> Suppressed.BufferConfig:
            """Hold back any number of changes."""
            return cls()

        @classmethod
        def max_records(cls, limit: int) -> Suppressed.BufferConfig:
            """Hold back at most `limit` keys; emit the oldest early when there are more."""
            return cls(records=_limit(limit), emits_early=True)

        @classmethod
        def max_bytes(cls, limit: int) -> Suppressed.BufferConfig:
            """Hold back at most `limit` bytes; emit the oldest keys early when there are more."""
            return cls(bytes=_limit(limit), emits_early=True)

        def with_max_records(self, limit: int) -> Suppressed.BufferConfig:
            """Limit the number of keys."""
            return replace(self, records=_limit(limit))

        def with_max_bytes(self, limit: int) -> Suppressed.BufferConfig:
            """Limit the number of bytes."""
            return replace(self, bytes=_limit(limit))

        def with_no_bound(self) -> Suppressed.BufferConfig:
            """Hold back any number of changes."""
            return replace(self, records=UNLIMITED, bytes=UNLIMITED, emits_early=False)

        def shut_down_when_full(self) -> Suppressed.BufferConfig:
            """Stop the application when a limit is exceeded, so that no change is emitted early."""
            return replace(self, emits_early=False)

        def emit_early_when_full(self) -> Suppressed.BufferConfig:
            """Emit the oldest keys early when a limit is exceeded."""
            return replace(self, emits_early=True)

        def with_logging_disabled(self) -> Suppressed.BufferConfig:
            """Disable the changelog: changes held back are lost with the disk."""
            return replace(self, logging=None)

        def with_logging_enabled(self, config: Mapping[str, str]) -> Suppressed.BufferConfig:
            """Enable the changelog, with these settings of its topic."""
            return replace(self, logging=dict(config))

    wait_ms: int | None
    """None: until the window closes."""
    buffer: BufferConfig
    name: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.buffer, Suppressed.BufferConfig):
            raise TopologyError(f"Suppressed: expected a BufferConfig, such as Suppressed.BufferConfig.unbounded(), not {self.buffer!r}")
        if self.wait_ms is None and self.buffer.emits_early:
            raise TopologyError("until_window_closes: the buffer must be unbounded or shut down when full; results would not be final")

    @classmethod
    def until_window_closes(cls, buffer_config: BufferConfig) -> Suppressed:
        """Emit only the final result of each window, when stream time has passed its end and grace. Raises TopologyError for a buffer that
        emits early, because its results would not be final."""
        return cls(None, buffer_config)

    @classmethod
    def until_time_limit(cls, time_to_wait_for_more_events: Duration, buffer_config: BufferConfig) -> Suppressed:
        """Emit at most one change per key in this much stream time. 0 emits every change at once."""
        return cls(to_ms(time_to_wait_for_more_events, "the time to wait"), buffer_config)

    def with_name(self, name: Named | str) -> Suppressed:
        """Name the node; the buffer is called `<name>-store`."""
        return replace(self, name=name_of(name))
