"""A value or key that a serde cannot write: the error names store, serde and value."""

import pytest

from penstock import (
    Consumed,
    Materialized,
    ProcessingError,
    Processor,
    ProcessorContext,
    Record,
    Stores,
    StreamsBuilder,
    StreamsError,
    Suppressed,
    TimeWindows,
    serdes,
)
from penstock.serdes import Serde
from penstock.testing import TopologyTestDriver

# mypy: disable-error-code="operator, return-value, arg-type"
# These tests show what happens without a type checker.

TEXT = Consumed(serdes.STRING, value=serdes.STRING)


def pipe(builder: StreamsBuilder) -> None:
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("in", serdes.STRING, serdes.STRING).pipe_input("key", "value", 0)


@pytest.mark.parametrize(("serde", "given"), [(serdes.STRING, 1), (serdes.JSON, 1j), (serdes.STRING, b"raw"), (serdes.LONG, "1")])
@pytest.mark.parametrize("versioned", [False, True])
def test_an_unwritable_value_of_an_aggregate_is_named(serde: Serde, given: object, versioned: bool) -> None:
    builder = StreamsBuilder()
    store = Stores.in_memory_versioned_key_value_store("rows", 1_000) if versioned else "rows"
    builder.stream("in", TEXT).group_by_key().aggregate(lambda: None, lambda key, value, total: given, Materialized(store, value=serde))
    with pytest.raises(
        StreamsError, match=rf"store rows: its serde {serde.name} cannot write the value .* \(of type {type(given).__name__}\)"
    ):
        pipe(builder)


def test_an_unwritable_value_names_its_node_where_it_is_known() -> None:
    builder = StreamsBuilder()
    windows = builder.stream("in", TEXT).group_by_key().windowed_by(TimeWindows.of_size_with_no_grace(10))
    windows.aggregate(lambda: 0, lambda key, value, total: total + 1, "sum", Materialized("rows", value=serdes.STRING))
    with pytest.raises(
        ProcessingError, match=r"node sum, record in-0@0: .*store rows: .* value 1 \(of type int\).*Materialized\(value=\.\.\.\)"
    ):
        pipe(builder)


def test_an_unwritable_key_of_a_processors_put_is_named() -> None:
    class Putting(Processor[str, str, str, str]):
        def init(self, context: ProcessorContext[str, str]) -> None:
            self.rows = context.get_state_store("rows")

        def process(self, record: Record[str, str]) -> None:
            self.rows.put(5, record.value)

    builder = StreamsBuilder()
    builder.add_state_store(Stores.key_value_store_builder(Stores.in_memory_key_value_store("rows"), serdes.STRING, serdes.STRING))
    builder.stream("in", TEXT).process(Putting, "rows")
    with pytest.raises(StreamsError, match=r"store rows: its serde STRING cannot write the key 5 \(of type int\)"):
        pipe(builder)


@pytest.mark.parametrize("serde", [serdes.STRING, serdes.JSON])
def test_an_unwritable_value_in_a_suppression_buffer_is_named(serde: Serde) -> None:
    builder = StreamsBuilder()
    table = builder.table("in", TEXT).map_values(lambda value: 1j).filter(lambda key, value: True, Materialized(None, value=serde))
    table.suppress(Suppressed.until_time_limit(10, Suppressed.BufferConfig.unbounded()).with_name("few"))
    with pytest.raises(StreamsError, match=rf"store few-store: its serde {serde.name} cannot write the value 1j \(of type complex\)"):
        pipe(builder)
