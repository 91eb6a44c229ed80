"""The joins of a stream: with another stream, a table, a global table. `KStream` has them from here; what they build is in `joining.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, overload

from runtime.dsl.join_options import JoinWindows, StreamJoinedOrStr
from runtime.dsl.options import JoinedOrStr, NamedOrStr
from runtime.dsl.stream_base import StreamBase
from runtime.errors import TopologyError
from runtime.type_variables import KR, VO, VR, K, K_co, V_co

if TYPE_CHECKING:
    from runtime.dsl.kstream import KStream
    from runtime.dsl.ktable import GlobalKTable, KTable


class StreamJoins(StreamBase[K_co, V_co]):
    """What a stream can be joined with."""

    __slots__ = ()

    @overload
    def join(
        self: StreamBase[K | None, V_co],
        other: KStream[K, VO],
        joiner: Callable[[V_co, VO], VR],
        windows: JoinWindows,
        stream_joined: StreamJoinedOrStr[K, V_co] = None,
    ) -> KStream[K, VR]: ...

    @overload
    def join(
        self: StreamBase[K | None, V_co],
        other: KStream[K, VO],
        joiner: Callable[[K, V_co, VO], VR],
        windows: JoinWindows,
        stream_joined: StreamJoinedOrStr[K, V_co] = None,
    ) -> KStream[K, VR]: ...

    @overload
    def join(
        self: StreamBase[K | None, V_co], other: KTable[K, VO], joiner: Callable[[V_co, VO], VR], joined: JoinedOrStr[K, V_co] = None
    ) -> KStream[K, VR]: ...

    @overload
    def join(
        self: StreamBase[K | None, V_co], other: KTable[K, VO], joiner: Callable[[K, V_co, VO], VR], joined: JoinedOrStr[K, V_co] = None
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

    def join(self, other: KStream | KTable | GlobalKTable, *arguments: object, **keywords: object) -> KStream:
        """Joins records of equal keys; `joiner` takes `(left, right)` or `(key, left, right)`. Who finds no partner is dropped.

        With a stream, `join(stream, joiner, windows, stream_joined=None)`: every pair of records that are near enough in time; the result
        has the later time. With a table, `join(table, joiner, joined=None)`: the row that the table has for the key at that moment or, if
        it is versioned, at the record's time. Both must be partitioned alike. With a global table,
        `join(table, key_selector, joiner, named=None)`, where `key_selector(key, value)` gives the table's key.
        """
        return self._join(other, arguments, keywords, left=False)

    @overload
    def left_join(
        self: StreamBase[K | None, V_co],
        other: KStream[K, VO],
        joiner: Callable[[V_co, VO | None], VR],
        windows: JoinWindows,
        stream_joined: StreamJoinedOrStr[K, V_co] = None,
    ) -> KStream[K_co, VR]: ...

    @overload
    def left_join(
        self: StreamBase[K | None, V_co],
        other: KStream[K, VO],
        joiner: Callable[[K_co, V_co, VO | None], VR],
        windows: JoinWindows,
        stream_joined: StreamJoinedOrStr[K, V_co] = None,
    ) -> KStream[K_co, VR]: ...

    @overload
    def left_join(
        self: StreamBase[K | None, V_co],
        other: KTable[K, VO],
        joiner: Callable[[V_co, VO | None], VR],
        joined: JoinedOrStr[K, V_co] = None,
    ) -> KStream[K_co, VR]: ...

    @overload
    def left_join(
        self: StreamBase[K | None, V_co],
        other: KTable[K, VO],
        joiner: Callable[[K_co, V_co, VO | None], VR],
        joined: JoinedOrStr[K, V_co] = None,
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

    def left_join(self, other: KStream | KTable | GlobalKTable, *arguments: object, **keywords: object) -> KStream:
        """As `join`, but a record without a partner goes on with None on the right; with a stream, when none can come any more."""
        return self._join(other, arguments, keywords, left=True)

    @overload
    def outer_join(
        self: StreamBase[K | None, V_co],
        other: KStream[K, VO],
        joiner: Callable[[V_co | None, VO | None], VR],
        windows: JoinWindows,
        stream_joined: StreamJoinedOrStr[K, V_co] = None,
    ) -> KStream[K_co, VR]: ...

    @overload
    def outer_join(
        self: StreamBase[K | None, V_co],
        other: KStream[K, VO],
        joiner: Callable[[K_co, V_co | None, VO | None], VR],
        windows: JoinWindows,
        stream_joined: StreamJoinedOrStr[K, V_co] = None,
    ) -> KStream[K_co, VR]: ...

    def outer_join(
        self, other: KStream, joiner: Callable[..., object], windows: JoinWindows, stream_joined: StreamJoinedOrStr = None
    ) -> KStream:
        """As `left_join` of two streams, but records of the other stream without a partner go on, too, with None on the left."""
        from runtime.dsl.joining import join_streams
        from runtime.dsl.kstream import KStream

        if not isinstance(other, KStream):
            raise TopologyError(f"an outer join of a stream is one with a KStream, not with {type(other).__name__}")
        return join_streams(self._same(self._node), other, joiner, windows, stream_joined, of_left=True, of_right=True)

    def _join(
        self, other: KStream | KTable | GlobalKTable, arguments: tuple[object, ...], keywords: dict[str, object], *, left: bool
    ) -> KStream:
        from runtime.dsl.joining import join_global_table, join_streams, join_table
        from runtime.dsl.kstream import KStream
        from runtime.dsl.ktable import GlobalKTable, KTable

        this = self._same(self._node)
        # The overloads say what the arguments are.
        if isinstance(other, KStream):
            return join_streams(this, other, *arguments, of_left=left, of_right=False, **keywords)  # type: ignore[arg-type]
        if isinstance(other, KTable):
            return join_table(this, other, *arguments, left=left, **keywords)  # type: ignore[arg-type]
        if isinstance(other, GlobalKTable):
            return join_global_table(this, other, *arguments, left=left, **keywords)  # type: ignore[arg-type]
        raise TopologyError(f"a stream is joined with a KStream, a KTable or a GlobalKTable, not with {type(other).__name__}")
