"""The test driver: its topics, clock and stores, and that it runs what the engine runs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import pytest

from penstock import serdes
from penstock.runtime.model.errors import DeserializationError, InvalidStateStoreError, ProcessingError, ProductionError, SerializationError
from penstock.runtime.model.handlers import (
    DefaultProductionExceptionHandler,
    ErrorHandlerContext,
    ProcessingExceptionHandler,
    ProcessingHandlerResponse,
    ProductionExceptionHandlerResponse,
    SerializationExceptionOrigin,
)
from penstock.runtime.model.record import Record, ValueAndTimestamp
from penstock.runtime.model.timestamps import ConsumerRecord
from penstock.runtime.operators.aggregate import StreamCount
from penstock.runtime.operators.processor import Processor, ProcessorContext, PunctuationType
from penstock.runtime.operators.stateless import MapValues
from penstock.runtime.operators.table import ToStream
from penstock.runtime.stores import KeyValueStore, Stores
from penstock.runtime.topology.topology import Topology
from penstock.testing import ManualClock, TopologyTestDriver
from tests.support.building import Windows, window_count

S, L = serdes.STRING, serdes.LONG


def upper() -> Topology:
    topology = Topology().add_source("source", "in", key_serde=S, value_serde=S)
    topology.add_operator("upper", MapValues(str.upper), ["source"])
    return topology.add_sink("sink", "out", "upper", key_serde=S, value_serde=S)


def counted() -> Topology:
    store = Stores.timestamped_key_value_store_builder(Stores.persistent_key_value_store("counts"), S, L).with_caching_enabled()
    topology = Topology().add_source("source", "in", key_serde=S, value_serde=S).add_state_store(store)
    topology.add_operator("count", StreamCount("counts"), ["source"], ["counts"]).add_operator("stream", ToStream(), ["count"])
    return topology.add_sink("sink", "out", "stream", key_serde=S, value_serde=L)


def test_every_way_to_pipe_and_to_read() -> None:
    with TopologyTestDriver(upper(), initial_wall_clock_time=500) as driver:
        given, taken = driver.create_input_topic("in", S, S), driver.create_output_topic("out", S, S)
        given.pipe_input("a", "x", timestamp=1)
        given.pipe_input("b", "y", 2)
        given.pipe_input("z")
        given.pipe_input(Record("c", "w", 4, [("h", b"1")]))
        assert taken.get_queue_size() == 4
        assert taken.read_record() == Record("a", "X", 1)
        assert taken.read_key_value() == ("b", "Y")
        assert taken.read_record() == Record(None, "Z", 500)  # type: ignore[comparison-overlap]  # a null key
        assert taken.read_record() == Record("c", "W", 4, [("h", b"1")])
        assert taken.is_empty()
        with pytest.raises(LookupError, match="topic out has no more records"):
            taken.read_value()
        given.pipe_key_value_list([("a", "1"), ("b", "2"), ("a", "3")], 10, timedelta(milliseconds=5))
        given.pipe_value_list(["4"])
        given.pipe_record_list([Record("d", "5", 6)])
        assert [(record.key, record.timestamp) for record in taken.read_records_to_list()] == [
            ("a", 10),
            ("b", 15),
            ("a", 20),
            (None, 500),
            ("d", 6),
        ]
        given.pipe_key_value_list([("a", "1"), ("b", "2"), ("a", "3")])
        assert taken.read_key_values_to_map() == {"a": "3", "b": "2"}
        given.pipe_key_value_list([("a", "1")])
        assert taken.read_values_to_list() == ["1"]
        given.pipe_value_list(["1"])
        with pytest.raises(ValueError, match="without a key"):
            taken.read_key_values_to_map()


def test_a_topics_time_has_a_start_and_advances_automatically() -> None:
    with TopologyTestDriver(upper()) as driver:
        start = datetime(2013, 1, 1, tzinfo=UTC)
        given = driver.create_input_topic("in", S, S, start, auto_advance=timedelta(seconds=1))
        given.pipe_input("a", "x")
        given.pipe_input("a", "x")
        given.advance_time(timedelta(minutes=1))
        given.pipe_input("a", "x", timestamp=7)
        given.pipe_input("a", "x")
        first = int(start.timestamp() * 1000)
        times = [record.timestamp for record in driver.create_output_topic("out", S, S).read_records_to_list()]
        assert times == [first, first + 1000, 7, first + 62_000]


def test_commits_after_each_record_so_caching_hides_nothing() -> None:
    with TopologyTestDriver(counted()) as driver:
        given = driver.create_input_topic("in", S, S)
        for timestamp in (5, 3, 9):
            given.pipe_input("a", "x", timestamp)
        assert [(r.value, r.timestamp) for r in driver.create_output_topic("out", S, L).read_records_to_list()] == [(1, 5), (2, 5), (3, 9)]
        changelog = driver.create_output_topic("topology-test-counts-changelog", S, L)
        assert [(r.value, r.timestamp) for r in changelog.read_records_to_list()] == [(1, 5), (2, 5), (3, 9)]
        assert driver.produced_topic_names() == {"out", "topology-test-counts-changelog"}


def test_stores_are_seen_with_and_without_timestamps() -> None:
    with TopologyTestDriver(counted()) as driver:
        driver.create_input_topic("in", S, S).pipe_input("a", "x", 5)
        assert cast(KeyValueStore, driver.get_state_store("counts")).get("a") == ValueAndTimestamp(1, 5)
        assert driver.get_timestamped_key_value_store("counts").get("a") == ValueAndTimestamp(1, 5)
        plain = driver.get_key_value_store("counts")
        assert plain.get("a") == 1
        assert plain.get("b") is None
        plain.put("a", 41)
        driver.create_input_topic("in", S, S).pipe_input("a", "x", 3)
        assert list(plain.all()) == [("a", 42)]
        with pytest.raises(InvalidStateStoreError, match=r"no store 'other' \(its stores: counts\)"):
            driver.get_state_store("other")
        with pytest.raises(InvalidStateStoreError, match="is a key_value store, not a window store"):
            driver.get_window_store("counts")


def test_window_stores_are_seen_with_plain_values() -> None:
    windows = Windows(10, 10, 10)
    store = Stores.timestamped_window_store_builder(Stores.persistent_window_store("w", 20, 10), S, L).with_caching_enabled()
    topology = Topology().add_source("source", "in", key_serde=S, value_serde=S).add_state_store(store)
    topology.add_operator("count", window_count("w", windows), ["source"], ["w"])
    with TopologyTestDriver(topology) as driver:
        given = driver.create_input_topic("in", S, S)
        given.pipe_key_value_list([("a", "x"), ("a", "x"), ("a", "x")], 6, 3)
        found = driver.get_window_store("w")
        assert found.fetch("a", 0) == 2
        assert list(found.fetch("a", 0, 100)) == [(0, 2), (10, 1)]
        assert driver.get_timestamped_window_store("w").fetch("a", 10) == ValueAndTimestamp(1, 12)


class Every(Processor):
    """Forwards the time every ten seconds of wall clock."""

    def init(self, context: ProcessorContext) -> None:
        def punctuate(now_ms: int) -> None:
            context.forward(Record("tick", str(now_ms), now_ms))

        context.schedule(timedelta(seconds=10), PunctuationType.WALL_CLOCK_TIME, punctuate)

    def process(self, record: Record) -> None:
        pass


def test_wall_clock_time_moves_only_when_advanced() -> None:
    topology = Topology().add_source("source", "in", key_serde=S, value_serde=S).add_processor("every", Every, "source")
    topology.add_sink("sink", "out", "every", key_serde=S, value_serde=S)
    with TopologyTestDriver(topology, None, 1_000) as driver:
        taken = driver.create_output_topic("out", S, S)
        driver.advance_wall_clock_time(timedelta(seconds=9))
        assert taken.is_empty()
        driver.advance_wall_clock_time(timedelta(seconds=1))
        driver.advance_wall_clock_time(35_000)
        assert taken.read_values_to_list() == ["11000", "46000"]


def test_what_goes_to_a_topic_that_is_read_is_processed_before_the_call_returns() -> None:
    topology = upper().add_source("again", "out", key_serde=S, value_serde=S)
    topology.add_operator("twice", MapValues(lambda value: value * 2), ["again"]).add_sink(
        "end", "end", "twice", key_serde=S, value_serde=S
    )
    with TopologyTestDriver(topology) as driver:
        driver.create_input_topic("in", S, S).pipe_input("a", "x", 3)
        assert driver.create_output_topic("out", S, S).read_values_to_list() == ["X"]
        assert driver.create_output_topic("end", S, S).read_record() == Record("a", "XX", 3)


def test_a_global_store_is_filled_by_a_processor_of_the_users() -> None:
    class Fill(Processor):
        def init(self, context: ProcessorContext) -> None:
            self.store = cast(KeyValueStore, context.get_state_store("names"))

        def process(self, record: Record) -> None:
            self.store.put(record.key, str(record.value).title())

    class Look(Processor):
        def init(self, context: ProcessorContext) -> None:
            self.context, self.store = context, cast(KeyValueStore, context.get_state_store("names"))

        def process(self, record: Record) -> None:
            self.context.forward(record.with_value(self.store.get(record.value)))

    store = Stores.key_value_store_builder(Stores.in_memory_key_value_store("names"), S, S).with_logging_disabled()
    topology = Topology().add_global_store(store, "fill-source", "names", "fill", Fill, key_serde=S, value_serde=S)
    topology.add_source("source", "in", key_serde=S, value_serde=S).add_processor("look", Look, "source")
    topology.add_sink("sink", "out", "look", key_serde=S, value_serde=S)
    with TopologyTestDriver(topology) as driver:
        driver.create_input_topic("names", S, S).pipe_input("ua", "united")
        driver.create_input_topic("in", S, S).pipe_key_value_list([("k", "ua"), ("k", "xx")])
        assert driver.create_output_topic("out", S, S).read_values_to_list() == ["United", None]


def test_a_global_processor_remembers_nothing_of_a_record_that_was_taken_back() -> None:
    class Number(Processor):
        def init(self, context: ProcessorContext) -> None:
            self.store = cast(KeyValueStore, context.get_state_store("names"))
            self.known = len(list(self.store.all()))

        def process(self, record: Record) -> None:
            self.known += 1
            self.store.put(f"{self.known}", record.value)
            if record.value == "bad":
                raise ValueError(record.value)

    store = Stores.key_value_store_builder(Stores.in_memory_key_value_store("names"), S, S).with_logging_disabled()
    topology = Topology().add_global_store(store, "fill-source", "names", "fill", Number, key_serde=S, value_serde=S)
    topology.add_source("source", "in", key_serde=S, value_serde=S)
    with TopologyTestDriver(topology) as driver:
        names = driver.create_input_topic("names", S, S)
        names.pipe_input("a", "one")
        with pytest.raises(ProcessingError, match=r"node fill.*ValueError: bad"):
            names.pipe_input("b", "bad")
        names.pipe_input("c", "two")
        assert list(driver.get_key_value_store("names").all()) == [("1", "one"), ("2", "two")]


def numbers(handler: str | None = None) -> TopologyTestDriver:
    topology = Topology().add_source("source", "in", key_serde=S, value_serde=L)
    topology.add_operator("invert", MapValues(lambda value: 100 // value), ["source"])
    topology.add_sink("sink", "out", "invert", key_serde=S, value_serde=L)
    config = {}
    if handler is not None:
        config = {
            "deserialization.exception.handler": f"penstock.LogAnd{handler}ExceptionHandler",
            "processing.exception.handler": f"penstock.LogAnd{handler}ProcessingExceptionHandler",
        }
    return TopologyTestDriver(topology, config)


def test_errors_stop_by_default() -> None:
    with numbers() as driver:
        with pytest.raises(DeserializationError, match="in-0@0"):
            driver.create_input_topic("in", S, S).pipe_input("a", "short")
        with pytest.raises(ProcessingError, match=r"task 0_0, node invert, record in-0@1, at .*: ZeroDivisionError"):
            driver.create_input_topic("in", S, L).pipe_input("a", 0)
        driver.create_input_topic("in", S, L).pipe_input("a", 4)
        assert driver.create_output_topic("out", S, L).read_values_to_list() == [25]


def test_what_a_failed_record_left_waiting_does_not_surprise_the_next_call() -> None:
    def fail(value: str) -> str:
        if value == "bad":
            raise LookupError(value)
        return value

    topology = (
        Topology().add_source("source", "in", key_serde=S, value_serde=S).add_sink("early", "loop", "source", key_serde=S, value_serde=S)
    )
    topology.add_operator("fail", MapValues(fail), ["source"])
    topology.add_source("again", "loop", key_serde=S, value_serde=S).add_sink("end", "end", "again", key_serde=S, value_serde=S)
    with TopologyTestDriver(topology) as driver:
        given = driver.create_input_topic("in", S, S)
        with pytest.raises(ProcessingError):
            given.pipe_input("a", "bad")
        given.pipe_input("a", "good")
        assert driver.create_output_topic("end", S, S).read_values_to_list() == ["good"]


def test_handlers_that_continue_drop_the_record() -> None:
    with numbers("Continue") as driver:
        driver.create_input_topic("in", S, S).pipe_input("a", "short")
        driver.create_input_topic("in", S, L).pipe_key_value_list([("a", 0), ("a", 5)])
        assert driver.create_output_topic("out", S, L).read_values_to_list() == [20]
        assert [value for name, value in driver.metrics().items() if name.name == "dropped-records-total"] == [2]


def test_a_topic_that_is_not_read_is_refused_with_those_that_are() -> None:
    with TopologyTestDriver(upper()) as driver, pytest.raises(ValueError, match=r"does not read topic 'im' \(it reads: in\)"):
        driver.create_input_topic("im", S, S).pipe_input("a", "x")


def test_a_serde_that_does_not_fit_a_topic_is_named() -> None:
    with TopologyTestDriver(upper()) as driver:
        topic = driver.create_input_topic("in", S, S)
        with pytest.raises(SerializationError, match=r"input topic in: serdes\.STRING cannot write the value 5: TypeError"):
            topic.pipe_input("a", 5)  # type: ignore[call-overload]
        topic.pipe_input("a", "b")
        with pytest.raises(DeserializationError, match=r"output topic out: serdes\.LONG cannot read the value b'B'"):
            driver.create_output_topic("out", S, L).read_value()


def test_its_state_is_its_own_and_goes_with_it(tmp_path: Path) -> None:
    config = {"application.id": "app", "state.dir": str(tmp_path)}
    for _ in range(2):
        with TopologyTestDriver(counted(), config) as driver:
            driver.create_input_topic("in", S, S).pipe_input("a", "x")
            assert driver.create_output_topic("out", S, L).read_values_to_list() == [1]
    assert list(tmp_path.iterdir()) == []


def test_the_manual_clock_does_not_go_back() -> None:
    clock = ManualClock(1_000)
    clock.advance(5)
    assert (clock.wall_ms(), clock.monotonic_ms()) == (1_005, 5)
    with pytest.raises(ValueError, match="does not go back"):
        clock.advance(-1)


@pytest.mark.parametrize("response", list(ProcessingHandlerResponse))
def test_a_processing_handler_gets_the_decoded_record_and_decides(response: ProcessingHandlerResponse) -> None:
    seen: list[tuple[object, ...]] = []

    class Handler(ProcessingExceptionHandler):
        def handle(self, context: ErrorHandlerContext, record: ConsumerRecord, exception: Exception) -> ProcessingHandlerResponse:
            seen.append((record.key, record.value, context.source_raw_key, type(exception)))
            return response

    topology = Topology().add_source("source", "in", key_serde=S, value_serde=L)
    topology.add_operator("invert", MapValues(lambda value: 100 // value), ["source"]).add_sink(
        "sink", "out", "invert", key_serde=S, value_serde=L
    )
    with TopologyTestDriver(topology, {"processing.exception.handler": Handler}) as driver:
        given = driver.create_input_topic("in", S, L)
        if response is ProcessingHandlerResponse.FAIL:
            with pytest.raises(ProcessingError, match=r"task 0_0, node invert, record in-0@0, at .*: ZeroDivisionError"):
                given.pipe_input("a", 0)
        else:
            given.pipe_input("a", 0)
        assert seen == [("a", 0, b"a", ZeroDivisionError)]
        if response is ProcessingHandlerResponse.PAUSE:
            skip(driver, "in", "processing")
        given.pipe_input("a", 5)
        assert driver.create_output_topic("out", S, L).read_values_to_list() == [20]


def skip(driver: TopologyTestDriver, topic: str, reason: str) -> None:
    """Skip the record before which the driver's only paused task is paused."""
    [task] = driver.paused_local_tasks()
    assert task.paused is not None
    assert (task.paused.partition.topic, task.paused.offset, task.paused.reason) == (topic, driver.committed_offset(topic), reason)
    driver.shift_offset(topic)
    assert driver.resume(task.task_id)
    assert not driver.paused_local_tasks()


