"""A user's mistake is refused where it is made, with the node or argument and a remedy, and not at the first record."""

# mypy: disable-error-code="arg-type, call-overload, misc, return-value"
# What is held here is what happens to who does not ask a type checker.

from collections.abc import Callable

import pytest

from penstock import (
    Branched,
    Consumed,
    DeserializationError,
    EmitStrategy,
    FixedKeyProcessor,
    Joined,
    JoinWindows,
    KafkaStreams,
    KGroupedStream,
    KStream,
    KTable,
    Materialized,
    Named,
    Printed,
    ProcessingError,
    Processor,
    ProcessorContext,
    ProcessorSupplier,
    ProcessorWrapper,
    Produced,
    Record,
    Repartitioned,
    SessionWindows,
    Stores,
    StreamJoined,
    StreamsBuilder,
    StreamsConfigError,
    Suppressed,
    TimeWindows,
    Topology,
    TopologyError,
    ValueTransformerWithKey,
    serdes,
)
from penstock.testing import TopologyTestDriver

TEXT = Consumed(serdes.STRING, value=serdes.STRING)
NEAR = JoinWindows.of_time_difference_with_no_grace(5)


def stream() -> KStream[str, str]:
    return StreamsBuilder().stream("in", TEXT)


def table() -> KTable[str, str]:
    return StreamsBuilder().table("rows", TEXT)


def groups() -> KGroupedStream[str, str]:
    return stream().group_by_key()


class Passing(Processor[str, str, str, str]):
    def init(self, context: ProcessorContext[str, str]) -> None:
        self.context = context

    def process(self, record: Record[str, str]) -> None:
        self.context.forward(record)


class Passes(ProcessorSupplier[str, str, str, str]):
    def get(self) -> Passing:
        return Passing()


OPTIONS: list[tuple[Callable[[], object], str]] = [
    (lambda: StreamsBuilder().stream("in", Consumed), r"expected Consumed\(\.\.\.\), or a name alone, .*: call it, Consumed\(\.\.\.\)"),
    (lambda: StreamsBuilder().stream("in", serdes.STRING), r"expected Consumed.*: key=serdes\.STRING, value=\.\.\."),
    (lambda: StreamsBuilder().stream("in", Materialized("rows")), r"expected Consumed\(\.\.\.\), or a name alone, not Materialized"),
    (lambda: StreamsBuilder().stream(None), r"stream: a topic, several of them or a compiled pattern, not None"),
    (lambda: StreamsBuilder().stream(["one", "two", "one"], TEXT), r"source KSTREAM-SOURCE-0000000000: a topic is named twice: one, two"),
    (lambda: stream().to("out", TEXT), r"expected Produced\(\.\.\.\), or a name alone, not Consumed"),
    (lambda: stream().group_by_key(Materialized("rows")), r"expected Grouped"),
    (lambda: groups().count(Materialized), r"Materialized"),
    (lambda: stream().repartition(3), r"expected Repartitioned\(\.\.\.\), or a name alone, not 3"),
    (lambda: Repartitioned("r", partitions="3"), r"partitions is a whole number of at least 1, not '3'"),
    (lambda: Materialized("rows", caching="no"), r"Materialized: caching is True or False, not 'no'"),
    (lambda: Materialized("rows", logging="no"), r"Materialized: logging is True, False or a mapping"),
    (lambda: StreamJoined(serdes.STRING, logging=0), r"StreamJoined: logging is True, False or a mapping"),
    (lambda: StreamJoined(serdes.STRING, this_store=Stores.in_memory_key_value_store("left")), r"keeps its streams in window stores"),
    (lambda: stream().split().branch(lambda key, value: True, 5), r"expected Branched"),
    (lambda: stream().print("flights"), r"print: expected Printed\.to_sys_out\(\)"),
    (lambda: stream().print(Printed.to_sys_out), r"print: expected Printed\.to_sys_out\(\)"),
    (lambda: stream().merge(table()), r"merged with a KStream, not with KTable"),
    (lambda: groups().windowed_by(NEAR), r"windowed_by: expected windows.*not JoinWindows"),
    (lambda: groups().windowed_by(5), r"windowed_by: expected windows.*not 5"),
    (lambda: groups().windowed_by(TimeWindows), r"windowed_by: expected windows"),
    (lambda: groups().cogroup(lambda key, value, total: total).windowed_by(5), r"windowed_by: expected windows.*not 5"),
    (
        lambda: groups().windowed_by(TimeWindows.of_size_with_no_grace(5)).emit_strategy("on_window_close"),
        r"expected EmitStrategy\.on_window_close\(\) or on_window_update\(\), not 'on_window_close'",
    ),
    (
        lambda: groups().windowed_by(SessionWindows.of_inactivity_gap_with_no_grace(5)).emit_strategy(EmitStrategy.on_window_close),
        r"expected EmitStrategy\.on_window_close\(\)",
    ),
    (lambda: table().suppress(Suppressed.BufferConfig.unbounded()), r"suppress: expected Suppressed\.until_window_closes"),
    (lambda: Suppressed.until_time_limit(5, 100), r"expected a BufferConfig, .* not 100"),
    (lambda: Suppressed.BufferConfig.max_records("5"), r"a limit is a whole number and not negative, but is '5'"),
    (lambda: groups().cogroup(lambda key, value, total: total).cogroup(stream(), lambda key, value, total: total), r"KGroupedStream"),
    (
        lambda: stream().split().branch(lambda key, value: True, Branched("x", function=lambda branch: 5)).no_default_branch(),
        r"branch KSTREAM-BRANCH-0000000001x: its function makes a KStream of it, or None, not 5",
    ),
]


