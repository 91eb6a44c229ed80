"""The joins of a stream (`KStream.join`, `left_join`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, overload

from runtime.dsl.arity import checked, takes_key
from runtime.dsl.options import JoinedOrStr, NamedOrStr, joined_of
from runtime.dsl.stream_base import KEY_AND_VALUE, StreamBase
from runtime.errors import TopologyError
from runtime.operators.base import OperatorSupplier
from runtime.operators.table_join import StreamGlobalTableJoin, StreamTableJoin
from runtime.type_variables import KR, VO, VR, K, K_co, V_co

if TYPE_CHECKING:
    from runtime.dsl.kstream import KStream
    from runtime.dsl.ktable import GlobalKTable, KTable


class StreamJoins(StreamBase[K_co, V_co]):
    """Joins of a stream with what else there is."""

    __slots__ = ()

    @overload
    def join(
        self: StreamBase[K | None, V_co], other: KTable[K, VO], joiner: Callable[[V_co, VO], VR], joined: JoinedOrStr[K, V_co, VO] = None
    ) -> KStream[K, VR]: ...

    @overload
    def join(
        self: StreamBase[K | None, V_co],
        other: KTable[K, VO],
        joiner: Callable[[K, V_co, VO], VR],
        joined: JoinedOrStr[K, V_co, VO] = None,
    ) -> KStream[K, VR]: ...

    @overload
    def join(
        self,
        other: GlobalKTable[KR, VO],
        key_selector: Callable[[K_co, V_co], KR | None],
        joiner: Callable[[V_co, VO], VR],
        named: NamedOrStr = None,
    ) -> KStream[K_co, VR]: ...

    @overload
    def join(
        self,
        other: GlobalKTable[KR, VO],
        key_selector: Callable[[K_co, V_co], KR | None],
        joiner: Callable[[K_co, V_co, VO], VR],
        named: NamedOrStr = None,
    ) -> KStream[K_co, VR]: ...

    def join(self, other: KTable | GlobalKTable, *arguments: object, **keywords: object) -> KStream:
        """Joins each record with the row that the table has for its key at that moment; a record without a row is dropped.

        With a table: `join(table, joiner, joined=None)`, where both must be partitioned alike. With a global table:
        `join(table, key_selector, joiner, named=None)`, where `key_selector(key, value)` gives the table's key. `joiner` takes
        `(left, right)` or `(key, left, right)`.
        """
        return self._join(other, arguments, keywords, left=False)

    @overload
    def left_join(
        self: StreamBase[K | None, V_co],
        other: KTable[K, VO],
        joiner: Callable[[V_co, VO | None], VR],
        joined: JoinedOrStr[K, V_co, VO] = None,
    ) -> KStream[K_co, VR]: ...

    @overload
    def left_join(
        self: StreamBase[K | None, V_co],
        other: KTable[K, VO],
        joiner: Callable[[K_co, V_co, VO | None], VR],
        joined: JoinedOrStr[K, V_co, VO] = None,
    ) -> KStream[K_co, VR]: ...

    @overload
    def left_join(
        self,
        other: GlobalKTable[KR, VO],
        key_selector: Callable[[K_co, V_co], KR | None],
        joiner: Callable[[V_co, VO | None], VR],
        named: NamedOrStr = None,
    ) -> KStream[K_co, VR]: ...

    @overload
    def left_join(
        self,
        other: GlobalKTable[KR, VO],
        key_selector: Callable[[K_co, V_co], KR | None],
        joiner: Callable[[K_co, V_co, VO | None], VR],
        named: NamedOrStr = None,
    ) -> KStream[K_co, VR]: ...

    def left_join(self, other: KTable | GlobalKTable, *arguments: object, **keywords: object) -> KStream:
        """As `join`, but a record without a row goes on with None on the right."""
        return self._join(other, arguments, keywords, left=True)

    def _join(self, other: KTable | GlobalKTable, arguments: tuple[object, ...], keywords: dict[str, object], *, left: bool) -> KStream:
        from runtime.dsl.ktable import GlobalKTable, KTable

        if isinstance(other, GlobalKTable):
            return self._join_global(other, *arguments, left=left, **keywords)  # type: ignore[arg-type]  # the overloads say which
        if isinstance(other, KTable):
            return self._join_table(other, *arguments, left=left, **keywords)  # type: ignore[arg-type]  # the overloads say which
        raise TopologyError(f"a stream is joined with a KTable or a GlobalKTable, not with {type(other).__name__}")

    def _join_table(self, table: KTable, joiner: Callable[..., object], joined: JoinedOrStr = None, *, left: bool) -> KStream:
        graph, how = self._graph, joined_of(joined)
        stream = self._through_for_join(how.name, how.key, how.value)
        if left:
            graph.let_keyless_through(stream._node)

        def supplier(node: str) -> OperatorSupplier:
            return StreamTableJoin(table.node, joiner, left, takes_key(joiner, 2, node))

        node = stream._below("KSTREAM-LEFTJOIN-" if left else "KSTREAM-JOIN-", how.name, supplier, *table.readable_stores())
        sources = stream._sources | table.sources
        graph.topology.copartition(sources)
        return self._stream(node, how.key or stream._key, None, sources, False)

    def _join_global(
        self,
        table: GlobalKTable,
        key_selector: Callable[..., object],
        joiner: Callable[..., object],
        named: NamedOrStr = None,
        *,
        left: bool,
    ) -> KStream:
        def supplier(node: str) -> OperatorSupplier:
            selector = checked(key_selector, node, *KEY_AND_VALUE)
            return StreamGlobalTableJoin(table.queryable_store_name, selector, joiner, left, takes_key(joiner, 2, node))

        if left:
            self._graph.let_keyless_through(self._node)
        # Kafka Streams calls both joins so.
        return self._new_values(self._below("KSTREAM-LEFTJOIN-", named, supplier))
