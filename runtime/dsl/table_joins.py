"""The joins of a table: with another table by key, or by a foreign key. `KTable` has them from here; `table_joining.py` builds them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, overload

from runtime.dsl.join_options import TableJoinedOrStr
from runtime.dsl.options import Materialized, MaterializedOrStr, NamedOrStr
from runtime.type_variables import KR, VO, VR, K_co, V_co

if TYPE_CHECKING:
    from runtime.dsl.ktable import KTable


class TableJoins(Generic[K_co, V_co]):
    """What a table can be joined with."""

    __slots__ = ()

    @overload
    def join(
        self,
        other: KTable[K_co, VO],
        joiner: Callable[[V_co, VO], VR],
        named: NamedOrStr | Materialized[K_co, VR] = None,
        materialized: MaterializedOrStr[K_co, VR] = None,
    ) -> KTable[K_co, VR]: ...

    @overload
    def join(
        self,
        other: KTable[KR, VO],
        foreign_key_extractor: Callable[[V_co], KR | None],
        joiner: Callable[[V_co, VO], VR],
        table_joined: TableJoinedOrStr | Materialized[K_co, VR] = None,
        materialized: MaterializedOrStr[K_co, VR] = None,
    ) -> KTable[K_co, VR]: ...

    @overload
    def join(
        self,
        other: KTable[KR, VO],
        foreign_key_extractor: Callable[[K_co, V_co], KR | None],
        joiner: Callable[[V_co, VO], VR],
        table_joined: TableJoinedOrStr | Materialized[K_co, VR] = None,
        materialized: MaterializedOrStr[K_co, VR] = None,
    ) -> KTable[K_co, VR]: ...

    def join(self, other: KTable, *arguments: object, **keywords: object) -> KTable:
        """Joins the rows of two tables; a row without a partner has no result. `joiner` takes `(left, right)` or `(key, left, right)`.

        By key: `join(table, joiner, named=None, materialized=None)`; both must be partitioned alike. By a foreign key:
        `join(table, foreign_key_extractor, joiner, table_joined=None, materialized=None)`, where `foreign_key_extractor(value)` or
        `(key, value)` gives the other table's key, and None leaves the row out; results have this table's keys.
        """
        return self._join(other, arguments, keywords, left=False)

    @overload
    def left_join(
        self,
        other: KTable[K_co, VO],
        joiner: Callable[[V_co, VO | None], VR],
        named: NamedOrStr | Materialized[K_co, VR] = None,
        materialized: MaterializedOrStr[K_co, VR] = None,
    ) -> KTable[K_co, VR]: ...

    @overload
    def left_join(
        self,
        other: KTable[KR, VO],
        foreign_key_extractor: Callable[[V_co], KR | None],
        joiner: Callable[[V_co, VO | None], VR],
        table_joined: TableJoinedOrStr | Materialized[K_co, VR] = None,
        materialized: MaterializedOrStr[K_co, VR] = None,
    ) -> KTable[K_co, VR]: ...

    @overload
    def left_join(
        self,
        other: KTable[KR, VO],
        foreign_key_extractor: Callable[[K_co, V_co], KR | None],
        joiner: Callable[[V_co, VO | None], VR],
        table_joined: TableJoinedOrStr | Materialized[K_co, VR] = None,
        materialized: MaterializedOrStr[K_co, VR] = None,
    ) -> KTable[K_co, VR]: ...

    def left_join(self, other: KTable, *arguments: object, **keywords: object) -> KTable:
        """As `join`, but a row of this table without a partner is joined with None."""
        return self._join(other, arguments, keywords, left=True)

    def outer_join(
        self,
        other: KTable[K_co, VO],
        joiner: Callable[[V_co | None, VO | None], VR],
        named: NamedOrStr | Materialized[K_co, VR] = None,
        materialized: MaterializedOrStr[K_co, VR] = None,
    ) -> KTable[K_co, VR]:
        """As `left_join` by key, but a row of the other table without a partner is joined with None, too."""
        from runtime.dsl.ktable import KTable
        from runtime.dsl.table_joining import join_tables

        assert isinstance(self, KTable)
        return join_tables(self, other, joiner, named, materialized, of_left=True, of_right=True)

    def _join(self, other: KTable, arguments: tuple[object, ...], keywords: dict[str, object], *, left: bool) -> KTable:
        from runtime.dsl.foreign_joining import join_foreign
        from runtime.dsl.ktable import KTable
        from runtime.dsl.table_joining import join_tables

        assert isinstance(self, KTable)
        foreign = "foreign_key_extractor" in keywords or (arguments and "joiner" in keywords) or (arguments[1:] and callable(arguments[1]))
        # The overloads say what the arguments are.
        if foreign:
            return join_foreign(self, other, *arguments, left_join=left, **keywords)  # type: ignore[arg-type]
        return join_tables(self, other, *arguments, of_left=left, of_right=False, **keywords)  # type: ignore[arg-type]