@pytest.mark.parametrize(("mistake", "reported"), OPTIONS)
def test_a_wrong_value_for_an_option_is_refused(mistake: Callable[[], object], reported: str) -> None:
    with pytest.raises(TopologyError, match=reported):
        mistake()


FUNCTIONS: list[tuple[Callable[[], object], str]] = [
    (lambda: StreamsBuilder().stream("in", Consumed(timestamp_extractor=5)), r"source KSTREAM-SOURCE-0000000000: a timestamp extractor"),
    (lambda: StreamsBuilder().stream("in", Consumed(timestamp_extractor=dict)), r"a timestamp extractor is a function"),
    (
        lambda: StreamsBuilder().stream("in", Consumed(timestamp_extractor=lambda record: 0)),
        r"given \(record, partition time\) and takes 1",
    ),
    (
        lambda: stream().to("out", Produced(partitioner=lambda key, value: 0)),
        r"KSTREAM-SINK-0000000001.*number of partitions\) and takes 2",
    ),
    (lambda: stream().to("out", Produced(partitioner=3)), r"node KSTREAM-SINK-0000000001: expected a function, not 3"),
    (lambda: stream().process(Passing()), r"node KSTREAM-PROCESSOR-0000000001: .*give the class Passing, or a function"),
    (lambda: stream().process_values(None), r"node KSTREAM-PROCESSVALUES-0000000001: expected something that makes processors, not None"),
    (lambda: stream().process(dict), r"the class dict has no method process"),
    (lambda: stream().process(Passes), r"the class Passes has no method process: give Passes\(\) for a supplier"),
    (lambda: stream().process(lambda record: record), r"node KSTREAM-PROCESSOR-0000000001: .* takes 1"),
    (lambda: stream().process(Passing, Stores), r"stores are connected by their names, not by <class"),
    (lambda: table().transform_values(Passing), r"node KTABLE-TRANSFORMVALUES-0000000003: the class Passing has no method transform"),
    (lambda: StreamsBuilder().add_state_store(Stores.persistent_key_value_store("rows")), r"expected a store's builder"),
]


@pytest.mark.parametrize(("mistake", "reported"), FUNCTIONS)
def test_a_callback_with_wrong_parameters_is_refused_with_its_node(mistake: Callable[[], object], reported: str) -> None:
    with pytest.raises(TopologyError, match=reported):
        mistake()


STORES: list[Callable[[], object]] = [
    lambda: Stores.key_value_store_builder("rows", serdes.STRING, serdes.STRING),
    lambda: Stores.key_value_store_builder(Stores.persistent_window_store("rows", 10, 5), serdes.STRING, serdes.STRING),
    lambda: Stores.window_store_builder(Stores.persistent_key_value_store("rows"), serdes.STRING, serdes.STRING),
    lambda: Stores.session_store_builder(Stores.persistent_key_value_store("rows"), serdes.STRING, serdes.STRING),
    lambda: Stores.versioned_key_value_store_builder(Stores.persistent_key_value_store("rows"), serdes.STRING, serdes.STRING),
    lambda: Stores.key_value_store_builder(Stores.persistent_key_value_store("rows"), "str", serdes.STRING),
    lambda: Stores.timestamped_window_store_builder(Stores.persistent_window_store("rows", 10, 5), serdes.STRING, None),
]


