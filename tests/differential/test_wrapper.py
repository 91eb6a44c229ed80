"""`processor.wrapper.class` (KIP-1112): topologies of the other files, with java/Tracing.java around each processor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from penstock import FixedKeyProcessorSupplier, ProcessorContext, ProcessorSupplier, ProcessorWrapper, Record
from tests.differential import test_aggregations, test_processors, test_stateless, test_stream_joins, test_table_joins, test_tables
from tests.differential.family import as_java


class Traced:
    """Adds the name of its node to the headers of each record."""

    def __init__(self, name: str, inner: object) -> None:
        self.name, self.inner = name, inner

    def init(self, context: ProcessorContext) -> None:
        self.inner.init(context)  # type: ignore[attr-defined]  # of either kind

    def process(self, record: Record) -> None:
        self.inner.process(record.with_headers([*record.headers, ("via", self.name.encode())]))  # type: ignore[attr-defined]

    def close(self) -> None:
        self.inner.close()  # type: ignore[attr-defined]


class Tracing(ProcessorWrapper):
    def wrap_processor_supplier(self, processor_name: str, processor_supplier: ProcessorSupplier) -> Callable[[], Traced]:
        return lambda: Traced(processor_name, processor_supplier.get())

    def wrap_fixed_key_processor_supplier(self, processor_name: str, processor_supplier: FixedKeyProcessorSupplier) -> Callable[[], Traced]:
        return lambda: Traced(processor_name, processor_supplier.get())


TRACED = {"processor.wrapper.class": f"{__name__}.Tracing"}
OTHERS = (test_aggregations, test_processors, test_stateless, test_stream_joins, test_table_joins, test_tables)
LEFT_OUT = "TableJoins.versioned_tables"
"""A cached filter of a versioned table: Kafka Streams loses the headers that the wrapper of the table's source has added."""
FAMILIES = [
    replace(family, config={**family.config, **TRACED}) for module in OTHERS for family in module.FAMILIES if str(family) != LEFT_OUT
]
test_as_java = as_java(FAMILIES)
