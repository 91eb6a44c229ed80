"""The end of a log is asked for again before its topic is taken not to exist."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException

from penstock.runtime.kafka import shared_log
from penstock.runtime.kafka.shared_log import Tail
from penstock.runtime.model.errors import StreamsError


class SlowReader:
    """Answers each question after `seconds`, the first one with `refusal`."""

    def __init__(self, clock: list[float], seconds: float, refusal: int) -> None:
        self._clock, self._seconds, self._refusals = clock, seconds, [refusal]

    def get_watermark_offsets(self, _partition: object, _timeout: float) -> tuple[int, int]:
        self._clock[0] += self._seconds
        if self._refusals:
            raise KafkaException(KafkaError(self._refusals.pop()))
        return 0, 7


@pytest.mark.parametrize("refusal", [KafkaError._UNKNOWN_PARTITION, KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.LEADER_NOT_AVAILABLE])
def test_one_slow_response_does_not_mean_that_a_topic_is_missing(monkeypatch: pytest.MonkeyPatch, refusal: int) -> None:
    clock = [0.0]
    monkeypatch.setattr(shared_log, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=lambda _seconds: None))
    assert Tail(cast(Consumer, SlowReader(clock, 9.0, refusal)), "log").end() == 7


def test_a_permanent_error_is_raised_at_once() -> None:
    with pytest.raises(StreamsError, match="the end of log cannot be read"):
        Tail(cast(Consumer, SlowReader([0.0], 0.0, KafkaError.TOPIC_AUTHORIZATION_FAILED)), "log").end()
