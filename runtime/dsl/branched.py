"""Splitting a stream (Kafka Streams' `BranchedKStream` and `Branched`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Generic

from penstock.runtime.dsl.graph import StreamNode
from penstock.runtime.dsl.options import KEY_AND_VALUE, name_instead_of, name_of
from penstock.runtime.model.arity import checked
from penstock.runtime.model.errors import TopologyError
from penstock.runtime.model.type_variables import K, Subscripted, V
from penstock.runtime.operators.stateless import PassThrough, Split

if TYPE_CHECKING:
    from penstock.runtime.dsl.kstream import KStream


@dataclass(frozen=True, slots=True)
class Branched(Subscripted, Generic[K, V]):
    """How to use a branch. `name` is appended to the name of the split. `function` gets the branch and returns the stream that replaces it
    among the results, or None for no result. `consumer` gets the branch, which is then not among the results."""

    name: str | None = None
    _: KW_ONLY
    function: Callable[[KStream[K, V]], KStream[K, V] | None] | None = None
    consumer: Callable[[KStream[K, V]], object] | None = None

    def __post_init__(self) -> None:
        name_of(self.name)
        if self.function is not None and self.consumer is not None:
            raise TopologyError("Branched: a branch goes to a function or to a consumer, not to both")


class BranchedKStream(Generic[K, V]):
    """A stream that is being split, made by `KStream.split`. Each record goes to the first branch whose predicate is true, else to the
    default branch; without one, it is dropped.

    `default_branch()` or `no_default_branch()` ends the split and returns the branches by name: the name of the split, followed by the name
    of the branch or its number (from 1; the default branch is 0).
    """

    def __init__(self, stream: KStream[K, V], node: str) -> None:
        self._stream = stream
        self._node = node
        self._split = Split((), None)
        self._results: dict[str, KStream[K, V]] = {}

    def branch(self, predicate: Callable[[K, V], object], branched: Branched[K, V] | str | None = None) -> BranchedKStream[K, V]:
        """Add a branch for records for which `predicate(key, value)` is true and no earlier predicate is."""
        self._check_open()
        holds = checked(predicate, self._node, *KEY_AND_VALUE)
        number = len(self._split.branches) + 1
        name, how = self._named(branched, number)
        self._end_in(replace(self._split, branches=(*self._split.branches, (holds, name))), name, how)
        return self

    def default_branch(self, branched: Branched[K, V] | str | None = None) -> dict[str, KStream[K, V]]:
        """Add a branch for all other records, and end the split."""
        self._check_open()
        name, how = self._named(branched, 0)
        self._end_in(replace(self._split, default=name), name, how)
        return self._results

    def no_default_branch(self) -> dict[str, KStream[K, V]]:
        """End the split. Records of no branch are dropped and not counted."""
        return self._results

    def _check_open(self) -> None:
        if self._split.default is not None:
            raise TopologyError(f"node {self._node}: default_branch() has ended this split")

    def _named(self, branched: Branched[K, V] | str | None, number: int) -> tuple[str, Branched[K, V]]:
        how = branched if isinstance(branched, Branched) else Branched(name_instead_of(Branched, branched))
        return f"{self._node}{number if how.name is None else how.name}", how

    def _end_in(self, split: Split, name: str, how: Branched[K, V]) -> None:
        stream = self._stream
        graph = stream._graph
        graph.name(name)  # advances the counter, as Kafka Streams does for a branch
        graph.operator(name, PassThrough(), (self._node,))
        graph.topology.replace_operator(self._node, split, ())
        self._split = split
        branch = stream._same(name)
        result: KStream[K, V] | None = branch
        if how.function is not None:
            result = how.function(branch)
            if result is not None and not isinstance(result, StreamNode):
                raise TopologyError(f"branch {name}: its function makes a KStream of it, or None, not {result!r}")
        elif how.consumer is not None:
            how.consumer(branch)
            result = None
        if result is not None:
            self._results[name] = result
