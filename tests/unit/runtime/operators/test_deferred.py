"""`map_async` and `map_batches` against `map_values`: the same outputs in the same order, wherever they stand and whatever fails.

The driver's tasks process many records in one commit here, as a worker does. The reference has commits of the same size, since the order of
equal timestamps on two inputs depends on it.
"""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock import (
    Consumed,
    FixedKeyProcessor,
    FixedKeyProcessorContext,
    FixedKeyRecord,
    Grouped,
    JoinWindows,
    KeyValueStore,
    KStream,
    Processor,
    ProcessorContext,
    Produced,
    PunctuationType,
    Record,
    Repartitioned,
    Stores,
    StreamJoined,
    StreamsBuilder,
    Topology,
    TopologyError,
    serdes,
)
from penstock.runtime.model.errors import ProcessingError
from penstock.runtime.model.handlers import ErrorHandlerContext, ProcessingExceptionHandler, ProcessingHandlerResponse
from penstock.runtime.model.ids import TopicPartition
from penstock.runtime.model.timestamps import ConsumerRecord
from penstock.runtime.operators.map_async import event_loop
from penstock.runtime.testing.log import LogRecord
from penstock.testing import TopologyTestDriver
from tests.support import ROOT, examples

S = serdes.STRING
STRINGS, OUT = Consumed(S, value=S), Produced(S, value=S)
Stream = KStream[str, str]
Enrich = Callable[[Stream, str], Stream]


class Row(NamedTuple):
    topic: str
    key: str
    value: str
    timestamp: int


def enriched(value: str, by: str) -> str:
    if f"bad-{by}" in value:
        raise ValueError(value)
    return f"{by}({value})"


def one_by_one(stream: Stream, by: str) -> Stream:
    return stream.map_values(lambda value: enriched(value, by))


def asynchronous(limit: int) -> Enrich:
    def enrich(stream: Stream, by: str) -> Stream:
        async def call(value: str) -> str:
            for _ in range(zlib.crc32(value.encode()) % 4):  # calls overtake each other
                await asyncio.sleep(0)
            return enriched(value, by)

        return stream.map_async(call, limit=limit)

    return enrich


def batched(size: int) -> Enrich:
    def enrich(stream: Stream, by: str) -> Stream:
        def call(values: list[str]) -> list[str]:
            assert len(values) <= size
            return [enriched(value, by) for value in values]

        return stream.map_batches(call, size=size)

    return enrich


# -- topologies ------------------------------------------------------------------------------------------------------------------


def joined(left: str, right: str) -> str:
    return f"{left}+{right}"


def folded(stream: Stream) -> Stream:
    return stream.group_by_key(Grouped(S, value=S)).reduce(lambda old, new: f"{zlib.crc32(f'{old},{new}'.encode())}").to_stream()


def in_a_row(source: Stream, other: Stream, enrich: Enrich) -> None:
    enrich(enrich(source, "f"), "g").to("out", OUT)


def into_a_store(source: Stream, other: Stream, enrich: Enrich) -> None:
    folded(enrich(source, "f")).to("out", OUT)


def behind_a_store(source: Stream, other: Stream, enrich: Enrich) -> None:
    enrich(folded(source), "f").to("out", OUT)
    enrich(source, "g").to("out", OUT)


def some_of_them(source: Stream, other: Stream, enrich: Enrich) -> None:
    branches = source.split("b-").branch(lambda _, value: len(value) % 2, "odd").default_branch("even")
    folded(enrich(branches["b-odd"], "f").merge(branches["b-even"])).to("out", OUT)


def one_topic(source: Stream, other: Stream, enrich: Enrich) -> None:
    branches = source.split("b-").branch(lambda _, value: len(value) % 2, "odd").default_branch("even")
    enrich(branches["b-odd"], "f").to("out", OUT)
    branches["b-even"].to("out", OUT)


def several_levels(source: Stream, other: Stream, enrich: Enrich) -> None:
    first = enrich(source, "f")
    second = enrich(first.filter(lambda _, value: len(value) % 3 > 0), "g")
    folded(second.merge(first).merge(source).merge(enrich(second.filter(lambda _, value: "a" in value), "f"))).to("out", OUT)


def with_a_table(source: Stream, other: Stream, enrich: Enrich) -> None:
    enrich(source, "f").left_join(other.to_table(), lambda left, right: f"{left}+{right}").to("out", OUT)


