"""Joins of two tables.

By their keys (Kafka Streams' `KTableKTableInnerJoin`, `…LeftJoin`, `…RightJoin`, `…OuterJoin`, `…JoinMerger`): a change of a row of either
table is joined with the current row of the other table. There is a node for each side, and one that merges both and stores the result if it
has a store. A result has the larger of the two rows' timestamps. Changes with a result:

    inner                      those whose key has a row on the other side; deleting either row deletes the result
    left, on the left side     all; joined with None if there is no right row
    left, on the right side    as inner, but deleting the right row leaves the left one joined with None
    outer                      all; joined with None if the other row is missing; deleting the last of both deletes the result

An out-of-order change of a versioned table is dropped and counted (KIP-914).

By a foreign key (KIP-213; Kafka Streams' `SubscriptionSendProcessorSupplier` and others of `foreignkeyjoin`): the right row of a left row
is usually in another partition, so the two sides communicate over two topics:

    left table ─► send ══ subscriptions ══► receive ─► respond ─┐
                                               │ store          ├══ responses ══► resolve ─► result
                                right table ─► notify ──────────┘                    └ reads the left table

A left row subscribes to the right row of its foreign key, in a store beside the right table. It gets a response at once, and another one
whenever the right row changes. The left row may change in the meantime, and responses of two partitions may arrive in any order. So a
subscription carries the hash of the left row, its responses repeat it, and a response with an outdated hash is dropped and counted.

`Instruction` says what a change of the left row requests. An inner join requests nothing if the key had no result and gets none. But the
left side does not know whether the old foreign key had a match, so there may be a tombstone for a key without a result, as in Kafka
Streams.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar, cast

from penstock.runtime.model.record import Change, OutOfOrder, ValueAndTimestamp
from penstock.runtime.operators.base import OperatorSupplier, of_changes
from penstock.runtime.operators.context import Forward, LookUp, NodeContext, RowGetter
from penstock.runtime.operators.materialized import entries_of, key_bytes, materialize
from penstock.runtime.operators.mistakes import dropping
from penstock.runtime.serdes.internal import Instruction, Response, Subscription, foreign_prefix, primary_key_of, written
from penstock.runtime.serdes.murmur import hash128
from penstock.runtime.serdes.serde import Serde, Serializer, resolved_serde
from penstock.runtime.stores.expiring import StagedExpiringStore
from penstock.runtime.stores.key_value import StagedKeyValueStore

Joiner = Callable[..., object]
"""(left, right), or (key, left, right) with `with_key`."""
JoinOne = Callable[[object, object, object], object]
"""(key, this side's value, the other side's value) -> result."""


@dataclass(frozen=True, slots=True)
class TableJoin(OperatorSupplier):
    """One side of a join of two tables. Its parent is this side's table; `other` is the node of the other table.

    `left`: this is the left side. `keeps_this`: a row of this side without a match is a result; `keeps_other`: the same for the other side.
    `versioned`: this side's table is versioned.
    """

    other: str
    joiner: Joiner
    left: bool
    keeps_this: bool = False
    keeps_other: bool = False
    versioned: bool = False
    with_key: bool = False

    def wants_old(self, wanted_below: bool) -> bool:
        return wanted_below or self.keeps_this

    def can_send_old(self, parent_can: bool) -> bool:
        return parent_can

    def _join_one(self) -> JoinOne:
        joiner = self.joiner
        if self.left:
            return joiner if self.with_key else lambda key, this, other: joiner(this, other)
        return (lambda key, this, other: joiner(key, other, this)) if self.with_key else lambda key, this, other: joiner(other, this)

    def build(self, context: NodeContext, forward: Forward) -> Forward:
        get, drop = context.rows(self.other), dropping(context)
        join_one, keeps_this, keeps_other = self._join_one(), self.keeps_this, self.keeps_other
        send_old, versioned = context.send_old, self.versioned

        def join(key: object, change: Change, timestamp: int) -> None:
            if key is None or (versioned and type(change) is OutOfOrder):
                drop(key)
                return
            new, old = change
            row = get(key, None)
            if row is None:
                if not keeps_this or (new is None and old is None):
                    return
                other, at, present = None, timestamp, False
            else:
                other, at, present = row[0], max(row[1], timestamp), keeps_other
            joined = join_one(key, new, other) if present or new is not None else None
            before = join_one(key, old, other) if send_old and (present or old is not None) else None
            forward(key, Change(joined, before), at)

        return of_changes(join)

    def row_getter(self, context: NodeContext, parent: RowGetter | None) -> RowGetter:
        assert parent is not None, context.name
        this, other, join_one = parent, context.rows(self.other), self._join_one()
        keeps_this, keeps_other = self.keeps_this, self.keeps_other

        def get(key: object, as_of: int | None) -> tuple[object, int] | None:
            mine, theirs = this(key, None), other(key, None)
            if (mine is None and (theirs is None or not keeps_other)) or (theirs is None and not keeps_this):
                return None
            value, timestamp = mine or (None, -1)
            other_value, other_timestamp = theirs or (None, -1)
            joined = join_one(key, value, other_value)
            return None if joined is None else (joined, max(timestamp, other_timestamp))

        return get


@dataclass(frozen=True, slots=True)
class TableJoinMerge(OperatorSupplier):
    """The result table of a join of two tables: with a store, or computed from both tables when it is read."""

    store_name: str | None = None

    def wants_old(self, wanted_below: bool) -> bool:
        return wanted_below

    def can_send_old(self, parent_can: bool) -> bool:
        return parent_can or self.store_name is not None

    def build(self, context: NodeContext, forward: Forward) -> Forward:
        return forward if self.store_name is None else self._build_stored(context, forward, self.store_name)

    def _build_stored(self, context: NodeContext, forward: Forward, store_name: str) -> Forward:
        to_bytes, load, update, value_of, _, emit, store = materialize(context, forward, store_name)
        task, expires = context.task, isinstance(store, StagedExpiringStore)

        def merge(key: object, change: Change, timestamp: int) -> None:
            raw = to_bytes(key)
            entry, (new, old) = load(raw), change
            if expires and emit is not None:  # the tables above still have a row whose result has expired here
                old = value_of(entry)
            update(raw, key, entry, new, timestamp, task.headers)
            if emit is not None:
                emit(key, new, old, timestamp)

        return of_changes(merge)

    def row_getter(self, context: NodeContext, parent: RowGetter | None) -> RowGetter:
        assert parent is not None, context.name
        return parent


Extractor = Callable[..., object]
"""(value), or (key, value) with `with_key`, of a left row -> its foreign key, or None."""


_Message = TypeVar("_Message", Subscription, Response)


def _of_messages(function: Callable[[object, _Message, int], None]) -> Forward:
    """Return the function of a node whose values are messages of a foreign-key join. (A cast for type checkers.)"""
    return cast(Forward, function)


def _resolved(serde: Serde | None, default: Serde | None, what: str, node: str) -> Serde:
    return resolved_serde(serde, default, what, f"node {node}")


@dataclass(frozen=True, slots=True)
class SubscriptionSend(OperatorSupplier):
    """Turns changes of the left table into subscriptions, keyed by foreign key.

    `topic` is the subscription topic without the application's id. An inner join drops and counts rows without a foreign key.
    """

    extractor: Extractor
    with_key: bool
    left: bool
    foreign_key: Serde | None
    value: Serde | None
    topic: str
    versioned: bool

    def resolved(self, node: str, default_key: Serde | None, default_value: Serde | None) -> OperatorSupplier:
        key, value = _resolved(self.foreign_key, default_key, "key", node), _resolved(self.value, default_value, "value", node)
        return replace(self, foreign_key=key, value=value)

    def wants_old(self, wanted_below: bool) -> bool:
        return True

    def build(self, context: NodeContext, forward: Forward) -> Forward:
        task, extract, versioned = context.task, self.extractor, self.versioned
        partition, drop = task.task_id.partition, task.dropped.add
        pseudo_topic = f"{task.application_id}-{self.topic}"
        write_foreign = cast(Serde, self.foreign_key).serializer(f"{pseudo_topic}-fk", lambda: task.headers)
        row_hash = _hasher(cast(Serde, self.value), pseudo_topic, context)
        with_key, subscribe = self.with_key, _left_instructions if self.left else _inner_instructions

        def foreign_key_of(key: object, value: object) -> object:
            if value is None:
                return None
            return extract(key, value) if with_key else extract(value)

        def send(key: object, change: Change, timestamp: int) -> None:
            if versioned and type(change) is OutOfOrder:
                drop()
                return
            new, old = change
            if new is None and old is None:
                return
            old_key, new_key = foreign_key_of(key, old), foreign_key_of(key, new)
            if new is not None and new_key is None and subscribe is _inner_instructions:
                drop()
            moved = old_key is not None and (new_key is None or write_foreign(new_key) != write_foreign(old_key))
            hashed = None if new is None else row_hash(new)
            for foreign_key, instruction in subscribe(new, old_key, new_key, moved):
                forward(foreign_key, Subscription(hashed, instruction, key, partition), timestamp)

        return of_changes(send)


_Requests = list[tuple[object, Instruction]]
"""Foreign keys, each with its instruction."""


def _inner_instructions(new: object, old_key: object, new_key: object, moved: bool) -> _Requests:
    """Return the instructions of an inner join. `moved`: the row had another foreign key, whose subscription must be removed."""
    if new is None or new_key is None:
        return [(old_key, Instruction.DELETE_KEY_AND_PROPAGATE)] if old_key is not None else []
    if not moved:
        return [(new_key, Instruction.PROPAGATE_ONLY_IF_FK_VAL_AVAILABLE)]
    return [(old_key, Instruction.DELETE_KEY_NO_PROPAGATE), (new_key, Instruction.PROPAGATE_NULL_IF_NO_FK_VAL_AVAILABLE)]


def _left_instructions(new: object, old_key: object, new_key: object, moved: bool) -> _Requests:
    """Return the instructions of a left join. Every change gets a response, also one without a foreign key: it always has a result."""
    leave: _Requests = [(old_key, Instruction.DELETE_KEY_NO_PROPAGATE)] if moved else []
    return [*leave, (new_key, Instruction.PROPAGATE_NULL_IF_NO_FK_VAL_AVAILABLE)]


def _hasher(value: Serde, pseudo_topic: str, context: NodeContext) -> Callable[[object], bytes]:
    """Return a function that hashes a left row: the bytes that its serde writes for the topic `<subscription topic>-vh`."""
    task = context.task
    write = value.serializer(f"{pseudo_topic}-vh", lambda: task.headers)
    return lambda row: hash128(written(write(row)))


@dataclass(frozen=True, slots=True)
class _SubscriptionStoreOperator(OperatorSupplier):
    """Base of the operators that use the store of subscriptions."""

    store_name: str
    foreign_key: Serde | None
    primary_key: Serde | None
    topic: str

    def resolved(self, node: str, default_key: Serde | None, default_value: Serde | None) -> OperatorSupplier:
        foreign, primary = (_resolved(serde, default_key, "key", node) for serde in (self.foreign_key, self.primary_key))
        return replace(self, foreign_key=foreign, primary_key=primary)

    def _store(self, context: NodeContext) -> StagedKeyValueStore:
        store = context.engine_store(self.store_name)
        assert isinstance(store, StagedKeyValueStore), self.store_name
        return store

    def _foreign(self, context: NodeContext) -> Serializer:
        task = context.task
        return cast(Serde, self.foreign_key).serializer(f"{task.application_id}-{self.topic}-fk", lambda: task.headers)


@dataclass(frozen=True, slots=True)
class SubscriptionReceive(_SubscriptionStoreOperator):
    """Stores subscriptions and forwards them."""

    def build(self, context: NodeContext, forward: Forward) -> Forward:
        task, store, write_foreign = context.task, self._store(context), self._foreign(context)
        stage, drop = store.stage, task.dropped.add
        write_primary = cast(Serde, self.primary_key).serializer(f"{task.application_id}-{self.topic}-pk", lambda: task.headers)
        deletions = (Instruction.DELETE_KEY_AND_PROPAGATE, Instruction.DELETE_KEY_NO_PROPAGATE)

        def receive(foreign_key: object, subscription: Subscription, timestamp: int) -> None:
            instruction = subscription.instruction
            if foreign_key is None and instruction is not Instruction.PROPAGATE_NULL_IF_NO_FK_VAL_AVAILABLE:
                drop()
                return
            if foreign_key is not None:
                raw = foreign_prefix(written(write_foreign(foreign_key))) + written(write_primary(subscription.primary_key))
                stage(raw, None if instruction in deletions else subscription, timestamp)
            forward(foreign_key, subscription, timestamp)

        return _of_messages(receive)

    def keeps_key(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class SubscriptionRespond(OperatorSupplier):
    """Responds to a subscription with the current row of the right table (the node `other`)."""

    other: str

    def build(self, context: NodeContext, forward: Forward) -> Forward:
        rows = context.rows(self.other)

        def respond(foreign_key: object, subscription: Subscription, timestamp: int) -> None:
            row_hash, instruction, primary_key, partition = subscription
            if instruction is Instruction.DELETE_KEY_NO_PROPAGATE:
                return
            row = None if foreign_key is None else rows(foreign_key, None)
            if row is None and instruction is Instruction.PROPAGATE_ONLY_IF_FK_VAL_AVAILABLE:
                return
            right = None if row is None or instruction is Instruction.DELETE_KEY_AND_PROPAGATE else row[0]
            forward(primary_key, Response(row_hash, right, partition), timestamp if row is None else max(timestamp, row[1]))

        return _of_messages(respond)

    def look_up(self, context: NodeContext) -> LookUp | None:
        return entries_of(context, context.store_of(self.other))


@dataclass(frozen=True, slots=True)
class SubscriberNotify(_SubscriptionStoreOperator):
    """Sends a change of a right row to all its subscribers."""

    versioned: bool

    def wants_old(self, wanted_below: bool) -> bool:
        return True

    def build(self, context: NodeContext, forward: Forward) -> Forward:
        task, store, write_foreign, versioned = context.task, self._store(context), self._foreign(context), self.versioned
        scan, drop = store.prefix_scan, task.dropped.add
        read_primary = cast(Serde, self.primary_key).deserializer(f"{task.application_id}-{self.topic}-pk", lambda: task.headers)

        def notify(key: object, change: Change, timestamp: int) -> None:
            if key is None or (versioned and type(change) is OutOfOrder):
                drop()
                return
            for raw, stored in scan(foreign_prefix(written(write_foreign(key)))):
                subscription = cast(Subscription, cast(ValueAndTimestamp, stored).value)
                response = Response(subscription.hash, change[0], subscription.partition)
                forward(read_primary(primary_key_of(cast(bytes, raw))), response, timestamp)

        return of_changes(notify)


def _stored_row(context: NodeContext, table: str) -> Callable[[object, bytes | None], bool]:
    """Return a function that says whether the committed bytes of a left row have this hash, and are the row. An earlier version of the
    program, or another process, may have written the row as other bytes than this one would: with a field less, or its sets in another
    order. (Kafka Streams drops the response then, and every later one, until the left row is written again.)"""
    name = context.store_of(table)
    store = None if name is None else context.task.store(name)
    if not isinstance(store, StagedKeyValueStore):
        return lambda key, hashed: False
    to_bytes = key_bytes(store)

    def is_stored(key: object, hashed: bytes | None) -> bool:
        raw = to_bytes(key)
        if hashed is None or store.entry(raw).uncommitted:
            return False
        [(_, committed, _)] = store.committed_records([(raw, None, 0)])
        return committed is not None and hash128(committed) == hashed

    return is_stored


@dataclass(frozen=True, slots=True)
class ResponseResolve(OperatorSupplier):
    """Joins a response with the current left row (of the node `table`), if that still is the row that subscribed."""

    table: str
    joiner: Joiner
    with_key: bool
    left: bool
    value: Serde | None
    topic: str

    def resolved(self, node: str, default_key: Serde | None, default_value: Serde | None) -> OperatorSupplier:
        return replace(self, value=_resolved(self.value, default_value, "value", node))

    def build(self, context: NodeContext, forward: Forward) -> Forward:
        task, rows, joiner, with_key, left = context.task, context.rows(self.table), self.joiner, self.with_key, self.left
        row_hash, drop = _hasher(cast(Serde, self.value), f"{task.application_id}-{self.topic}", context), task.dropped.add
        is_stored = _stored_row(context, self.table)

        def resolve(key: object, response: Response, timestamp: int) -> None:
            subscribed, other, _ = response
            row = rows(key, None)
            if subscribed != (None if row is None else row_hash(row[0])) and not is_stored(key, subscribed):
                drop()
            elif row is None or (other is None and not left):
                forward(key, None, timestamp)
            else:
                forward(key, joiner(key, row[0], other) if with_key else joiner(row[0], other), timestamp)

        return _of_messages(resolve)

    def look_up(self, context: NodeContext) -> LookUp | None:
        return entries_of(context, context.store_of(self.table))
