"""Times that no record can have: the record is named, before anything is done with it."""

from __future__ import annotations

import pytest

from penstock import serdes
from penstock.runtime.dsl.builder import StreamsBuilder
from penstock.runtime.dsl.options import Consumed, Materialized
from penstock.runtime.input.deserialization import LATEST_MS
from penstock.runtime.model.errors import DeserializationError
from penstock.testing import TopologyTestDriver


def pipe(milliseconds: int) -> None:
    builder = StreamsBuilder()
    consumed = Consumed(serdes.STRING, value=serdes.STRING, timestamp_extractor=lambda record, _: milliseconds)
    builder.stream("in", consumed).group_by_key().count(Materialized("counts"))
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("in", serdes.STRING, serdes.STRING).pipe_input("a", "1")


@pytest.mark.parametrize("milliseconds", [LATEST_MS + 1, 2**70])
def test_an_extractor_that_returns_more_than_64_bits_fails_on_its_record(milliseconds: int) -> None:
    with pytest.raises(DeserializationError, match=r"in-0@0.*no record can be so late"):
        pipe(milliseconds)


@pytest.mark.parametrize("milliseconds", [LATEST_MS, 0, -5])
def test_every_other_time_is_taken_or_dropped(milliseconds: int) -> None:
    pipe(milliseconds)