def with_itself(source: Stream, other: Stream, enrich: Enrich) -> None:
    windows = JoinWindows.of_time_difference_and_grace(5, 2)
    enrich(source, "f").left_join(source, lambda left, right: f"{left}+{right}", windows, StreamJoined(S, value=S, other_value=S)).to(
        "out", OUT
    )


def through_a_topic(source: Stream, other: Stream, enrich: Enrich) -> None:
    folded(enrich(enrich(source, "f").select_key(lambda _, value: value[-3:-1]).repartition(Repartitioned(key=S, value=S)), "g")).to(
        "out", OUT
    )


def many_for_one(source: Stream, other: Stream, enrich: Enrich) -> None:
    enrich(source.flat_map_values(lambda value: [value, value[::-1], *value]), "f").to("out", OUT)


class Observer(FixedKeyProcessor[str, str, str]):
    """Adds everything that a processor can see to the value, and forwards records in a stream-time punctuator."""

    def init(self, context: FixedKeyProcessorContext[str, str]) -> None:
        self.context, self.last = context, FixedKeyRecord("", "", 0)
        context.schedule(7, PunctuationType.STREAM_TIME, self.punctuate)

    def process(self, record: FixedKeyRecord[str, str]) -> None:
        seen = f"{self.context.record_metadata},{self.context.current_stream_time_ms()},{record.headers}"
        self.last = FixedKeyRecord(record.key, f"{record.value} {seen}", record.timestamp, [*record.headers, ("seen", b"1")])
        self.context.forward(self.last)

    def punctuate(self, now_ms: int) -> None:
        self.context.forward(FixedKeyRecord(self.last.key, f"last at {now_ms}: {self.last.value}", now_ms, []))


def observed(source: Stream, other: Stream, enrich: Enrich) -> None:
    enrich(enrich(source, "f").process_values(Observer), "g").process_values(Observer).to("out", OUT)


TOPOLOGIES = [
    *(in_a_row, into_a_store, behind_a_store, some_of_them, one_topic, several_levels, with_a_table, with_itself, through_a_topic),
    *(many_for_one, observed),
]


def topology(shape: Callable[[Stream, Stream, Enrich], None], enrich: Enrich) -> Topology:
    builder = StreamsBuilder()
    shape(builder.stream("in", STRINGS), builder.stream("other", STRINGS), enrich)
    return builder.build()


# -- runs ------------------------------------------------------------------------------------------------------------------------


class Skips(ProcessingExceptionHandler):
    def handle(self, context: ErrorHandlerContext, record: ConsumerRecord, exception: Exception) -> ProcessingHandlerResponse:
        asked.append((context.topic, context.offset, str(exception), str(record.value)))
        return ProcessingHandlerResponse.CONTINUE


class Pauses(ProcessingExceptionHandler):
    def handle(self, context: ErrorHandlerContext, record: ConsumerRecord, exception: Exception) -> ProcessingHandlerResponse:
        asked.append((context.topic, context.offset, str(exception), str(record.value)))
        return ProcessingHandlerResponse.PAUSE


asked: list[tuple[str, int, str, str]] = []


def run(topology: Topology, rows: Sequence[Row], handler: type[ProcessingExceptionHandler] | None, per_commit: int) -> dict[str, object]:
    """Process all rows with commits of at most `per_commit` records; skip each record at which the task pauses. Return everything that can
    be observed."""
    asked.clear()
    config = {"statestore.cache.max.bytes": 0, **({} if handler is None else {"processing.exception.handler": handler})}
    with TopologyTestDriver(topology, config, 1_000_000) as driver:
        for task in driver._tasks:
            task.records_per_commit = per_commit
        given: dict[TopicPartition, list[LogRecord]] = {}
        for row in rows:
            headers = [("of", row.value.encode())]
            record = driver._log.append(row.topic, S.serializer("")(row.key), S.serializer("")(row.value), row.timestamp, headers)
            given.setdefault(TopicPartition(row.topic, 0), []).append(record)
        reader = driver._readers["in"]
        failure, paused = None, []
        try:
            reader._process({partition: given[partition] for partition in given if partition in reader.inputs})
            driver._run()
            while tasks := driver.paused_local_tasks():
                (task_id,) = (each.task_id for each in tasks)
                task = next(each for each in driver._tasks if each.id == task_id)
                assert task.paused_at is not None
                topic = task.paused_at.partition.topic
                paused.append((topic, task.paused_at.offset, driver.committed_offset(topic)))
                driver.shift_offset(topic, 1)
                driver.resume(task_id)
        except ProcessingError as error:
            failure = (error.topic, error.offset, str(error.__cause__))
        outputs = driver.create_output_topic("out", S, S).read_records_to_list()
        return {
            "outputs": [(each.key, each.value, each.timestamp, each.headers) for each in outputs],
            "asked": list(asked),
            "paused": paused,
            "failure": failure,
            "offset": None if failure else driver.committed_offset("in"),
        }


