"""KIP-990's unit tests, without a broker: a task pauses, says why, is repaired, and continues."""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import cast

import msgspec
import pytest

from penstock import (
    Consumed,
    DeserializationError,
    Grouped,
    LogAndPauseProductionExceptionHandler,
    Materialized,
    PausePoint,
    Produced,
    StreamsBuilder,
    TaskId,
    TaskState,
    serdes,
)
from penstock.runtime.model.ids import NextOffset, TopicPartition
from penstock.runtime.model.offsets import OffsetAndMetadata
from penstock.runtime.topology.topology import Topology
from penstock.testing import TestInputTopic, TopologyTestDriver

S, L, BYTES = serdes.STRING, serdes.LONG, serdes.BYTES
TEXT = Consumed(S, value=S)
TASK = TaskId(0, 0)
PAUSING: dict[str, object] = {
    "deserialization.exception.handler": "penstock.LogAndPauseExceptionHandler",
    "processing.exception.handler": "penstock.LogAndPauseProcessingExceptionHandler",
    "production.exception.handler": LogAndPauseProductionExceptionHandler,
}
BAD = b"\xff"


def fail_on_poison(value: str) -> str:
    if value == "poison":
        raise ValueError(f"not an order: {value}")  # the line that a pause names
    return value


def counting(*sources: str, caching: bool = False) -> Topology:
    """Counts of the records of all sources; user code that fails comes after the count."""
    builder = StreamsBuilder()
    stream = builder.stream(list(sources), TEXT)
    counts = stream.group_by_key().count(Materialized("counts", caching=caching)).to_stream()
    counts.to("out", Produced(S, value=L))
    stream.map_values(fail_on_poison).foreach(lambda key, value: None)
    return builder.build()


def raw(driver: TopologyTestDriver, topic: str) -> TestInputTopic[bytes, bytes]:
    return driver.create_input_topic(topic, BYTES, BYTES)


def pause_of(driver: TopologyTestDriver) -> PausePoint:
    [task] = driver.paused_local_tasks()
    assert (task.task_id, task.state, task.is_running) == (TASK, TaskState.PAUSED, False)
    assert task.paused is not None
    return task.paused


