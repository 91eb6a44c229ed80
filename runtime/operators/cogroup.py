"""The table that several aggregates of one store are together (Kafka Streams' `KTablePassThrough`)."""

from __future__ import annotations

from dataclasses import dataclass

from runtime.operators.base import OperatorSupplier
from runtime.operators.context import Forward, NodeContext, ValueGetter


@dataclass(frozen=True, slots=True)
class Cogrouped(OperatorSupplier):
    """Passes on what the aggregates say; `first` is one of them."""

    first: OperatorSupplier

    @property
    def store_name(self) -> str | None:
        """The store in which the table is."""
        return getattr(self.first, "store_name", None)

    def wants_old(self, wanted_below: bool) -> bool:
        return wanted_below

    def can_send_old(self, parent_can: bool) -> bool:
        return parent_can

    def build(self, context: NodeContext, forward: Forward) -> Forward:
        return forward

    def build_plain(self, context: NodeContext, forward: Forward) -> Forward | None:
        return context.plain_forward

    def value_getter(self, context: NodeContext, parent: ValueGetter | None) -> ValueGetter:
        return self.first.value_getter(context, None)
