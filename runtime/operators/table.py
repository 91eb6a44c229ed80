"""Operators on tables that compute one row from one row (Kafka Streams' `KTableSource`, `KTableFilter`, `KTableMapValues`,
`KTableRepartitionMap`, and the node of `toStream`).

Inputs and outputs are `Change`s. A derived table without its own store is computed from its parent when a join reads it (value getters). If
old values are available, a filter forwards nothing for rows that neither passed before nor pass now. If they are not (a source table that
had no store when the filter was defined), it forwards a tombstone for each row that does not pass, as Kafka Streams does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.runtime.model.record import Change, OutOfOrder
from penstock.runtime.operators.base import OperatorSupplier, of_changes
from penstock.runtime.operators.context import Forward, LookUp, NodeContext, RowGetter, ValueGetter
from penstock.runtime.operators.materialized import entries_of, materialize, store_getter
from penstock.runtime.operators.mistakes import dropping
from penstock.runtime.operators.stateless import as_pair

Compute = Callable[[object, object], object]
"""(key, value) -> the row's value in the derived table. Never called with None as the value."""


@dataclass(frozen=True, slots=True)
class TableSource(OperatorSupplier):
    """The head of a table: turns a topic's records into changes. Records without a key are dropped and counted.

    With `only_changes`, an update that changes nothing (same bytes, not older) is dropped (KIP-557), and so is a tombstone for an absent
    key. By default both are forwarded, as in Kafka Streams since KAFKA-12508; a cache drops such a tombstone.
    """

    store_name: str | None
    only_changes: bool = False

    def can_send_old(self, parent_can: bool) -> bool:
        return self.store_name is not None

    def build(self, context: NodeContext, forward: Forward) -> Forward:
        if self.store_name is None:
            return _unmaterialized_source(context, forward)
        table = materialize(context, forward, self.store_name)
        to_bytes, load, update, value_of, objects, emit, store = table
        value_to_bytes, only_changes = store.value_to_bytes, self.only_changes
        task, drop, send_old = context.task, dropping(context), context.send_old

        def update_table(key: object, value: object, timestamp: int) -> None:
            if key is None:
                drop(key)
                return
            raw = to_bytes(key)
            entry = load(raw)
            stored = entry.value
            if not only_changes:
                pass
            elif stored is None:
                if value is None:
                    return
            elif value is not None and timestamp >= entry.timestamp:
                before = value_to_bytes(stored) if objects else stored
                if before == value_to_bytes(value):
                    return
            if emit is None:
                update(raw, key, entry, value, timestamp, task.headers)
            else:
                old = (stored if objects else value_of(entry)) if send_old else None
                update(raw, key, entry, value, timestamp, task.headers)
                emit(key, value, old, timestamp)

        return update_table

    def value_getter(self, context: NodeContext, parent: ValueGetter | None) -> ValueGetter:
        if self.store_name is None:
            raise TypeError(f"table {context.name} is read by a join but has no store")
        return store_getter(context, self.store_name)

    def keeps_key(self) -> bool:
        return True

    def look_up(self, context: NodeContext) -> LookUp | None:
        return entries_of(context, self.store_name)


def _unmaterialized_source(context: NodeContext, forward: Forward) -> Forward:
    drop, plain = dropping(context), context.plain_forward

    def to_change(key: object, value: object, timestamp: int) -> None:
        if key is None:
            drop(key)
        elif plain is not None:
            plain(key, value, timestamp)
        else:
            forward(key, Change(value, None), timestamp)

    return to_change


