"""Wrong results of the user's code are reported with node, record and what was expected."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from penstock import serdes
from penstock.runtime.dsl.builder import StreamsBuilder
from penstock.runtime.dsl.kstream import KStream
from penstock.runtime.dsl.options import Consumed, Grouped, Produced
from penstock.runtime.model.errors import ProcessingError, ProductionError
from penstock.runtime.model.handlers import (
    ErrorHandlerContext,
    ProductionExceptionHandler,
    ProductionExceptionHandlerResponse,
    SerializationExceptionOrigin,
)
from penstock.runtime.model.timestamps import ConsumerRecord
from penstock.testing import TopologyTestDriver

TEXT = Consumed(serdes.STRING, value=serdes.STRING)


def driven(build: Callable[[KStream], KStream], value: str = "v", produced: Produced | None = None) -> list[tuple[object, object]]:
    """Return the outputs for one record ("k", value)."""
    builder = StreamsBuilder()
    build(builder.stream("in", TEXT)).to("out", produced or Produced(serdes.STRING, value=serdes.STRING, name="sink"))
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("in", serdes.STRING, serdes.STRING).pipe_input("k", value)
        return [*driver.create_output_topic("out", serdes.STRING, serdes.STRING).read_key_values_to_list()]


class Pair(NamedTuple):
    """A pair with names."""

    key: str
    value: str


@pytest.mark.parametrize("result", ["ab", b"ab", {"a": 1, "b": 2}, None, 7], ids=repr)
def test_a_mapper_that_returns_no_pair_is_an_error_even_if_the_result_could_be_unpacked(result: object) -> None:
    with pytest.raises(ProcessingError, match=r"node KSTREAM-MAP-.*in-0@0.*map expects a pair \(key, value\).*" + repr(result)[:4]):
        driven(lambda stream: stream.map(lambda key, value: result))  # type: ignore[arg-type, return-value]  # that is the point
    with pytest.raises(ProcessingError, match=r"node KSTREAM-FLATMAP-.*flat_map expects a pair"):
        driven(lambda stream: stream.flat_map(lambda key, value: [result]))  # type: ignore[list-item]  # as above


@pytest.mark.parametrize("result", [("a", "b"), Pair("a", "b"), ["a", "b"]], ids=repr)
def test_every_kind_of_pair_will_do(result: object) -> None:
    assert driven(lambda stream: stream.map(lambda key, value: result)) == [("a", "b")]  # type: ignore[arg-type, return-value]


def test_a_tables_group_by_wants_a_pair_too() -> None:
    builder = StreamsBuilder()
    grouped = builder.table("in", TEXT).group_by(lambda key, value: "ab", Grouped(serdes.STRING, value=serdes.STRING))  # type: ignore[arg-type, return-value]
    grouped.count().to_stream().to("out", Produced(serdes.STRING, value=serdes.LONG))
    with TopologyTestDriver(builder.build()) as driver, pytest.raises(ProcessingError, match="group_by expects a pair"):
        driver.create_input_topic("in", serdes.STRING, serdes.STRING).pipe_input("k", "v")


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [("k", 5, r"serde STRING cannot write the value 5 \(of type int\)"), (5, "v", r"serde STRING cannot write the key 5 \(of type int\)")],
)
def test_an_unwritable_output_is_reported_with_serde_type_topic_node_and_record(key: object, value: object, what: str) -> None:
    with pytest.raises(ProductionError, match=rf"node sink, record in-0@0: .*{what} to topic out: .*Produced\("):
        driven(lambda stream: stream.map(lambda _key, _value: (key, value)))
    with pytest.raises(ProductionError, match=what):  # the same where each record's partition is chosen
        produced = Produced(serdes.STRING, value=serdes.STRING, partitioner=lambda topic, key, value, partitions: 0)
        driven(lambda stream: stream.map(lambda _key, _value: (key, value)), produced=produced)


class Judge(ProductionExceptionHandler):
    """Answers as the test says, and keeps what it was asked."""

    def __init__(self, answer: object) -> None:
        self.answer = answer
        self.asked: list[tuple[ErrorHandlerContext, ConsumerRecord, Exception, SerializationExceptionOrigin]] = []

    def handle_serialization_exception(
        self, context: ErrorHandlerContext, record: ConsumerRecord, exception: Exception, origin: SerializationExceptionOrigin
    ) -> ProductionExceptionHandlerResponse:
        self.asked.append((context, record, exception, origin))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer  # type: ignore[return-value]  # a test may answer wrongly


def decide(handler: Judge, mapped: dict[str, tuple[object, object]], produced: Produced) -> list[object]:
    """The values that come out for the three values a, bad, b, of which the second is mapped to what cannot be written."""
    builder = StreamsBuilder()
    builder.stream("in", TEXT).map(lambda key, value: mapped.get(value, (key, value))).to("out", produced)
    with TopologyTestDriver(builder.build(), {"production.exception.handler": handler}) as driver:
        driver.create_input_topic("in", serdes.STRING, serdes.STRING).pipe_value_list(["a", "bad", "b"])
        return [*driver.create_output_topic("out", serdes.STRING, serdes.STRING).read_values_to_list()]


@pytest.mark.parametrize("partitioner", [None, lambda topic, key, value, partitions: 0], ids=["by key", "chosen"])
@pytest.mark.parametrize(
    ("output", "origin"), [(("k", 5), SerializationExceptionOrigin.VALUE), ((5, "v"), SerializationExceptionOrigin.KEY)], ids=str
)
def test_an_output_that_a_serde_cannot_write_is_left_out_where_the_production_handler_says_so(
    output: tuple[object, object], origin: SerializationExceptionOrigin, partitioner: Callable[[str, object, object, int], int] | None
) -> None:
    handler = Judge(ProductionExceptionHandlerResponse.CONTINUE)
    produced = Produced(serdes.STRING, value=serdes.STRING, name="sink", partitioner=partitioner)
    assert decide(handler, {"bad": output}, produced) == ["a", "b"]
    [(context, record, error, about)] = handler.asked
    assert (context.topic, context.offset, context.processor_node_id) == ("in", 1, "sink")
    assert (record.topic, record.key, record.value, about) == ("out", *output, origin)
    assert isinstance(error, AttributeError | TypeError)  # what the serde itself raised


@pytest.mark.parametrize(
    ("answer", "reported"),
    [
        (ProductionExceptionHandlerResponse.FAIL, r"record in-0@1: serde STRING"),
        (ProductionExceptionHandlerResponse.RETRY, r"record in-0@1: serde STRING"),
        (ValueError("no idea"), r"Judge.*failed on .*record in-0@1.*no idea"),
        ("MAYBE", r"Judge.* returned 'MAYBE'"),
    ],
    ids=str,
)
def test_every_other_answer_about_an_output_that_a_serde_cannot_write_is_an_error(answer: object, reported: str) -> None:
    with pytest.raises(ProductionError, match=reported):
        decide(Judge(answer), {"bad": ("k", 5)}, Produced(serdes.STRING, value=serdes.STRING))


def test_a_handler_that_knows_nothing_of_serdes_fails() -> None:
    class Old(ProductionExceptionHandler):
        def handle(self, context: ErrorHandlerContext, record: ConsumerRecord, exception: Exception) -> ProductionExceptionHandlerResponse:
            return ProductionExceptionHandlerResponse.CONTINUE

    builder = StreamsBuilder()
    builder.stream("in", TEXT).map_values(len).to("out", Produced(serdes.STRING, value=serdes.STRING))  # type: ignore[arg-type]
    with TopologyTestDriver(builder.build(), {"production.exception.handler": Old}) as driver, pytest.raises(ProductionError):
        driver.create_input_topic("in", serdes.STRING, serdes.STRING).pipe_input("k", "v")
