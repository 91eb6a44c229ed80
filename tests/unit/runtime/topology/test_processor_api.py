"""Processors of the user's own: context, children, stores, punctuators, life."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import pytest

from penstock import (
    Consumed,
    ContextualFixedKeyProcessor,
    ContextualProcessor,
    LogAndContinueProcessingExceptionHandler,
    Produced,
    StreamsBuilder,
    serdes,
)
from penstock.runtime.model.errors import ProcessingError, StreamsError, TopologyError
from penstock.runtime.model.ids import TaskId
from penstock.runtime.model.record import FixedKeyRecord, Record
from penstock.runtime.operators.processor import (
    AnyFixedKeyProcessor,
    AnyProcessor,
    FixedKeyProcessor,
    FixedKeyProcessorContext,
    Processor,
    ProcessorContext,
    PunctuationType,
    UserProcessor,
)
from penstock.runtime.stores import EngineStore, KeyValueStore, Stores
from penstock.runtime.topology.topology import Topology
from penstock.testing import TopologyTestDriver
from tests.support.pipelines import Compiled

S = serdes.STRING


class Calls(Processor):
    """Runs a function per record, and keeps its context."""

    def __init__(self, process: Callable[[ProcessorContext, Record], None], init: Callable[[ProcessorContext], None] | None = None) -> None:
        self._process = process
        self._init = init

    def init(self, context: ProcessorContext) -> None:
        self.context = context
        if self._init is not None:
            self._init(context)

    def process(self, record: Record) -> None:
        self._process(self.context, record)


def topology(supplier: Callable[[], AnyProcessor] | Callable[[], AnyFixedKeyProcessor], *, fixed_key: bool = False) -> Topology:
    built = Topology().add_source("source", "in", key_serde=S, value_serde=S)
    built.add_operator("mine", UserProcessor(supplier, fixed_key), ["source"])
    built.add_sink("left", "left", "mine", key_serde=S, value_serde=S)
    return built.add_sink("right", "right", "mine", key_serde=S, value_serde=S)


def test_forward_reaches_all_children_or_the_one_named(tmp_path: Path) -> None:
    def process(context: ProcessorContext, record: Record) -> None:
        if record.value == "all":
            context.forward(record.with_timestamp(77))
        else:
            context.forward(record.with_headers([("h", b"1")]), "right")

    compiled = Compiled(topology(lambda: Calls(process)), tmp_path)
    compiled.run(("a", "all", 1), ("b", "one", 2))
    assert compiled.outputs.sent == [
        ("left", b"a", b"all", 77, None, None),
        ("right", b"a", b"all", 77, None, None),
        ("right", b"b", b"one", 2, [("h", b"1")], None),
    ]


def test_a_child_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    compiled = Compiled(topology(lambda: Calls(lambda context, record: context.forward(record, "up"))), tmp_path)
    with pytest.raises(ProcessingError, match=r"no child 'up' \(its children: left, right\)"):
        compiled.run(("a", "x", 1))


def test_the_context_has_the_records_coordinates_and_times(tmp_path: Path) -> None:
    seen: list[object] = []

    def process(context: ProcessorContext, record: Record) -> None:
        seen.append((context.record_metadata, context.current_stream_time_ms(), context.current_system_time_ms(), record.headers))

    def init(context: ProcessorContext) -> None:
        seen.append((context.application_id, context.task_id, context.record_metadata, context.app_configs()["application.id"]))

    compiled = Compiled(topology(lambda: Calls(process, init)), tmp_path)
    compiled.run(("a", "x", 9), ("a", "y", 5))
    assert seen == [("app", TaskId(0, 3), None, "app"), (("in", 3, 100), 9, 1_000_000, []), (("in", 3, 101), 9, 1_000_000, [])]


def test_a_processor_can_request_a_commit(tmp_path: Path) -> None:
    compiled = Compiled(topology(lambda: Calls(lambda context, record: context.commit())), tmp_path)
    assert not compiled.context.commit_requested
    compiled.run(("a", "x", 1))
    assert compiled.context.commit_requested


def test_headers_of_a_record_are_its_own_and_come_back_after_a_forward(tmp_path: Path) -> None:
    given = [("h", b"1")]

    def process(context: ProcessorContext, record: Record) -> None:
        record.headers.append(("more", b"2"))
        context.forward(record, "left")
        context.forward(Record("k", "v", 5), "right")
        context.forward(record, "right")

    compiled = Compiled(topology(lambda: Calls(process)), tmp_path)
    compiled.run(("a", "x", 1, given))
    assert given == [("h", b"1")]
    assert [sent[4] for sent in compiled.outputs.sent] == [[("h", b"1"), ("more", b"2")], None, [("h", b"1"), ("more", b"2")]]


def test_what_a_processor_forwards_does_not_change_the_record_for_its_siblings(tmp_path: Path) -> None:
    def process(context: ProcessorContext, record: Record) -> None:
        context.forward(record.with_headers([("h", b"other")]).with_timestamp(50), "left")

    built = topology(lambda: Calls(process)).add_sink("beside", "beside", "source", key_serde=S, value_serde=S)
    compiled = Compiled(built, tmp_path)
    compiled.run(("a", "x", 1, [("h", b"own")]))
    assert compiled.outputs.sent == [
        ("left", b"a", b"x", 50, [("h", b"other")], None),
        ("beside", b"a", b"x", 1, [("h", b"own")], None),
    ]


def test_process_values_keeps_keys(tmp_path: Path) -> None:
    def process(context: ProcessorContext, record: Record) -> None:
        context.forward(record.with_value("new") if record.value == "ok" else Record("other", record.value, 2), "left")

    compiled = Compiled(topology(lambda: Calls(process), fixed_key=True), tmp_path)
    with pytest.raises(ProcessingError, match="process_values keeps keys"):
        compiled.run(("a", "ok", 1), ("a", "bad", 2))
    assert [(sent[1], sent[2]) for sent in compiled.outputs.sent] == [(b"a", b"new")]


def test_a_punctuator_of_process_values_forwards_records_that_were_kept(tmp_path: Path) -> None:
    class Keeps(FixedKeyProcessor[str, str, str]):
        def init(self, context: FixedKeyProcessorContext[str, str]) -> None:
            self.context = context
            self.kept: list[FixedKeyRecord[str, str]] = []
            context.schedule(10, PunctuationType.STREAM_TIME, self.punctuate)

        def process(self, record: FixedKeyRecord[str, str]) -> None:
            self.kept.append(record.with_headers([("h", b"1")]))

        def punctuate(self, now_ms: int) -> None:
            for record in self.kept:
                self.context.forward(record.with_timestamp(now_ms), "left")
            if now_ms >= 30:
                self.context.forward(Record("other", "x", now_ms), "left")

    compiled = Compiled(topology(Keeps, fixed_key=True), tmp_path)
    compiled.run(("a", "1", 1), ("b", "2", 12))
    assert compiled.outputs.sent == [
        ("left", b"a", b"1", 1, [("h", b"1")], None),
        ("left", b"a", b"1", 12, [("h", b"1")], None),
        ("left", b"b", b"2", 12, [("h", b"1")], None),
    ]
    with pytest.raises(ProcessingError, match="process_values keeps keys"):
        compiled.run(("a", "1", 30))


def test_the_configuration_is_available_whole_or_by_prefix(tmp_path: Path) -> None:
    found: list[object] = []

    def init(context: ProcessorContext) -> None:
        found.append(context.app_configs()["application.id"])
        found.append(context.app_configs_with_prefix("application.")["id"])

    Compiled(topology(lambda: Calls(lambda context, record: None, init)), tmp_path)
    assert found == ["app", "app"]


def test_the_context_has_the_default_serdes() -> None:
    found: list[object] = []

    def init(context: ProcessorContext) -> None:
        found.extend((context.key_serde, context.value_serde))

    made = Topology().add_source("source", "in", value_serde=serdes.LONG)
    made.add_processor("mine", lambda: Calls(lambda context, record: None, init), "source")
    with TopologyTestDriver(made, {"default.key.serde": "STRING"}):
        assert found == [serdes.STRING, None]


@pytest.mark.parametrize(
    ("start", "calls"),
    [(1_000_000, [1_001_000, 1_002_500]), (999_500, [1_000_500, 1_002_500]), (1_002_500, [1_002_500]), (0, [1_001_000, 1_002_500])],
)
def test_a_schedule_may_begin_at_a_time_of_its_own(start: int, calls: list[int], tmp_path: Path) -> None:
    """KIP-1146: at that time and at whole intervals after it. What was before the call is not made up for."""
    found: list[int] = []

    def init(context: ProcessorContext) -> None:
        context.schedule(1_000, PunctuationType.WALL_CLOCK_TIME, found.append, start_time=start)

    compiled = Compiled(topology(lambda: Calls(lambda context, record: None, init)), tmp_path)
    for now in (1_000_000, 1_000_500, 1_001_000, 1_002_500):
        compiled.pipeline.punctuate(now)
    assert [now for now in found if now != 1_000_000] == calls


def test_a_start_needs_a_time_zone(tmp_path: Path) -> None:
    def init(context: ProcessorContext) -> None:
        context.schedule(1, PunctuationType.STREAM_TIME, print, start_time=datetime(2026, 1, 1, tzinfo=UTC))
        context.schedule(1, PunctuationType.STREAM_TIME, print, start_time=datetime(2026, 1, 1))

    with pytest.raises(ProcessingError, match="has no time zone"):
        Compiled(topology(lambda: Calls(lambda context, record: None, init)), tmp_path)


def test_stream_time_punctuators_run_after_the_record_that_moved_time(tmp_path: Path) -> None:
    order: list[object] = []

    def init(context: ProcessorContext) -> None:
        context.schedule(10, PunctuationType.STREAM_TIME, order.append)

    compiled = Compiled(topology(lambda: Calls(lambda context, record: order.append(record.value), init)), tmp_path)
    assert compiled.pipeline.punctuate(5_000_000) == 0
    compiled.run(("a", "x3", 3), ("a", "x9", 9), ("a", "x31", 31), ("a", "x12", 12), ("a", "x40", 40))
    assert order == ["x3", 3, "x9", "x31", 31, "x12", "x40", 40]


def test_wall_clock_punctuators_run_one_interval_after_the_start(tmp_path: Path) -> None:
    calls: list[int] = []

    def init(context: ProcessorContext) -> None:
        context.schedule(timedelta(seconds=1), PunctuationType.WALL_CLOCK_TIME, calls.append)

    compiled = Compiled(topology(lambda: Calls(lambda context, record: None, init)), tmp_path)
    assert [compiled.pipeline.punctuate(now) for now in (1_000_999, 1_001_000, 1_001_500, 1_003_200, 1_004_000)] == [0, 1, 0, 1, 1]
    assert calls == [1_001_000, 1_003_200, 1_004_000]


def test_a_punctuator_may_forward_and_has_no_record(tmp_path: Path) -> None:
    seen: list[object] = []

    def init(context: ProcessorContext) -> None:
        def punctuate(now: int) -> None:
            seen.append(context.record_metadata)
            context.forward(Record("p", "v", now), "left")

        context.schedule(10, PunctuationType.STREAM_TIME, punctuate)

    compiled = Compiled(topology(lambda: Calls(lambda context, record: None, init)), tmp_path)
    compiled.run(("a", "x", 4, [("h", b"1")]))
    assert seen == [None]
    assert compiled.outputs.sent == [("left", b"p", b"v", 4, None, None)]


def test_an_error_in_a_punctuator_names_its_processor(tmp_path: Path) -> None:
    def init(context: ProcessorContext) -> None:
        context.schedule(1, PunctuationType.WALL_CLOCK_TIME, lambda now: print(1 // 0))

    compiled = Compiled(topology(lambda: Calls(lambda context, record: None, init)), tmp_path)
    with pytest.raises(ProcessingError, match=r"task 0_3, node mine in a punctuator, at .*: ZeroDivisionError") as caught:
        compiled.pipeline.punctuate(2_000_000)
    assert caught.value.index is None


class Counting(Processor):
    """Counts per key in a store."""

    def init(self, context: ProcessorContext) -> None:
        self.store = cast(KeyValueStore, context.get_state_store("seen"))
        self.context = context

    def process(self, record: Record) -> None:
        count = int(str(self.store.get(record.key) or 0)) + 1
        self.store.put(record.key, str(count))
        self.context.forward(record.with_value(str(count)), "left")


def seen_store() -> Topology:
    return topology(Counting).add_state_store(
        Stores.key_value_store_builder(Stores.in_memory_key_value_store("seen"), S, S).with_logging_enabled({}), "mine"
    )


def test_a_store_is_read_and_written_by_its_processor(tmp_path: Path) -> None:
    compiled = Compiled(seen_store(), tmp_path)
    compiled.run(("a", "x", 5), ("a", "y", 3), ("b", "z", 9))
    assert [sent[2] for sent in compiled.outputs.sent] == [b"1", b"2", b"1"]
    # A plain store's changelog carries the time of the record that was processed when the store was written.
    assert sorted(compiled.stores["seen"].changelog_records()) == [(b"a", b"2", 3), (b"b", b"1", 9)]


def test_a_store_of_another_processor_is_out_of_reach(tmp_path: Path) -> None:
    built = seen_store().add_operator("stranger", UserProcessor(Counting), ["source"])
    with pytest.raises(ProcessingError, match="stranger has no access to store 'seen'"):
        Compiled(built, tmp_path)


def test_rule_27_a_task_that_asks_for_a_global_store_is_known_as_its_reader(tmp_path: Path) -> None:
    class Globals:
        def __init__(self) -> None:
            self.readers: list[tuple[str, TaskId]] = []
            self.held: EngineStore = Stores.key_value_store_builder(Stores.in_memory_key_value_store("seen"), S, S).build()

        def store(self, name: str) -> EngineStore | None:
            return self.held if name == "seen" else None

        def register_reader(self, name: str, task: TaskId) -> None:
            self.readers.append((name, task))

    stores = Globals()
    Compiled(topology(Counting), tmp_path, global_stores=stores)
    assert stores.readers == [("seen", TaskId(0, 3))]


def test_rule_10_a_pipeline_that_is_compiled_again_has_new_processors(tmp_path: Path) -> None:
    made: list[Counting] = []
    closed: list[Counting] = []

    class Watched(Counting):
        def __init__(self) -> None:
            made.append(self)

        def close(self) -> None:
            closed.append(self)

    store = Stores.key_value_store_builder(Stores.in_memory_key_value_store("seen"), S, S)
    compiled = Compiled(topology(Watched).add_state_store(store, "mine"), tmp_path)
    compiled.pipeline.close()
    compiled.compile()
    assert len(made) == 2
    assert closed == made[:1]
    assert compiled.pipeline.punctuate(1 << 50) == 0


def test_parents_are_initialised_first_and_all_are_closed_even_if_one_fails(tmp_path: Path) -> None:
    order: list[str] = []

    class Named(Processor):
        def __init__(self, name: str) -> None:
            self.name = name

        def init(self, context: ProcessorContext) -> None:
            order.append(f"init {self.name}")

        def close(self) -> None:
            order.append(f"close {self.name}")
            if self.name == "first":
                raise RuntimeError("stuck")

    built = Topology().add_source("source", "in", key_serde=S, value_serde=S)
    built.add_processor("first", lambda: Named("first"), "source").add_processor("second", lambda: Named("second"), "first")
    compiled = Compiled(built, tmp_path)
    with pytest.raises(ProcessingError, match=r"node first in close, at .*: RuntimeError: stuck"):
        compiled.pipeline.close()
    assert order == ["init first", "init second", "close first", "close second"]


def test_a_supplier_that_fails_or_makes_no_processor_is_named(tmp_path: Path) -> None:
    def fail() -> Processor:
        raise OSError("no licence")

    with pytest.raises(ProcessingError, match=r"node mine while it was built, at .*: OSError: no licence"):
        Compiled(topology(fail), tmp_path)
    with pytest.raises(StreamsError, match="mine made a str, which has no method process"):
        Compiled(topology(cast(Callable[[], AnyProcessor], lambda: "nothing")), tmp_path)


def test_an_async_processor_is_refused(tmp_path: Path) -> None:
    class Awaited:
        async def process(self, record: Record[str, str]) -> None:
            raise AssertionError

    with pytest.raises(StreamsError, match=r"mine: Awaited\.process is async, which is never awaited"):
        Compiled(topology(cast(Callable[[], AnyProcessor], Awaited)), tmp_path)


class Ticking(Processor[str, str, str, str]):
    """Raises in the first of two punctuators that are due together."""

    def init(self, context: ProcessorContext[str, str]) -> None:
        self.context = context
        context.schedule(10, PunctuationType.STREAM_TIME, lambda now: print(1 // 0))
        context.schedule(10, PunctuationType.STREAM_TIME, lambda now: context.forward(Record("tick", str(now), now)))

    def process(self, record: Record[str, str]) -> None:
        self.context.forward(record)


def test_the_processing_handler_decides_about_a_punctuator() -> None:
    """KIP-1033: with CONTINUE the others that are due run, and the records behind."""
    builder = StreamsBuilder()
    builder.stream("in", Consumed(S, value=S)).process(Ticking).to("out", Produced(S, value=S))
    config = {"processing.exception.handler": LogAndContinueProcessingExceptionHandler}
    with TopologyTestDriver(builder.build(), config) as driver:
        driver.create_input_topic("in", S, S).pipe_key_value_list([("a", "1"), ("a", "2")], 5, 10)
        assert driver.create_output_topic("out", S, S).read_key_values_to_list() == [("a", "1"), ("tick", "5"), ("a", "2"), ("tick", "15")]
        [dropped] = [value for name, value in driver.metrics().items() if name.name == "dropped-records-total"]
        assert dropped == 2
    with TopologyTestDriver(builder.build()) as driver, pytest.raises(ProcessingError, match=r"in a punctuator, at .*: ZeroDivisionError"):
        driver.create_input_topic("in", S, S).pipe_input("a", "1", 5)


class Shouting(ContextualProcessor[str, str, str, str]):
    def process(self, record: Record[str, str]) -> None:
        self.context.forward(record.with_value(record.value.upper()))


class Twice(ContextualFixedKeyProcessor[str, str, str]):
    def process(self, record: FixedKeyRecord[str, str]) -> None:
        self.context.forward(record.with_value(record.value * 2))


def test_a_contextual_processor_has_its_context() -> None:
    builder = StreamsBuilder()
    builder.stream("in", Consumed(S, value=S)).process(Shouting).process_values(Twice).to("out", Produced(S, value=S))
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("in", S, S).pipe_input("a", "x", 1)
        assert driver.create_output_topic("out", S, S).read_key_values_to_list() == [("a", "XX")]


class Measuring(ContextualProcessor[str, str, str, str]):
    def init(self, context: ProcessorContext[str, str]) -> None:
        super().init(context)
        self.seen, self.size = context.metrics.counter("seen-total", carrier="UA"), context.metrics.latency("size")

    def process(self, record: Record[str, str]) -> None:
        self.seen.add()
        self.size.record(len(record.value))
        assert "seen-total" in {name.name for name in self.context.metrics.metrics()}


def test_a_processor_has_metrics_of_its_own_beside_the_others() -> None:
    builder = StreamsBuilder()
    builder.stream("in", Consumed(S, value=S)).process(Measuring, named="counting")
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("in", S, S).pipe_key_value_list([("a", "x"), ("a", "xyz")], 0, 1)
        [(name, seen)] = [(name, value) for name, value in driver.metrics().items() if name.name == "seen-total"]
        assert seen == 2 and name.group == "stream-processor-node-metrics"
        assert dict(name.tags).items() >= {"carrier": "UA", "task-id": "0_0", "processor-node-id": "counting"}.items()
        assert [value for name, value in sorted(driver.metrics().items()) if name.name.startswith("size-")] == [2.0, 3.0]


def test_invalid_schedules_and_forwards_raise() -> None:
    reported: list[str] = []

    class Mistaken(ContextualProcessor[str, str, str, str]):
        def process(self, record: Record[str, str]) -> None:
            mistakes: list[Callable[[], object]] = [
                lambda: self.context.schedule(5, cast(PunctuationType, "STREAM_TIME"), print),
                lambda: self.context.schedule(5, PunctuationType.STREAM_TIME, cast(Callable[[int], None], 5)),
                lambda: self.context.schedule(5, PunctuationType.STREAM_TIME, cast(Callable[[int], None], lambda: None)),
                lambda: self.context.forward(cast(Record[str, str], "a")),
            ]
            for mistake in mistakes:
                with pytest.raises((TypeError, TopologyError)) as caught:
                    mistake()
                reported.append(str(caught.value))

    builder = StreamsBuilder()
    builder.stream("in", Consumed(S, value=S)).process(Mistaken, named="mine")
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("in", S, S).pipe_input("a", "x", 1)
    assert reported[0] == "processor mine: schedule takes a PunctuationType, such as PunctuationType.STREAM_TIME, not 'STREAM_TIME'"
    assert reported[1] == "node mine: expected a function, not 5"
    assert "node mine: " in reported[2] and reported[2].endswith("is given (now_ms) and takes 0")
    assert reported[3] == "processor mine forwards 'a', which is not a Record: context.forward(Record(key, value, timestamp))"