class _DerivedTable(OperatorSupplier):
    """Base of tables whose rows are computed one by one from their parent's rows."""

    __slots__ = ()

    def _compute(self) -> Compute:
        raise NotImplementedError

    def _store_name(self) -> str | None:
        raise NotImplementedError

    def _keeps_silent(self, context: NodeContext) -> bool:
        """Without a cache: return True if nothing is forwarded for a row that was absent and stays absent."""
        return False

    def can_send_old(self, parent_can: bool) -> bool:
        return self._store_name() is not None or parent_can

    def build(self, context: NodeContext, forward: Forward) -> Forward:
        store_name = self._store_name()
        return self._build_computed(context, forward) if store_name is None else self._build_stored(context, forward, store_name)

    def _build_stored(self, context: NodeContext, forward: Forward, store_name: str) -> Forward:
        to_bytes, load, update, value_of, objects, emit, _ = materialize(context, forward, store_name)
        compute, task = self._compute(), context.task
        quiet = emit is None or self._keeps_silent(context)

        def store_computed(key: object, change: Change, timestamp: int) -> None:
            value = change[0]
            new = None if value is None else compute(key, value)
            raw = to_bytes(key)
            entry = load(raw)
            if new is None and entry.value is None and quiet:
                return
            old = None if emit is None else entry.value if objects else value_of(entry)
            update(raw, key, entry, new, timestamp, task.headers)
            if emit is not None:
                emit(key, new, old, timestamp)

        return of_changes(store_computed)

    def _build_computed(self, context: NodeContext, forward: Forward) -> Forward:
        raise NotImplementedError

    def build_plain(self, context: NodeContext, forward: Forward) -> Forward | None:
        if context.gets_old or self._store_name() is not None:
            return None
        compute, plain = self._compute(), context.plain_forward

        def computed(key: object, value: object, timestamp: int) -> None:
            new = None if value is None else compute(key, value)
            if plain is not None:
                plain(key, new, timestamp)
            else:
                forward(key, Change(new, None), timestamp)

        return computed

    def value_getter(self, context: NodeContext, parent: ValueGetter | None) -> ValueGetter:
        store_name = self._store_name()
        if store_name is not None:
            return store_getter(context, store_name)
        if parent is None:
            raise TypeError(f"table {context.name} has neither a store nor a table above it")
        read, compute = parent, self._compute()

        def get_computed(key: object) -> object:
            value = read(key)
            return None if value is None else compute(key, value)

        return get_computed

    def row_getter(self, context: NodeContext, parent: RowGetter | None) -> RowGetter:
        assert parent is not None, context.name
        read, compute = parent, self._compute()

        def get_computed(key: object, as_of: int | None) -> tuple[object, int] | None:
            row = read(key, as_of)
            value = None if row is None else compute(key, row[0])
            return None if row is None or value is None else (value, row[1])

        return get_computed


@dataclass(frozen=True, slots=True)
class TableFilter(_DerivedTable):
    """`filter` and (negated) `filter_not` of a table; `predicate(key, value)`. A row that does not pass is absent."""

    predicate: Callable[..., object]
    store_name: str | None = None
    negate: bool = False
    versioned: bool = False
    """True if the parent table is versioned."""
    eager: bool = True
    """True: request old values from the parent always; False: only if a child wants them."""

    def _store_name(self) -> str | None:
        return self.store_name

    def _compute(self) -> Compute:
        predicate, negate = self.predicate, self.negate
        return lambda key, value: value if bool(predicate(key, value)) is not negate else None

    def _keeps_silent(self, context: NodeContext) -> bool:
        return not self.versioned and (context.send_old or (self.eager and context.gets_old))

    def wants_old(self, wanted_below: bool) -> bool:
        return wanted_below or self.eager

    def _build_computed(self, context: NodeContext, forward: Forward) -> Forward:
        compute, send_old, versioned = self._compute(), context.send_old, self.versioned
        quiet = context.gets_old and (self.eager or send_old)

        def filter_row(key: object, change: Change, timestamp: int) -> None:
            new, old = change
            new = None if new is None else compute(key, new)
            old = compute(key, old) if quiet and old is not None else None
            if versioned:  # each change is a version
                forward(key, type(change)(new, old if send_old else None), timestamp)
            elif new is not None or old is not None or not quiet:
                forward(key, Change(new, old if send_old else None), timestamp)

        return of_changes(filter_row)


