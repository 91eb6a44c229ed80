"""The reason why nothing is committed is in the log, once."""

from __future__ import annotations

import pytest

from penstock.runtime.kafka.topic_admin import Shortage
from penstock.runtime.kafka.topic_watch import TopicWatcher
from penstock.runtime.model.clock import SystemClock
from penstock.runtime.worker.output_topics import OutputTopics


def test_a_partition_that_takes_no_records_is_logged_when_it_begins_and_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    short = Shortage("out", 0, 1, 2, (2, 3))
    answers = [[], [short], [short], [], []]
    watch = OutputTopics(lambda topics: answers.pop(0), ["out"], TopicWatcher(SystemClock()))
    with caplog.at_level("INFO"):
        for _ in range(5):
            watch._look()
    assert caplog.messages == [
        "the brokers take no records for out-0 (1 copies in sync, min.insync.replicas is 2; brokers that are missing: 2, 3): nothing is "
        "committed that writes there. It goes on by itself when brokers are back",
        "the brokers take records again for out-0",
    ]
