"""The nodes of a topology: what was asked for, as data. Nothing here runs; `pipeline.py` compiles a sub-topology of them into calls."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Never, TypeAlias

from runtime.offset_reset import AutoOffsetReset
from runtime.record import RecordContext
from runtime.serdes.serde import Serde
from runtime.type_variables import K, V

if TYPE_CHECKING:
    from runtime.operators.base import OperatorSupplier

Partitioner: TypeAlias = Callable[[str, K, V, int], int | Collection[int] | None]
"""`(topic, key, value, number of partitions) -> partition`, or several, or none (empty); None leaves it to the key's murmur2 hash
(`StreamPartitioner`, KIP-837)."""

TopicNameExtractor: TypeAlias = Callable[[K, V], str] | Callable[[K, V, RecordContext], str]
"""`(key, value) -> topic`, or `(key, value, record context) -> topic`: a sink that chooses the topic per record."""


class PendingSerde(Serde):
    """Stands for a serde around the configured default one, until the configuration is known (`Topology.resolved`). `of_key`: around that
    of keys, although it may be one of values."""

    __slots__ = ("of_key", "wrap")

    def __init__(self, wrap: Callable[[Serde], Serde], *, of_key: bool = False) -> None:
        super().__init__(_never, _never, name="pending")
        self.wrap = wrap
        self.of_key = of_key


def _never(_topic: str, _headers: object, data: object) -> Never:
    raise AssertionError(f"a serde that waits for the configuration was asked for {data!r}")


def wrapped(inner: Serde | None, wrap: Callable[[Serde], Serde], *, of_key: bool = False) -> Serde:
    """`wrap(inner)`, or its promise where the inner serde will be the default one (of keys, if `of_key`) or around it."""
    if isinstance(inner, PendingSerde):
        promised = inner.wrap
        return PendingSerde(lambda default: wrap(promised(default)), of_key=of_key)
    return PendingSerde(wrap, of_key=of_key) if inner is None else wrap(inner)


@dataclass(frozen=True, slots=True)
class SourceNode:
    """Where records of topics enter. `offset_reset` None is the configured default; a serde that is None is the configured default one.
    With a `pattern`, `topics` are those that it matched when somebody looked."""

    name: str
    topics: tuple[str, ...]
    key_serde: Serde | None
    value_serde: Serde | None
    timestamp_extractor: object | None = None
    offset_reset: AutoOffsetReset | None = None
    pattern: re.Pattern[str] | None = None


@dataclass(frozen=True, slots=True)
class ProcessorNode:
    """What is done to a record, and the stores that it may use."""

    name: str
    supplier: OperatorSupplier
    stores: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SinkNode:
    """Where records leave for a topic, fixed or chosen per record."""

    name: str
    topic: str | TopicNameExtractor
    key_serde: Serde | None
    value_serde: Serde | None
    partitioner: Partitioner | None = None
    by_window_key: bool = False
    """Without a partitioner: all windows of a key go where the key goes, as from the sinks of the DSL."""


Node: TypeAlias = SourceNode | ProcessorNode | SinkNode


@dataclass(frozen=True, slots=True)
class InternalTopic:
    """A topic that the application makes for itself, with Kafka Streams' name and settings.

    `partitions` is None where it follows from others: for a repartition topic the largest of what flows into it, for a changelog one per
    task of `subtopology`. For a repartition topic `subtopology` is the one that reads it, `writers` those that write it.
    """

    name: str
    kind: str
    config: Mapping[str, str]
    partitions: int | None
    subtopology: int
    writers: tuple[int, ...] = ()
