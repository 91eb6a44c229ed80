"""Suppressed: which changes of a table wait, and for how long (Kafka Streams' class of the same name, KIP-328).

hourly.suppress(Suppressed.until_window_closes(Suppressed.BufferConfig.unbounded()))
table.suppress(Suppressed.until_time_limit(timedelta(seconds=5), Suppressed.BufferConfig.max_records(1000)))
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from runtime.dsl.options import Named, name_of
from runtime.durations import Duration, to_ms
from runtime.errors import TopologyError
from runtime.operators.suppress import UNLIMITED
from runtime.serdes.serde import Serde
from runtime.stores.buffer import ChangeBuffer
from runtime.stores.settings import StoreSettings
from runtime.stores.suppliers import Builder
from runtime.topology.draft import StoreFactory
from runtime.topology.topology import resolved_serde


def _limit(limit: int) -> int:
    if type(limit) is not int or limit < 0:
        raise TopologyError(f"BufferConfig: a limit is a whole number and not negative, but is {limit!r}")
    return limit


@dataclass(frozen=True, slots=True)
class Suppressed:
    """Which changes wait. Made by `until_window_closes` and `until_time_limit`."""

    @dataclass(frozen=True, slots=True)
    class BufferConfig:
        """How much may wait, and what happens when there is more. Begun with `unbounded`, `max_records` or `max_bytes`; each `with_` gives
        another one. Bytes are counted as Kafka Streams counts them: key, values, and what is kept of the record's origin."""

        records: int = UNLIMITED
        bytes: int = UNLIMITED
        emits_early: bool = False
        logging: Mapping[str, str] | None = field(default_factory=dict)
        """Settings of the changelog topic; None: there is none."""

        @classmethod
        def unbounded(cls) -> Suppressed.BufferConfig:
            """As much as there is memory."""
            return cls()

        @classmethod
        def max_records(cls, limit: int) -> Suppressed.BufferConfig:
            """So many keys; the oldest go out early when there are more."""
            return cls(records=_limit(limit), emits_early=True)

        @classmethod
        def max_bytes(cls, limit: int) -> Suppressed.BufferConfig:
            """So many bytes; the oldest keys go out early when there are more."""
            return cls(bytes=_limit(limit), emits_early=True)

        def with_max_records(self, limit: int) -> Suppressed.BufferConfig:
            """At most so many keys."""
            return replace(self, records=_limit(limit))

        def with_max_bytes(self, limit: int) -> Suppressed.BufferConfig:
            """At most so many bytes."""
            return replace(self, bytes=_limit(limit))

        def with_no_bound(self) -> Suppressed.BufferConfig:
            """As much as there is memory."""
            return replace(self, records=UNLIMITED, bytes=UNLIMITED, emits_early=False)

        def shut_down_when_full(self) -> Suppressed.BufferConfig:
            """More than the limits stops the application: no result goes out before its time."""
            return replace(self, emits_early=False)

        def emit_early_when_full(self) -> Suppressed.BufferConfig:
            """More than the limits sends the oldest keys out before their time."""
            return replace(self, emits_early=True)

        def with_logging_disabled(self) -> Suppressed.BufferConfig:
            """Without a changelog: what waits is lost with the disk."""
            return replace(self, logging=None)

        def with_logging_enabled(self, config: Mapping[str, str]) -> Suppressed.BufferConfig:
            """With a changelog, and these settings of its topic."""
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
        """Of a table of windows: only the last result of each window, when stream time has passed its end and grace. Raises TopologyError
        for a buffer that emits early: results would not be the last ones."""
        return cls(None, buffer_config)

    @classmethod
    def until_time_limit(cls, time_to_wait_for_more_events: Duration, buffer_config: BufferConfig) -> Suppressed:
        """At most one change per key in so much stream time. 0 lets every change through at once."""
        return cls(to_ms(time_to_wait_for_more_events, "the time to wait"), buffer_config)

    def with_name(self, name: Named | str) -> Suppressed:
        """The node's name; that of the buffer is `<name>-store`."""
        return replace(self, name=name_of(name))


def buffer_store(name: str, logging: Mapping[str, str] | None, key: Serde | None, value: Serde | None) -> StoreFactory:
    """The buffer of a suppressed table with these serdes."""

    def build(default_key: Serde | None, default_value: Serde | None) -> Builder[ChangeBuffer]:
        settings = StoreSettings(
            name,
            True,
            resolved_serde(key, default_key, "key", f"store {name}"),
            resolved_serde(value, default_value, "value", f"store {name}"),
            logging=logging is not None,
            logging_config=dict(logging or {}),
            buffer=True,
        )
        return Builder(settings, ChangeBuffer)

    return build