@pytest.mark.parametrize("mistake", STORES)
def test_a_builder_of_stores_takes_its_own_suppliers_and_serdes(mistake: Callable[[], object]) -> None:
    with pytest.raises(TypeError, match=r"expected a supplier, made by Stores\.|is not a Serde"):
        mistake()


def test_streams_of_two_builders_cannot_be_put_together() -> None:
    one, two = StreamsBuilder(), StreamsBuilder()
    left, rows = one.stream("left", TEXT), one.table("own-rows", TEXT)
    right, other, everywhere = two.stream("right", TEXT), two.table("rows", TEXT), two.global_table("all", TEXT)
    take = lambda left, right: left  # noqa: E731
    for join in (
        lambda: left.join(right, take, NEAR),
        lambda: left.join(other, take),
        lambda: left.left_join(everywhere, lambda key, value: key, take),
        lambda: left.merge(right),
        lambda: rows.join(other, take),
        lambda: rows.join(other, lambda value: value, take),
        lambda: left.group_by_key().cogroup(lambda key, value, total: total).cogroup(right.group_by_key(), lambda key, value, total: total),
    ):
        with pytest.raises(TopologyError, match="two StreamsBuilders; make both with the same one"):
            join()


def test_a_named_may_stand_in_front_of_stores_as_in_kafka_streams() -> None:
    class Keeping(FixedKeyProcessor[str, str, str]):
        def process(self, record: object) -> None:
            """Nothing."""

    builder = StreamsBuilder()
    builder.add_state_store(Stores.key_value_store_builder(Stores.persistent_key_value_store("seen"), serdes.STRING, serdes.STRING))
    flights = builder.stream("in", TEXT)
    flights.process(Passing, Named("passing"), "seen")
    flights.process_values(Keeping, Named("keeping"), "seen")
    text = str(builder.build().describe())
    assert "Processor: passing (stores: [seen])" in text and "Processor: keeping (stores: [seen])" in text


def test_what_transforms_values_takes_its_options_in_kafka_streams_order() -> None:
    class Same(ValueTransformerWithKey[str, str, str | None]):
        def transform(self, read_only_key: str, value: str | None) -> str | None:
            return value

    builder = StreamsBuilder()
    rows = builder.table("rows", TEXT)
    kept = Materialized[str, str]("kept", value=serdes.STRING)
    builder.add_state_store(Stores.key_value_store_builder(Stores.persistent_key_value_store("seen"), serdes.STRING, serdes.STRING))
    assert rows.transform_values(Same, kept, Named("first"), "seen").queryable_store_name == "kept"
    assert rows.transform_values(Same, Named("second"), "seen").queryable_store_name is None
    assert rows.transform_values(Same, Materialized("more", value=serdes.STRING), "seen").queryable_store_name == "more"
    text = str(builder.build().describe())
    assert "Processor: first (stores: [kept, seen])" in text and "Processor: second (stores: [seen])" in text


def test_to_build_with_a_configuration_no_application_need_be_named() -> None:
    builder = StreamsBuilder()
    builder.stream("in").to("out")
    with pytest.raises(TopologyError, match="no key serde"):
        builder.build({"topology.optimization": "all", "default.value.serde": serdes.STRING})
    builder.build({"topology.optimization": "all", "default.key.serde": serdes.STRING, "default.value.serde": serdes.STRING})


def test_a_source_takes_several_topics() -> None:
    several = Topology().add_source("source", "one", "two", key_serde=serdes.STRING, value_serde=serdes.STRING)
    assert "topics: [one, two]" in str(several.describe())
    with pytest.raises(TopologyError, match=r"source source: a topic's name has .*none: serdes\.STRING"):
        Topology().add_source("source", "one", serdes.STRING)
    with pytest.raises(TopologyError, match="source source: a topic, several of them or a compiled pattern, not None"):
        Topology().add_source("source", None)