@pytest.mark.parametrize(("bad", "reason"), [(BAD, "deserialization"), (b"poison", "processing")])
def test_a_pause_commits_the_offsets_of_every_input_and_nothing_of_the_record(
    bad: bytes, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TopologyTestDriver(counting("left", "right", "silent"), PAUSING, initial_wall_clock_time=7) as driver:
        commits: list[dict[str, int]] = []
        commit = driver._around.transport.commit

        def noted(
            offsets: Mapping[TopicPartition, OffsetAndMetadata], meanwhile: Sequence[Callable[[], None]]
        ) -> Mapping[TopicPartition, NextOffset]:
            commits.append({partition.topic: at.offset for partition, at in offsets.items()})
            return commit(offsets, meanwhile)

        monkeypatch.setattr(driver._around.transport, "commit", noted)
        left, right, out = raw(driver, "left"), raw(driver, "right"), driver.create_output_topic("out", S, L)
        left.pipe_value_list([b"null key: dropped"])
        left.pipe_input(b"a", b"1")
        right.pipe_input(b"a", b"2")
        left.pipe_input(b"a", bad)
        point = pause_of(driver)
        assert (point.partition.topic, point.offset, point.reason, point.since_ms) == ("left", 2, reason, 7)
        assert (point.key, point.value) == (b"a", bad)
        assert commits[-1] == {"left": 2, "right": 1, "silent": 0}, "also of inputs that have not moved"
        assert {topic: driver.committed_offset(topic) for topic in ("left", "right", "silent")} == commits[-1]
        assert out.read_values_to_list() == [1, 2]
        assert driver.get_key_value_store("counts").get("a") == 2

        right.pipe_input(b"a", b"3")
        left.pipe_input(b"a", b"4")
        assert out.is_empty(), "records of all inputs wait"
        assert driver.shift_offset("left") == 3
        assert driver.resume(TASK) is True
        assert not driver.paused_local_tasks()
        assert out.read_values_to_list() == [3, 4]
        assert {topic: driver.committed_offset(topic) for topic in ("left", "right")} == {"left": 4, "right": 2}
        assert driver.resume(TASK) is False


def test_a_pause_clears_the_queues_and_resume_begins_at_the_shifted_offset() -> None:
    with TopologyTestDriver(counting("in"), PAUSING) as driver:
        given, out = raw(driver, "in"), driver.create_output_topic("out", S, L)
        given.pipe_key_value_list([(b"a", b"1"), (b"a", BAD), (b"a", b"2"), (b"a", BAD), (b"a", b"3")])
        driver.shift_offset("in")
        assert driver.resume(TASK), "it has left PAUSED, and meets the next bad record"
        assert pause_of(driver).offset == 3
        [task] = driver._tasks
        assert task.queues is not None
        assert (task.queues.buffered, [queue.head() for queue in task.queues.all]) == (0, [None])
        assert out.read_values_to_list() == [1, 2]
        driver.resume(TASK)
        assert pause_of(driver).offset == 3, "without a shift the record is read again"
        with pytest.raises(ValueError, match="offsets 0 to 5, not 6"):
            driver.shift_offset("in", 3)
        assert driver.shift_offset("in", -1) == 2
        driver.resume(TASK)
        assert out.read_values_to_list() == [3], "the record before is counted again"
        driver.shift_offset("in")
        driver.resume(TASK)
        assert out.read_values_to_list() == [4]
        with pytest.raises(ValueError, match="no task that is PAUSED reads topic 'in'"):
            driver.shift_offset("in")


def test_records_between_a_pause_and_a_record_that_cannot_be_read_are_not_passed_over() -> None:
    """They are decoded together when the task resumes, so the second pause is known when the first one begins."""
    with TopologyTestDriver(counting("in"), PAUSING) as driver:
        given, out = raw(driver, "in"), driver.create_output_topic("out", S, L)
        given.pipe_key_value_list([(b"a", b"1"), (b"a", b"poison"), (b"a", b"2"), (b"a", BAD), (b"a", b"3")])
        driver.resume(TASK)
        assert (pause_of(driver).offset, pause_of(driver).reason, driver.committed_offset("in")) == (1, "processing", 1)
        driver.shift_offset("in")
        driver.resume(TASK)
        assert (pause_of(driver).offset, pause_of(driver).reason, driver.committed_offset("in")) == (3, "deserialization", 3)
        driver.shift_offset("in")
        driver.resume(TASK)
        assert out.read_values_to_list() == [1, 2, 3]


def test_fixed_code_continues_with_the_record() -> None:
    broken = [True]

    def work(value: str) -> str:
        if broken[0]:
            raise KeyError(value)
        return value.upper()

    builder = StreamsBuilder()
    builder.stream("in", TEXT).map_values(work).to("out", Produced(S, value=S))
    with TopologyTestDriver(builder.build(), PAUSING) as driver:
        given, out = driver.create_input_topic("in", S, S), driver.create_output_topic("out", S, S)
        given.pipe_key_value_list([("a", "x"), ("a", "y")])
        assert pause_of(driver).offset == 0
        broken[0] = False
        driver.resume(TASK)
        assert out.read_values_to_list() == ["X", "Y"]


@pytest.mark.parametrize("caching", [False, True])
def test_an_output_that_cannot_be_written_pauses_before_its_input_record_also_behind_a_cache(caching: bool) -> None:
    builder = StreamsBuilder()
    last = builder.stream("in", TEXT).group_by_key().reduce(lambda old, new: new, Materialized("last", caching=caching))
    numbers = last.to_stream().map_values(lambda value: cast(int, value) if value == "poison" else 1)
    numbers.to("out", Produced(S, value=L, name="the-sink"))
    with TopologyTestDriver(builder.build(), PAUSING) as driver:
        given, out = driver.create_input_topic("in", S, S), driver.create_output_topic("out", S, L)
        given.pipe_key_value_list([("a", "1"), ("b", "poison"), ("a", "2")])
        point = pause_of(driver)
        assert (point.offset, point.reason, point.error_type) == (1, "production", "error")
        assert point.details is not None
        assert (point.details.node, point.details.serde, point.details.part) == ("the-sink", "LONG", "value")
        assert driver.get_key_value_store("last").get("b") is None
        driver.shift_offset("in")
        driver.resume(TASK)
        assert out.read_key_values_to_list() == [("a", 1), ("a", 1)]


def test_other_tasks_run_on_and_what_they_write_waits() -> None:
    builder = StreamsBuilder()
    keyed = builder.stream("in", TEXT).group_by(lambda key, value: value, Grouped(S, value=S, name="again"))
    counts = keyed.count(Materialized("counts", caching=False)).to_stream()
    counts.map_values(lambda count: 6 // (count - 2)).to("out", Produced(S, value=L))
    with TopologyTestDriver(builder.build(), PAUSING) as driver:
        given, out = driver.create_input_topic("in", S, S), driver.create_output_topic("out", S, L)
        given.pipe_key_value_list([("k", "x"), ("k", "x"), ("k", "x"), ("k", "y")])
        [task] = driver.paused_local_tasks()
        [(repartition, at)] = [(place.topic, at) for place, at in task.committed_offsets.items()]
        assert (str(task.task_id), at, driver.committed_offset("in")) == ("1_0", 1, 4)
        driver.shift_offset(repartition, 2)
        driver.resume(task.task_id)
        assert out.read_key_values_to_list() == [("x", -6), ("y", -6)]


def test_a_global_table_never_pauses() -> None:
    builder = StreamsBuilder()
    builder.global_table("global", TEXT, Materialized("rows"))
    builder.stream("in", TEXT).to("out", Produced(S, value=S))
    with TopologyTestDriver(builder.build(), PAUSING) as driver:
        with pytest.raises(DeserializationError, match="PAUSE is FAIL there"):
            raw(driver, "global").pipe_input(b"a", BAD)
        assert not driver.paused_local_tasks()


class Amount(msgspec.Struct):
    cents: int


class Order(msgspec.Struct):
    amount: Amount


class WithPrefix(serdes.Serde[object]):
    def __init__(self, name: str = "prefixed", content: Callable[[bytes], bytes] = lambda data: data[5:]) -> None:
        super().__init__(lambda topic, headers, data: json.dumps(data).encode(), self._read, name=name)
        self._content = content

    def _read(self, topic: str, headers: object, data: bytes) -> object:
        return json.loads(self._content(data))


COUNTED = serdes.json_schema("mock://counted", '{"properties": {"amount": {"properties": {"cents": {"type": "integer"}}}}}')
FRAMING = (COUNTED.serializer("in")({}) or b"")[:5]


@pytest.mark.parametrize(
    ("serde", "value", "name", "field", "byte"),
    [
        (serdes.json(Order), b'{"amount": {"cents": "x"}}', "json(Order)", "$.amount.cents", 21),
        (serdes.json(Order), b'{"amount": {}}', "json(Order)", "$.amount.cents", 11),
        (serdes.json(Order), b"{}", "json(Order)", "$.amount", 0),
        (serdes.json(Order), b'{"amount": {cents}}', "json(Order)", None, 12),
        (serdes.json(Order), b'{"amount": ', "json(Order)", None, 11),
        (serdes.JSON, b'{"a": \xff}', "JSON", None, 6),
        (S, b"abc\xffd", "STRING", None, 3),
        (WithPrefix(), b"\0\0\0\0\1[1, x]", "prefixed", None, 9),
        (WithPrefix("zlib", zlib.decompress), zlib.compress(b"[1, x]"), "zlib", None, None),
        (COUNTED, FRAMING + b'{"amount": {"cents": "x"}}', "json_schema", "$.amount.cents", 26),
        (COUNTED, FRAMING + b'{"amount": x}', "json_schema", None, 16),
        (L, b"123", "LONG", None, 3),
        (L, b"123456789", "LONG", None, 8),
        (serdes.BOOLEAN, b"\2", "BOOLEAN", None, 0),
        (serdes.BOOLEAN, b"\1\1", "BOOLEAN", None, 1),
        (serdes.UUID, b"0123", "UUID", None, 4),
        (serdes.UUID, b"0" * 36, "UUID", None, 8),
        (serdes.NULL, b"x", "NULL", None, 0),
        (serdes.time_windowed(S, 5), b"abc", "time_windowed(STRING)", None, 3),
        (serdes.session_windowed(S), b"abc", "session_windowed(STRING)", None, 3),
        (serdes.time_windowed(serdes.json(Order), 5), b'{"amount":12345678', "time_windowed(json(Order))", None, 10),
        (serdes.list_of(S), b"", "list_of(STRING)", None, 0),
        (serdes.list_of(S), b"\1\0\0\0\2\0\0\0\1a\0\0\0\1\xff", "list_of(STRING)", "$[...]", 14),
        (serdes.list_of(serdes.json(Order)), b'\1\0\0\0\1\0\0\0\x0c{"amount":1}', "list_of(json(Order))", "$[...].amount", 19),
    ],
)
def test_a_pause_names_the_serde_the_field_and_the_byte(
    serde: serdes.Serde[object], value: bytes, name: str, field: str | None, byte: int | None
) -> None:
    builder = StreamsBuilder()
    builder.stream("in", Consumed(S, value=serde, name="orders")).foreach(lambda key, value: None)
    with TopologyTestDriver(builder.build(), PAUSING) as driver:
        raw(driver, "in").pipe_input(b"k", value)
        details = pause_of(driver).details
        assert details is not None
        assert (details.node, details.serde, details.part, details.field, details.byte) == ("orders", name, "value", field, byte)
        assert (details.location is None) == (name not in ("prefixed", "zlib", "json_schema", "UUID")), "no Python code but Penstock's"


def test_the_serde_of_a_store_is_named_with_its_line_and_a_handler_logs_both_lines(caplog: pytest.LogCaptureFixture) -> None:
    def write(topic: str, headers: object, value: str) -> bytes:
        raise ValueError("no order")  # that a store's serde names

    builder = StreamsBuilder()
    broken: serdes.Serde[str] = serdes.Serde(write, lambda topic, headers, data: data.decode())
    builder.stream("in", key=S, value=S).group_by_key().aggregate(str, lambda key, value, kept: value, "kept", value=broken)
    with TopologyTestDriver(builder.build(), PAUSING) as driver, caplog.at_level(logging.ERROR):
        driver.create_input_topic("in", S, S).pipe_input("k", "v")
        details = pause_of(driver).details
    assert details is not None
    line = next(number for number, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "that a store's serde names" in text)
    assert details.location is not None and details.location.startswith(f"{__file__}:{line} in ")
    [logged] = [record.getMessage() for record in caplog.records if "the task pauses" in record.getMessage()]
    assert f"(aggregate at {Path(__file__).name}:" in logged and f"{__file__}:{line} in " in logged


@pytest.mark.parametrize(
    ("value", "field"),
    [({"amount": {"cents": "x"}}, "$.amount.cents"), ({"amount": {}}, "$.amount.cents"), ({"of Mustermann": 1}, "$[...]")],
)
def test_a_field_is_named_as_the_schema_declares_it_and_not_by_a_key_of_the_record(value: object, field: str) -> None:
    amount = {"type": "object", "required": ["cents"], "properties": {"cents": {"type": "integer"}}}
    strict = {"title": "Order", "type": "object", "properties": {"amount": amount}, "additionalProperties": {"type": "string"}}
    anything = serdes.json_schema("mock://pauses", json.dumps({"title": "Order", "type": "object"}))
    builder = StreamsBuilder()
    builder.stream("in", Consumed(S, value=serdes.json_schema("mock://pauses", json.dumps(strict)))).foreach(lambda key, value: None)
    with TopologyTestDriver(builder.build(), PAUSING) as driver:
        driver.create_input_topic("in", S, anything).pipe_input("k", value)
        details = pause_of(driver).details
        assert details is not None
        assert (details.serde, details.field) == ("json_schema", field)


def test_a_pause_names_file_and_line_and_its_stack_has_nothing_of_the_record(caplog: pytest.LogCaptureFixture) -> None:
    with TopologyTestDriver(counting("in"), PAUSING) as driver, caplog.at_level(logging.ERROR):
        driver.create_input_topic("in", S, S).pipe_input("a", "poison")
        point = pause_of(driver)
    assert point.details is not None
    line = next(number for number, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "that a pause names" in text)
    assert point.details.location == f"{__file__}:{line} in fail_on_poison"
    assert point.error == "not an order: poison"
    stack = point.details.stack.splitlines()
    assert stack[0].startswith(f'  File "{__file__}", line {line}')
    assert stack[-1] == "ValueError"
    assert "order: poison" not in point.details.stack
    payload = point.payload()
    assert (payload["location"], payload["stack"], payload["since_ms"]) == (point.details.location, point.details.stack, point.since_ms)
    [logged] = [record for record in caplog.records if "the task pauses" in record.getMessage()]
    assert logged.exc_info is not None
    assert isinstance(logged.exc_info[1], ValueError)


def test_nothing_changes_for_an_application_that_does_not_use_pause() -> None:
    """KIP-990: the default handler fails, and a task never pauses by itself."""
    with TopologyTestDriver(counting("in")) as driver:
        with pytest.raises(DeserializationError, match="in-0@0"):
            raw(driver, "in").pipe_input(b"a", BAD)
        assert not driver.paused_local_tasks()
    continuing = {"deserialization.exception.handler": "penstock.LogAndContinueExceptionHandler"}
    with TopologyTestDriver(counting("in"), continuing) as driver:
        raw(driver, "in").pipe_value_list([BAD])
        assert not driver.paused_local_tasks()
        assert driver.committed_offset("in") == 1


def test_a_skipped_record_of_a_global_topic_is_a_dead_letter_too() -> None:
    builder = StreamsBuilder()
    builder.global_table("global", TEXT, Materialized("rows"))
    builder.stream("in", TEXT).to("out", Produced(S, value=S))
    skipping = {"deserialization.exception.handler": "penstock.LogAndContinueExceptionHandler"}
    with TopologyTestDriver(builder.build(), {**skipping, "errors.dead.letter.queue.topic.name": "dead"}) as driver:
        raw(driver, "global").pipe_input(b"a", BAD)
        letter = driver.create_output_topic("dead", BYTES, BYTES).read_record()
        headers = dict(letter.headers)
        assert (letter.value, headers["__streams.errors.topic"], headers["__streams.errors.offset"]) == (BAD, b"global", b"0")
        assert b"UnicodeDecodeError" in (headers["__streams.errors.stacktrace"] or b"")


def test_a_dead_letter_has_the_stack() -> None:
    skipping = {"processing.exception.handler": "penstock.LogAndContinueProcessingExceptionHandler"}
    with TopologyTestDriver(counting("in"), {**skipping, "errors.dead.letter.queue.topic.name": "dead"}) as driver:
        driver.create_input_topic("in", S, S).pipe_input("a", "poison")
        letter = driver.create_output_topic("dead", S, S).read_record()
    headers = dict(letter.headers)
    assert (letter.value, headers["__streams.errors.exception"], headers["__streams.errors.offset"]) == ("poison", b"ValueError", b"0")
    assert b"in fail_on_poison" in (headers["__streams.errors.stacktrace"] or b"")
