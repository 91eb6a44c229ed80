"""What the user's code returns and cannot be used is told with node, record and what was expected."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from runtime import serdes
from runtime.dsl.builder import StreamsBuilder
from runtime.dsl.kstream import KStream
from runtime.dsl.options import Consumed, Grouped, Produced
from runtime.errors import ProcessingError
from runtime.testing import TopologyTestDriver

TEXT = Consumed(serdes.STRING, value=serdes.STRING)


def driven(build: Callable[[KStream], KStream], value: str = "v", produced: Produced | None = None) -> list[tuple[object, object]]:
    """What comes out for one record ("k", value)."""
    builder = StreamsBuilder()
    build(builder.stream("in", TEXT)).to("out", produced or Produced(serdes.STRING, value=serdes.STRING, name="sink"))
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("in", serdes.STRING, serdes.STRING).pipe_input("k", value)
        return driver.create_output_topic("out", serdes.STRING, serdes.STRING).read_key_values_to_list()


class Pair(NamedTuple):
    """A pair with names."""

    key: str
    value: str


@pytest.mark.parametrize("result", ["ab", b"ab", {"a": 1, "b": 2}, None, 7], ids=repr)
def test_a_mapper_that_returns_no_pair_is_told_so_even_if_it_could_be_unpacked(result: object) -> None:
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
def test_what_a_sink_cannot_write_is_told_with_serde_type_topic_node_and_record(key: object, value: object, what: str) -> None:
    with pytest.raises(ProcessingError, match=rf"node sink, record in-0@0: .*{what} to topic out: .*Produced\("):
        driven(lambda stream: stream.map(lambda _key, _value: (key, value)))
    with pytest.raises(ProcessingError, match=what):  # the same where each record's partition is chosen
        produced = Produced(serdes.STRING, value=serdes.STRING, partitioner=lambda topic, key, value, partitions: 0)
        driven(lambda stream: stream.map(lambda _key, _value: (key, value)), produced=produced)