def test_a_builder_in_place_of_its_topology_is_refused() -> None:
    with pytest.raises(TopologyError, match=r"expected a Topology, not <.*>: call its build\(\)"):
        TopologyTestDriver(StreamsBuilder())
    with pytest.raises(TopologyError, match=r"call its build\(\)"):
        KafkaStreams(StreamsBuilder(), {"application.id": "a", "bootstrap.servers": "localhost:1"})


def test_windows_have_kafka_streams_attributes() -> None:
    near = JoinWindows.of_time_difference_and_grace(5, 6).before(3).after(9)
    assert (near.before_ms, near.after_ms, near.grace_period_ms, near.size_ms) == (3, 9, 6, 12)
    assert Joined(grace_period=5).grace_period == 5


@pytest.mark.parametrize("chosen", ["0", 0.5])
def test_a_partitioner_that_chooses_no_partition_is_reported_with_its_node(chosen: object) -> None:
    builder = StreamsBuilder()
    builder.stream("in", TEXT).to("out", Produced(partitioner=lambda topic, key, value, partitions: chosen, name="sink"))
    with (
        TopologyTestDriver(builder.build()) as driver,
        pytest.raises(ProcessingError, match=rf"node sink.*partitioner chose {chosen!r} for"),
    ):
        driver.create_input_topic("in", serdes.STRING, serdes.STRING).pipe_input("a", "b")


def test_a_serde_that_cannot_read_the_data_is_reported_with_its_node() -> None:
    builder = StreamsBuilder()
    builder.stream("in", Consumed(serdes.STRING, value=serdes.LONG, name="numbers")).foreach(lambda key, value: None)
    with TopologyTestDriver(builder.build()) as driver:
        texts = driver.create_input_topic("in", serdes.STRING, serdes.STRING)
        with pytest.raises(DeserializationError, match=r"^in-0@0: source numbers: serde LONG cannot read the value b'text': error: "):
            texts.pipe_input("a", "text")
        with pytest.raises(TopologyError, match="output topic out: 'text' is not a Serde"):
            driver.create_output_topic("out", serdes.STRING, "text")


def test_a_store_without_a_serde_is_reported_with_its_node() -> None:
    builder = StreamsBuilder()
    builder.stream("in", TEXT).group_by_key().aggregate(lambda: 0, lambda key, value, total: total, "sum", Materialized("rows"))
    with pytest.raises(TopologyError, match=r"^node sum: store rows has no value serde: give it one"):
        TopologyTestDriver(builder.build())


def test_a_versioned_table_cannot_emit_on_change() -> None:
    rows = Materialized(Stores.persistent_versioned_key_value_store("rows", 1_000))
    with pytest.raises(TopologyError, match=r"table in: its store is versioned, so each update is a version"):
        StreamsBuilder().table("in", TEXT, rows, emit_on_change=True)


class RaisingWrapper(ProcessorWrapper):
    def wrap_processor_supplier(self, processor_name: str, processor_supplier: ProcessorSupplier) -> ProcessorSupplier:
        raise RuntimeError("no licence")


class EmptyWrapper(ProcessorWrapper):
    def wrap_processor_supplier(self, processor_name: str, processor_supplier: ProcessorSupplier) -> ProcessorSupplier:
        return None


@pytest.mark.parametrize(
    ("wrapper", "error", "reported"),
    [
        (RaisingWrapper, TopologyError, r"RaisingWrapper failed for processor mine, at .*: RuntimeError: no licence"),
        (EmptyWrapper, TopologyError, "returned None for processor mine: expected a supplier of processors"),
        (dict, StreamsConfigError, "= <class 'dict'> is not a ProcessorWrapper"),
        ("no.such.Wrapper", StreamsConfigError, "= 'no.such.Wrapper' cannot be imported"),
    ],
)
def test_a_wrapper_that_cannot_be_used_is_named(wrapper: object, error: type[Exception], reported: str) -> None:
    builder = StreamsBuilder()
    builder.stream("in", TEXT).process(Processor, named="mine")
    with pytest.raises(error, match=rf"^processor\.wrapper\.class {reported}"):
        TopologyTestDriver(builder.build(), {"processor.wrapper.class": wrapper})
