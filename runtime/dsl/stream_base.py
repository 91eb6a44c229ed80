"""What a stream is made of, for the modules that give it its operations (`kstream.py`, `stream_joins.py`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, cast

from runtime.dsl.graph import Graph, Repartition
from runtime.dsl.options import NamedOrStr, name_of
from runtime.operators.base import OperatorSupplier
from runtime.serdes.serde import Serde
from runtime.type_variables import KR, VR, K_co, V_co

if TYPE_CHECKING:
    from runtime.dsl.kstream import KStream

KEY_AND_VALUE = ("key", "value")
"""What most callbacks are given, for the error of one that takes something else."""


@dataclass(frozen=True, slots=True)
class StreamBase(Generic[K_co, V_co]):
    """A node whose records have serdes that are known or not; where its records come from; and whether its key may have been changed since
    the last topic, so that what needs records by key must send them through a repartition topic first."""

    _graph: Graph
    _node: str
    _key: Serde[K_co] | None
    _value: Serde[V_co] | None
    _sources: frozenset[str]
    _repartition: bool = False

    def _below(self, prefix: str, named: NamedOrStr, make: Callable[[str], OperatorSupplier], *stores: str) -> str:
        """Adds a node below this one; returns its name. `make` gets it, for the errors that it may raise."""
        name = self._graph.name(prefix, named)
        return self._graph.operator(name, make(name), (self._node,), stores)

    def _same(self, node: str) -> KStream[K_co, V_co]:
        """The stream of a node that changes neither keys nor values."""
        return self._stream(node, self._key, self._value, self._sources, self._repartition)

    def _new_values(self, node: str) -> KStream[K_co, VR]:
        """The stream of a node that makes new values."""
        return self._stream(node, self._key, None, self._sources, self._repartition)

    def _new_pairs(self, node: str) -> KStream[KR, VR]:
        """The stream of a node that makes new keys and values."""
        return self._stream(node, None, None, self._sources, True)

    def _behind(self, source: str, through: Repartition) -> KStream[K_co, V_co]:
        """The stream that comes out of a repartition topic."""
        return self._stream(source, through.key, through.value, frozenset((source,)), False)

    def _key_serde(self, given: Serde[KR] | None) -> Serde[KR] | None:
        """The given serde, or this stream's own. (A serde never sees None: that of K is that of K | None.)"""
        return given or cast("Serde[KR] | None", self._key)

    def _value_serde(self, given: Serde[VR] | None) -> Serde[VR] | None:
        return given or cast("Serde[VR] | None", self._value)

    def _through_for_join(self, how_name: str | NamedOrStr, key: Serde | None, value: Serde | None) -> KStream[K_co, V_co]:
        """This stream, behind a repartition topic if a join needs one."""
        if not self._repartition:
            return self._same(self._node)
        through = Repartition(name_of(how_name) or self._node, key or self._key, value or self._value)
        return self._behind(self._graph.repartition_for_join(self._node, through, named=how_name is not None), through)

    def _stream(
        self, node: str, key: Serde[KR] | None, value: Serde[VR] | None, sources: frozenset[str], repartition: bool
    ) -> KStream[KR, VR]:
        from runtime.dsl.kstream import KStream

        return KStream(self._graph, node, key, value, sources, repartition)
