"""The policies for partitions without an offset, as text and as objects (KIP-1106)."""

from __future__ import annotations

from datetime import timedelta

import pytest

from penstock import serdes
from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.dsl.builder import StreamsBuilder
from penstock.runtime.dsl.options import Consumed, Grouped
from penstock.runtime.model.errors import StreamsConfigError
from penstock.runtime.model.offsets import AutoOffsetReset

CONFIG = {"application.id": "app", "bootstrap.servers": "localhost:9092"}
HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("earliest", AutoOffsetReset.earliest()),
        ("latest", AutoOffsetReset.latest()),
        ("none", AutoOffsetReset.none()),
        ("by_duration:PT1H", AutoOffsetReset.by_duration(timedelta(hours=1))),
        ("by_duration:P1DT1H30M2.5S", AutoOffsetReset.by_duration(25 * HOUR_MS + 30 * 60_000 + 2_500)),
        ("by_duration:P2D", AutoOffsetReset.by_duration(48 * HOUR_MS)),
        ("by_duration:PT0S", AutoOffsetReset.by_duration(0)),
    ],
)
def test_a_policy_is_read_from_text_and_written_back(text: str, policy: AutoOffsetReset) -> None:
    assert AutoOffsetReset.of(text) == policy
    assert AutoOffsetReset.of(str(policy)) == policy
    assert StreamsConfig({**CONFIG, "auto.offset.reset": text})["auto.offset.reset"] == text


@pytest.mark.parametrize(
    "text", ["newest", "by_duration", "by_duration:", "by_duration:P", "by_duration:PT", "by_duration:1h", "by_duration:PT-1H"]
)
def test_an_invalid_policy_is_refused_with_the_valid_ones(text: str) -> None:
    with pytest.raises(StreamsConfigError, match=r"auto\.offset\.reset = .*(none|ISO 8601)"):
        StreamsConfig({**CONFIG, "auto.offset.reset": text})


def test_a_negative_duration_is_refused() -> None:
    with pytest.raises(ValueError, match="must not be negative"):
        AutoOffsetReset.by_duration(-1)


def test_the_configuration_accepts_a_policy_object() -> None:
    config = StreamsConfig({**CONFIG, "auto.offset.reset": AutoOffsetReset.by_duration(HOUR_MS)})
    assert AutoOffsetReset.of(config.text("auto.offset.reset")) == AutoOffsetReset.by_duration(timedelta(hours=1))


def test_the_applications_own_topics_begin_at_their_start_whatever_is_configured() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", Consumed(serdes.STRING, value=serdes.STRING, offset_reset_policy=AutoOffsetReset.latest()))
    stream.select_key(lambda key, value: value).group_by_key(Grouped(serdes.STRING, value=serdes.STRING)).count()
    [inner] = [source for part in builder.build().sub_topologies() for source in part.sources if source.topics != ("in",)]
    assert inner.offset_reset == AutoOffsetReset.earliest()
