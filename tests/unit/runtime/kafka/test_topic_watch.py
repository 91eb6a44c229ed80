"""Observations of topics, and which of them are dropped."""

from __future__ import annotations

import threading
from itertools import chain, repeat

from penstock.runtime.kafka.topic_watch import TopicWatcher
from penstock.runtime.model.clock import SystemClock
from tests.support import wait_until


def test_a_discarded_observation_is_not_returned_nor_one_whose_request_was_running() -> None:
    """It is from before what the caller has learned meanwhile, and would contradict it: a topic would seem to be recreated twice."""
    requested, answered, answers = threading.Event(), threading.Event(), chain(["before"], repeat("after"))

    def look() -> str:
        answer = next(answers)
        requested.set()
        assert answered.wait(30)
        return answer

    watcher = TopicWatcher(SystemClock())
    watch = watcher.watch(look, "some", 0.0)
    watch.start(at_once=True)
    assert requested.wait(30)
    watch.discard()
    answered.set()
    found = wait_until(watch.take, what="an observation")
    assert found is not None and found.facts == "after"
    watcher.close()
