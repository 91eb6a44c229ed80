"""Detection of recreated topics, with polls that may overtake each other."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from penstock.runtime.kafka.topic_watch import Observation, TopicWatcher
from penstock.runtime.worker.source_topics import SourceTopics
from penstock.testing import ManualClock


class Looks:
    """Brokers with current topic ids, and a watcher whose polls arrive when the test says so."""

    def __init__(self) -> None:
        self.ids = {"a": "1", "b": "1"}
        self.clock = ManualClock(1_000)
        self.topics = SourceTopics(self.look, ["a", "b"], self.clock, TopicWatcher(self.clock))

    def look(self, names: Collection[str]) -> Mapping[str, str]:
        return {name: self.ids[name] for name in names if name in self.ids}

    def watch_sees(self, ids: Mapping[str, str], asked_ms: int) -> list[str]:
        self.topics._watch._newest = Observation(asked_ms, ids)
        return self.topics.recreated()


def test_a_new_topic_id_is_reported_once() -> None:
    looks = Looks()
    assert looks.topics.recreated() == []
    assert looks.watch_sees({"a": "1", "b": "1"}, 1_000) == []
    assert looks.watch_sees({"b": "1"}, 1_001) == []  # deleted: nothing to read yet
    assert looks.watch_sees({"a": "2", "b": "1"}, 1_002) == ["a"]
    assert looks.watch_sees({"a": "2", "b": "1"}, 1_003) == []


def test_a_position_that_was_reset_already_is_not_reset_again_for_the_new_id() -> None:
    looks = Looks()
    looks.watch_sees({"a": "1", "b": "1"}, 1_000)
    looks.clock.advance(50)
    looks.ids["a"] = "2"
    looks.topics.poll_now("a")  # the position was out of range: the topic is shorter now
    assert looks.watch_sees({"a": "1", "b": "1"}, 1_040) == []  # polled before
    assert looks.watch_sees({"a": "2", "b": "1"}, 1_060) == []
    assert looks.watch_sees({"a": "3", "b": "1"}, 1_070) == ["a"]