def rows(values: st.SearchStrategy[str]) -> st.SearchStrategy[list[Row]]:
    row = st.tuples(st.sampled_from(["in", "in", "in", "other"]), st.sampled_from("abc"), values, st.integers(0, 60))
    return st.lists(row, max_size=30).map(
        lambda found: [Row(topic, key, f"{value}{number}", timestamp) for number, (topic, key, value, timestamp) in enumerate(found)]
    )


VALUES = st.sampled_from(["", "a", "bb", "ccc"])
BAD = st.sampled_from(["", "a", "bb", "ccc", "bad-f", "bad-g"])
OFTEN = settings(deadline=None, max_examples=examples(5), suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize("shape", TOPOLOGIES)
@OFTEN
@given(rows=rows(VALUES), per_commit=st.integers(1, 40), limit=st.integers(1, 9))
def test_results_are_those_of_one_call_after_the_other(
    shape: Callable[[Stream, Stream, Enrich], None], rows: list[Row], per_commit: int, limit: int
) -> None:
    expected = run(topology(shape, one_by_one), rows, None, per_commit)
    assert run(topology(shape, asynchronous(limit)), rows, None, per_commit) == expected
    assert run(topology(shape, batched(limit)), rows, None, per_commit) == expected


@pytest.mark.parametrize("handler", [Skips, Pauses, None])
@pytest.mark.parametrize("shape", [in_a_row, into_a_store, some_of_them, one_topic, with_a_table, many_for_one, observed])
@OFTEN
@given(rows=rows(BAD), per_commit=st.integers(1, 40), limit=st.integers(1, 9))
def test_failures_are_those_of_one_call_after_the_other(
    shape: Callable[[Stream, Stream, Enrich], None],
    handler: type[ProcessingExceptionHandler] | None,
    rows: list[Row],
    per_commit: int,
    limit: int,
) -> None:
    expected = run(topology(shape, one_by_one), rows, handler, per_commit)
    for enrich in (asynchronous(limit), batched(limit)):
        found = run(topology(shape, enrich), rows, handler, per_commit)
        if expected["failure"]:  # what was processed since the last commit is not on the topic
            found["outputs"] = expected["outputs"]
        assert found == expected


# -- each operator ---------------------------------------------------------------------------------------------------------------


def values(*found: str) -> list[Row]:
    return [Row("in", "k", value, time) for time, value in enumerate(found)]


def linear(enrich: Callable[[Stream], Stream]) -> Topology:
    builder = StreamsBuilder()
    enrich(builder.stream("in", STRINGS)).to("out", OUT)
    return builder.build()


def results(found: dict[str, object]) -> list[str]:
    outputs = found["outputs"]
    assert isinstance(outputs, list)
    return [value for _, value, *_ in outputs]


def test_calls_run_at_once_up_to_the_limit() -> None:
    running, most, together = 0, 0, asyncio.Event()

    async def call(value: str) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 4:
            together.set()
        await together.wait()  # returns only if four calls run at once
        running -= 1
        return value

    found = run(linear(lambda source: source.map_async(call, limit=4, timeout=60_000)), values(*"abcdefghij"), None, 100)
    assert results(found) == list("abcdefghij")
    assert most == 4


def test_all_calls_of_a_process_run_on_one_event_loop() -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    async def call(value: str) -> str:
        loops.append(asyncio.get_running_loop())
        return value

    for _ in range(2):
        run(linear(lambda source: source.map_async(call).map_async(call)), values("a"), None, 1)
    assert set(loops) == {event_loop()}
    assert len(loops) == 4


def test_a_blocking_function_runs_in_a_thread_of_the_loop() -> None:
    async def call(value: str) -> str:
        return await asyncio.to_thread(lambda: threading.current_thread().name)

    found = run(linear(lambda source: source.map_async(call)), values("a"), None, 1)
    assert results(found)[0].startswith("map-async-blocking")


@pytest.mark.parametrize("stop", ["exit in a task", "stop"])
def test_a_call_that_stops_the_event_loop_does_not_stop_the_others(stop: str, caplog: pytest.LogCaptureFixture) -> None:
    async def leave() -> None:
        raise SystemExit(3)

    async def call(value: str) -> str:
        if value == "bad":
            if stop == "stop":
                asyncio.get_running_loop().stop()
            else:
                asyncio.get_running_loop().create_task(leave()).add_done_callback(lambda task: task.exception())
            await asyncio.sleep(0.01)
        return value

    found = run(linear(lambda source: source.map_async(call, timeout=60_000)), values("a", "bad", "b"), None, 1)
    assert results(found) == ["a", "bad", "b"]
    assert "continues" in caplog.text


def test_a_blocking_call_that_hangs_does_not_hold_up_the_end_of_the_process() -> None:
    program = """
import asyncio, time
from penstock.runtime.operators.map_async import event_loop

async def call():
    await asyncio.wait_for(asyncio.to_thread(time.sleep, 100_000), 0.1)

print(type(asyncio.run_coroutine_threadsafe(call(), event_loop()).exception()).__name__)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600, check=True, cwd=ROOT)
    assert ended.stdout == "TimeoutError\n"


def test_a_call_that_hangs_times_out_and_is_cancelled() -> None:
    cancelled = threading.Event()

    async def call(key: str, value: str) -> str:
        if value == "hangs":
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()
        return key + value

    found = run(linear(lambda source: source.map_async(call, timeout=50)), values("a", "hangs", "b"), Skips, 100)
    assert results(found) == ["ka", "kb"]
    assert asked == [("in", 1, "map_async: the call did not return within 0.05 s (timeout)", "hangs")]
    assert cancelled.wait(60)


def test_a_rollback_cancels_the_calls_behind_the_failed_one() -> None:
    started, cancelled = threading.Event(), threading.Event()

    async def call(value: str) -> str:
        if value == "later":
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()
        while not started.is_set():
            await asyncio.sleep(0)
        raise ValueError(value)

    found = run(linear(lambda source: source.map_async(call, limit=8)), values("fails", "later"), None, 100)
    assert found["failure"] == ("in", 0, "fails")
    assert cancelled.wait(60)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt("of the call"), asyncio.CancelledError("by the library")])
def test_whatever_a_call_raises_belongs_to_its_record(error: BaseException) -> None:
    async def call(value: str) -> str:
        if value == "bad":
            raise error
        return value

    if isinstance(error, KeyboardInterrupt):  # on the main thread, that of the driver, it may be a Ctrl-C of the program
        with pytest.raises(KeyboardInterrupt):
            run(linear(lambda source: source.map_async(call)), values("a", "bad", "b"), Skips, 100)
        return
    found = run(linear(lambda source: source.map_async(call)), values("a", "bad", "b"), Skips, 100)
    assert results(found) == ["a", "b"]
    assert [offset for _, offset, *_ in asked] == [1]


def test_a_function_that_is_not_async_is_named() -> None:
    found = run(linear(lambda source: source.map_async(lambda value: value)), values("a"), None, 1)  # type: ignore[arg-type, return-value]
    assert found["failure"] == ("in", 0, "map_async: its function returned 'a', which cannot be awaited: make it an async function")


def test_a_batch_has_what_there_is_up_to_its_size() -> None:
    sizes: list[int] = []

    def call(found: list[str]) -> list[str]:
        sizes.append(len(found))
        return [value.upper() for value in found]

    found = run(linear(lambda source: source.map_batches(call, size=4)), values(*"abcdefghij"), None, 100)
    assert results(found) == list("ABCDEFGHIJ")
    assert sizes == [4, 4, 2]
    sizes.clear()
    run(linear(lambda source: source.map_batches(call, size=4)), values(*"abcd"), None, 1)
    assert sizes == [1, 1, 1, 1]


def test_the_records_of_a_batch_that_failed_are_tried_alone() -> None:
    calls: list[str] = []

    def call(found: list[str]) -> list[str]:
        calls.append("".join(found))
        if "x" in found:
            raise ValueError("x")
        return found

    found = run(linear(lambda source: source.map_batches(call, size=4)), values(*"abxcdefg"), Skips, 100)
    assert results(found) == list("abcdefg")
    assert calls == ["abxc", "a", "b", "x", "c", "defg"]
    assert asked == [("in", 2, "x", "x")]


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        (["a"], "map_batches: its function returned 1 results for 3 values: it must return one for each"),
        (None, "map_batches: its function must return 3 results, one per value, not None"),
    ],
)
def test_a_result_of_another_length_is_an_error(returned: list[str] | None, text: str) -> None:
    topology = linear(lambda source: source.map_batches(lambda _: returned, size=3))  # type: ignore[arg-type, return-value]
    assert run(topology, values(*"abc"), None, 100)["failure"] == ("in", 0, text)


class Array:
    """An array of a library of numbers."""

    ndim = 1

    def __init__(self, given: list[str]) -> None:
        self.given = given

    def __iter__(self) -> Iterator[object]:
        return iter([object() for _ in self.given])

    def tolist(self) -> list[str]:
        return [value.upper() for value in self.given]


class Frame(dict[str, list[str]]):
    columns = ("a",)


def test_an_array_gives_plain_values_and_what_is_no_sequence_of_results_is_refused() -> None:
    assert results(run(linear(lambda source: source.map_batches(Array)), values("a", "b"), None, 2)) == ["A", "B"]  # type: ignore[arg-type]
    for returned in ("ab", b"ab", {"a": 1, "b": 2}, {"a", "b"}, Frame()):
        refused = linear(lambda source, returned=returned: source.map_batches(lambda _: returned))  # type: ignore[misc]
        failure = run(refused, values("a", "b"), None, 2)["failure"]
        assert isinstance(failure, tuple)
        assert f"returned a {type(returned).__name__}, which is not a sequence of results" in failure[2]


def test_an_operator_whose_input_depends_on_its_results_takes_one_record_at_a_time(caplog: pytest.LogCaptureFixture) -> None:
    class Counts(Processor[str, str, str, str]):
        """Adds the number of records that were done to the value."""

        def init(self, context: ProcessorContext[str, str]) -> None:
            self.context, self.store = context, context.get_state_store("done")

        def process(self, record: Record[str, str]) -> None:
            store: KeyValueStore[str, str] = self.store
            done = int(store.get("all") or "0")
            store.put("all", str(done + 1))
            self.context.forward(record.with_value(f"{record.value}{done}"))

    def shape(enrich: Enrich) -> Topology:
        builder = StreamsBuilder()
        builder.add_state_store(Stores.key_value_store_builder(Stores.in_memory_key_value_store("done"), S, S))
        enrich(builder.stream("in", STRINGS).process(Counts, "done"), "f").process(Counts, "done").to("out", OUT)
        return builder.build()

    expected = run(shape(one_by_one), values(*"abcdef"), None, 1)
    with caplog.at_level(logging.WARNING):
        for enrich in (asynchronous(4), batched(4)):
            assert run(shape(enrich), values(*"abcdef"), None, 100) == expected
    assert "takes one record at a time, because its input depends on its results through a store" in caplog.text


@pytest.mark.parametrize("wrong", [0, -1, True, "10", 1.5])
def test_sizes_and_limits_are_positive_whole_numbers(wrong: int) -> None:
    source = StreamsBuilder().stream("in", STRINGS)

    async def call(value: str) -> str:
        return value

    with pytest.raises(TopologyError, match="size is a whole number of at least 1"):
        source.map_batches(lambda found: found, size=wrong)
    with pytest.raises(TopologyError, match="limit is a whole number of at least 1"):
        source.map_async(call, limit=wrong)


def test_map_values_and_map_batches_refuse_an_async_function() -> None:
    async def call(found: object) -> list[str]:
        return []

    source = StreamsBuilder().stream("in", STRINGS)
    with pytest.raises(TopologyError, match="use map_async"):
        source.map_values(call)
    with pytest.raises(TopologyError, match="use map_async"):
        source.map_batches(call)  # type: ignore[arg-type]