def test_a_record_that_cannot_be_read_fails_by_default() -> None:
    with TopologyTestDriver(upper()) as driver:
        raw = driver.create_input_topic("in", serdes.BYTES, serdes.BYTES)
        with pytest.raises(DeserializationError, match="in-0@0"):
            raw.pipe_input(b"a", b"\xff")
        raw.pipe_input(b"a", b"x")
        assert driver.create_output_topic("out", S, S).read_values_to_list() == ["X"]


@pytest.mark.parametrize("response", list(ProductionExceptionHandlerResponse))
def test_an_output_that_cannot_be_written_is_left_out_where_its_handler_continues(response: ProductionExceptionHandlerResponse) -> None:
    places: list[tuple[object, ...]] = []

    class Handler(DefaultProductionExceptionHandler):
        def handle_serialization_exception(
            self, context: ErrorHandlerContext, record: ConsumerRecord, exception: Exception, origin: SerializationExceptionOrigin
        ) -> ProductionExceptionHandlerResponse:
            places.append((context.processor_node_id, context.topic, context.offset, origin))
            return response

    topology = Topology().add_source("source", "in", key_serde=S, value_serde=S)
    topology.add_operator("number", MapValues(lambda value: int(value) if value.isdigit() else value), ["source"])
    topology.add_sink("sink", "out", "number", key_serde=S, value_serde=L)
    with TopologyTestDriver(topology, {"production.exception.handler": Handler}) as driver:
        given = driver.create_input_topic("in", S, S)
        if response in (ProductionExceptionHandlerResponse.CONTINUE, ProductionExceptionHandlerResponse.PAUSE):
            given.pipe_input("a", "x")
        else:
            with pytest.raises(ProductionError, match="record in-0@0"):
                given.pipe_input("a", "x")
        assert places == [("sink", "in", 0, SerializationExceptionOrigin.VALUE)]
        if response is ProductionExceptionHandlerResponse.PAUSE:
            skip(driver, "in", "production")
        given.pipe_input("a", "5")
        assert driver.create_output_topic("out", S, L).read_values_to_list() == [5]