@dataclass(frozen=True, slots=True)
class TableMapValues(_DerivedTable):
    """`map_values` of a table; `fn(value)`, or `fn(key, value)` if `with_key`. Tombstones are forwarded unmapped."""

    fn: Callable[..., object]
    with_key: bool = False
    store_name: str | None = None
    versioned: bool = False
    """True if the parent table is versioned."""

    def _store_name(self) -> str | None:
        return self.store_name

    def _compute(self) -> Compute:
        fn = self.fn
        return fn if self.with_key else lambda key, value: fn(value)

    def wants_old(self, wanted_below: bool) -> bool:
        return wanted_below and self.store_name is None

    def _build_computed(self, context: NodeContext, forward: Forward) -> Forward:
        compute, send_old, versioned = self._compute(), context.send_old, self.versioned

        def map_row(key: object, change: Change, timestamp: int) -> None:
            new, old = change
            new = None if new is None else compute(key, new)
            old = compute(key, old) if send_old and old is not None else None
            forward(key, type(change)(new, old) if versioned else Change(new, old), timestamp)

        return of_changes(map_row)


@dataclass(frozen=True, slots=True)
class ToStream(OperatorSupplier):
    """`to_stream`: each change becomes a record with the new value; `key_fn(key, value)` gives it another key."""

    key_fn: Callable[..., object] | None = None

    def build(self, context: NodeContext, forward: Forward) -> Forward:
        key_fn = self.key_fn

        def to_stream(key: object, change: Change, timestamp: int) -> None:
            forward(key, change[0], timestamp)

        if key_fn is None:
            return of_changes(to_stream)
        select = key_fn

        def to_stream_with_key(key: object, change: Change, timestamp: int) -> None:
            value = change[0]
            forward(select(key, value), value, timestamp)

        return of_changes(to_stream_with_key)

    def build_plain(self, context: NodeContext, forward: Forward) -> Forward | None:
        key_fn = self.key_fn
        if key_fn is None:
            return forward
        select = key_fn

        def select_key(key: object, value: object, timestamp: int) -> None:
            forward(select(key, value), value, timestamp)

        return select_key


@dataclass(frozen=True, slots=True)
class TableGroupBy(OperatorSupplier):
    """`group_by` of a table: forwards changes of rows as changes of groups.

    `selector(key, value)` returns the pair of group and value; None, or a pair that contains None, leaves the row out. The removal from the
    old group is forwarded before the addition to the new one. If both are the same group, they are one change, so that the aggregate
    subtracts and adds in one step (KIP-904). Out-of-order changes of a versioned table are not forwarded (KIP-914).
    """

    selector: Callable[..., tuple[object, object] | None]
    versioned: bool = False

    def wants_old(self, wanted_below: bool) -> bool:
        return True

    def can_send_old(self, parent_can: bool) -> bool:
        return parent_can

    def build(self, context: NodeContext, forward: Forward) -> Forward:
        select, versioned = self.selector, self.versioned

        def pair(key: object, value: object) -> tuple[object, object] | None:
            found = None if value is None else select(key, value)
            if found is not None and type(found) is not tuple:
                found = as_pair(found, "group_by")
            return None if found is None or found[0] is None or found[1] is None else found

        def regroup(key: object, change: Change, timestamp: int) -> None:
            if versioned and type(change) is OutOfOrder:
                return
            new, old = change
            old_pair, new_pair = pair(key, old), pair(key, new)
            if old_pair is not None and new_pair is not None and old_pair[0] == new_pair[0]:
                forward(new_pair[0], Change(new_pair[1], old_pair[1]), timestamp)
                return
            if old_pair is not None:
                forward(old_pair[0], Change(None, old_pair[1]), timestamp)
            if new_pair is not None:
                forward(new_pair[0], Change(new_pair[1], None), timestamp)

        return of_changes(regroup)
