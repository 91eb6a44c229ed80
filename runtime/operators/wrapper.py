"""The hook around every processor, `processor.wrapper.class` (KIP-1112).

A user's processor is wrapped when the topology gets its configuration. An operator of the DSL has no processor; it gets one here, around
its compiled function, so that a wrapper sees each of its records and what it forwards. Without a wrapper nothing of this is in the chain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import copy
from functools import partial

from penstock.runtime.model.error_details import at_line
from penstock.runtime.model.errors import TopologyError
from penstock.runtime.model.record import Headers, Record
from penstock.runtime.model.user_errors import described, pass_ctrl_c
from penstock.runtime.operators.base import OperatorSupplier
from penstock.runtime.operators.context import Forward, NodeContext
from penstock.runtime.operators.processor import (
    AnyFixedKeyProcessor,
    ConnectedStoreProvider,
    FixedKeyProcessorSupplier,
    MakesFixedKeyProcessor,
    MakesProcessor,
    Processor,
    ProcessorContext,
    ProcessorSupplier,
    UserProcessor,
)
from penstock.runtime.stores.base import StateStore, StoreBuilder

PROCESSOR_WRAPPER = "processor.wrapper.class"


class ProcessorWrapper:
    """Base of the class that `processor.wrapper.class` names. Its methods get the supplier of each processor and return the one to use, by
    default the same.

    Operators of the DSL are processors too. On the edges of tables their values are changes, with `new` and `old`. Global tables have none.
    The stores of a returned supplier (`stores()`) are added to the topology and connected; those of operators of the DSL are not shown.
    """

    def configure(self, configs: Mapping[str, object]) -> None:
        """Called once before the first use."""

    def wrap_processor_supplier(self, processor_name: str, processor_supplier: ProcessorSupplier) -> MakesProcessor:
        """Return the supplier for a processor, called once per node, and once per node and task for operators of the DSL."""
        return processor_supplier

    def wrap_fixed_key_processor_supplier(
        self, processor_name: str, processor_supplier: FixedKeyProcessorSupplier
    ) -> MakesFixedKeyProcessor:
        """Return the supplier for a processor of `process_values`; called like `wrap_processor_supplier`."""
        return processor_supplier


def wrapped_user_processor(wrapper: ProcessorWrapper, name: str, supplier: UserProcessor) -> UserProcessor:
    """Return a user's processor as the wrapper wants it. Raises TopologyError if it returns no supplier, or raises."""
    try:
        found = _wrapped(wrapper, name, supplier)
    except BaseException as error:
        pass_ctrl_c(error, PROCESSOR_WRAPPER)
        wanted = f"{PROCESSOR_WRAPPER} {type(wrapper).__qualname__}"
        raise TopologyError(f"{wanted} failed for processor {name}{at_line(error)}: {described(error)}") from error
    return _checked(name, found, fixed_key=supplier.fixed_key)


def _wrapped(wrapper: ProcessorWrapper, name: str, supplier: UserProcessor) -> MakesProcessor | MakesFixedKeyProcessor:
    given = supplier.supplier
    if supplier.fixed_key:
        fixed = given if isinstance(given, FixedKeyProcessorSupplier) else _FixedKeySupplied(given)
        return wrapper.wrap_fixed_key_processor_supplier(name, fixed)
    return wrapper.wrap_processor_supplier(name, given if isinstance(given, ProcessorSupplier) else _Supplied(given))


def wrapped_operator(wrapper: ProcessorWrapper, operator: OperatorSupplier, context: NodeContext, forward: Forward) -> Forward:
    """Build an operator of the DSL inside of the processor that the wrapper returns for it."""
    inner = _OperatorProcessor(operator, context, forward)
    return _checked(context.name, wrapper.wrap_processor_supplier(context.name, _Supplied(lambda: inner))).build(context, forward)


def _checked(name: str, found: MakesProcessor | MakesFixedKeyProcessor, *, fixed_key: bool = False) -> UserProcessor:
    if not callable(found):
        raise TopologyError(f"{PROCESSOR_WRAPPER} returned {found!r} for processor {name}: expected a supplier of processors")
    return UserProcessor(found, fixed_key)


class _Supplied(ProcessorSupplier):
    """A callable or class as a supplier, with its stores."""

    def __init__(self, make: Callable[[], object]) -> None:
        self._make = make

    def get(self) -> Processor:
        return self._make()  # type: ignore[return-value]  # checked where it is built

    def stores(self) -> Iterable[StoreBuilder[StateStore]]:
        return self._make.stores() if isinstance(self._make, ConnectedStoreProvider) else ()


class _FixedKeySupplied(FixedKeyProcessorSupplier):
    """A callable or class as a supplier for `process_values`, with its stores."""

    def __init__(self, make: Callable[[], object]) -> None:
        self._make = make

    def get(self) -> AnyFixedKeyProcessor:
        return self._make()  # type: ignore[return-value]  # checked where it is built

    def stores(self) -> Iterable[StoreBuilder[StateStore]]:
        return self._make.stores() if isinstance(self._make, ConnectedStoreProvider) else ()


class _OperatorProcessor(Processor[object, object, object, object]):
    """An operator as a processor. It forwards to the context that it is initialised with, which may be the wrapper's.

    What it forwards at once has the headers of the record that the wrapper passed on; what it keeps, in a cache or a buffer, those that the
    wrapper got, as in Kafka Streams.
    """

    def __init__(self, operator: OperatorSupplier, context: NodeContext, forward: Forward) -> None:
        self._task = context.task
        self._context: ProcessorContext[object, object] = ProcessorContext(context, forward)
        self._given: Headers = []
        self._got: tuple[Headers, int] | None = None
        """Headers and offset of the task's context while a record is processed."""
        own = copy(context)
        own.plain_forward = None
        own.children = {child: partial(self._forward, child) for child in context.children}
        self._process = operator.build(own, partial(self._forward, None))

    def _forward(self, child: str | None, key: object, value: object, timestamp: int) -> None:
        headers, offset = self._task.headers, self._task.offset
        if self._got is not None and headers is self._got[0] and offset == self._got[1]:
            headers = self._given
        self._context.forward(Record(key, value, timestamp, list(headers or ())), child)

    def init(self, context: ProcessorContext[object, object], /) -> None:
        self._context = context

    def process(self, record: Record[object, object], /) -> None:
        task, before = self._task, (self._given, self._got, self._task.headers)
        if task.headers is None:
            task.headers = []  # an object of this record's own, unlike None
        self._given, self._got = record.headers, (task.headers, task.offset)
        try:
            self._process(record.key, record.value, record.timestamp)
        finally:
            self._given, self._got, task.headers = before
