"""How streams and tables are joined: `JoinWindows`, `StreamJoined` and `TableJoined` (Kafka Streams' classes of the same names)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from datetime import timedelta
from typing import Generic, TypeAlias

from runtime.dsl.options import check_logging, check_serdes, name_instead_of, name_of
from runtime.durations import Duration, to_ms
from runtime.errors import TopologyError
from runtime.serdes.serde import Serde
from runtime.stores.suppliers import WindowSupplier
from runtime.type_variables import VO, K, Subscripted, V

KeyPartitioner: TypeAlias = Callable[[str, object, object, int], int | None]
"""`(topic, key, None, number of partitions) -> partition`; None leaves it to the default."""


@dataclass(frozen=True, slots=True)
class JoinWindows:
    """How near in time two records must be to be joined: the right one's time lies in [left - before, left + after], all in ms. Made by
    `of_time_difference_and_grace` or `of_time_difference_with_no_grace`. A record may be late by `grace_period_ms` before its partner
    has been given up."""

    before_ms: int
    after_ms: int
    grace_period_ms: int

    def __post_init__(self) -> None:
        if self.before_ms + self.after_ms < 0:
            raise TopologyError(f"JoinWindows: the window must not be negative: {self.before_ms} ms before, {self.after_ms} ms after")

    @classmethod
    def of_time_difference_and_grace(cls, time_difference: Duration, after_window_end: Duration) -> JoinWindows:
        """Records that are at most `time_difference` apart, waited for `after_window_end` longer than that."""
        difference = to_ms(time_difference, "the time difference")
        return cls(difference, difference, to_ms(after_window_end, "the grace period"))

    @classmethod
    def of_time_difference_with_no_grace(cls, time_difference: Duration) -> JoinWindows:
        """Records that are at most `time_difference` apart."""
        return cls.of_time_difference_and_grace(time_difference, 0)

    def before(self, time_difference: Duration) -> JoinWindows:
        """The right record may be at most `time_difference` older than the left one; negative: it must be that much newer."""
        return replace(self, before_ms=_signed_ms(time_difference))

    def after(self, time_difference: Duration) -> JoinWindows:
        """The right record may be at most `time_difference` newer than the left one; negative: it must be that much older."""
        return replace(self, after_ms=_signed_ms(time_difference))

    @property
    def size_ms(self) -> int:
        """From the oldest possible partner to the newest."""
        return self.before_ms + self.after_ms


def _signed_ms(duration: Duration) -> int:
    if isinstance(duration, timedelta):
        return duration // timedelta(milliseconds=1)
    return duration if duration < 0 else to_ms(duration, "the time difference")


@dataclass(frozen=True, slots=True)
class StreamJoined(Subscripted, Generic[K, V, VO]):
    """How two streams are joined: serdes of the key, of the left value and of the right value.

    `name` is that of the nodes and of repartition topics (`<name>-left`, `<name>-right`); `store_name` that of the stores and their
    changelogs; without it they are generated. `this_store` and `other_store` are window stores of `Stores` that retain duplicates, with
    the join's window size, and size plus grace as retention. `logging`: True, False, or settings of the changelog topics.
    """

    key: Serde[K] | None = None
    _: KW_ONLY
    value: Serde[V] | None = None
    other_value: Serde[VO] | None = None
    name: str | None = None
    store_name: str | None = None
    this_store: WindowSupplier | None = None
    other_store: WindowSupplier | None = None
    logging: bool | Mapping[str, str] = True

    def __post_init__(self) -> None:
        check_serdes(self, self.key, self.value, self.other_value)
        name_of(self.name)
        name_of(self.store_name)
        check_logging(self, self.logging)
        for store in (self.this_store, self.other_store):
            if store is not None and not isinstance(store, WindowSupplier):
                raise TopologyError(
                    f"StreamJoined: a join keeps its streams in window stores (Stores.persistent_window_store), not in {store!r}"
                )
        if self.this_store is not None and self.other_store is not None and self.this_store.name == self.other_store.name:
            raise TopologyError(f"StreamJoined: both stores are called {self.this_store.name}; give them different names")


@dataclass(frozen=True, slots=True)
class TableJoined:
    """How two tables are joined by a foreign key. `partitioner` is that of the left table's topic and `other_partitioner` that of the right
    one's, where they are not the default: they are asked with None for the value. `name` is that of nodes, internal topics and store."""

    partitioner: KeyPartitioner | None = None
    other_partitioner: KeyPartitioner | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        name_of(self.name)


StreamJoinedOrStr: TypeAlias = StreamJoined[K, V, VO] | str | None
TableJoinedOrStr: TypeAlias = TableJoined | str | None


def stream_joined_of(joined: StreamJoinedOrStr[K, V, VO]) -> StreamJoined[K, V, VO]:
    """The stores' name alone (as Kafka Streams' `StreamJoined.as`), or nothing, as `StreamJoined`."""
    return joined if isinstance(joined, StreamJoined) else StreamJoined(store_name=name_instead_of(StreamJoined, joined))


def table_joined_of(joined: TableJoinedOrStr) -> TableJoined:
    """A name alone, or nothing, as `TableJoined`."""
    return joined if isinstance(joined, TableJoined) else TableJoined(name=name_instead_of(TableJoined, joined))
