"""Whether a topic was made anew, by looks that may overtake each other."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from runtime.changelog.topic_watch import Sight
from runtime.testing import ManualClock
from runtime.worker.source_topics import SourceTopics


class Looks:
    """What the brokers say now, and looks of the watch that come when they come."""

    def __init__(self) -> None:
        self.ids = {"a": "1", "b": "1"}
        self.clock = ManualClock(1_000)
        self.topics = SourceTopics(self.look, ["a", "b"], self.clock)

    def look(self, names: Collection[str]) -> Mapping[str, str]:
        return {name: self.ids[name] for name in names if name in self.ids}

    def watch_sees(self, ids: Mapping[str, str], asked_ms: int) -> list[str]:
        self.topics._watch._newest = Sight(asked_ms, ids)
        return self.topics.made_anew()


def test_another_id_is_told_once() -> None:
    looks = Looks()
    assert looks.topics.made_anew() == []
    assert looks.watch_sees({"a": "1", "b": "1"}, 1_000) == []
    assert looks.watch_sees({"b": "1"}, 1_001) == []  # deleted: nothing to go on with yet
    assert looks.watch_sees({"a": "2", "b": "1"}, 1_002) == ["a"]
    assert looks.watch_sees({"a": "2", "b": "1"}, 1_003) == []


def test_a_position_that_was_set_anew_for_another_reason_is_not_set_again_for_the_id() -> None:
    looks = Looks()
    looks.watch_sees({"a": "1", "b": "1"}, 1_000)
    looks.clock.advance(50)
    looks.ids["a"] = "2"
    looks.topics.look_again("a")  # the position was out of range: the topic is shorter now
    assert looks.watch_sees({"a": "1", "b": "1"}, 1_040) == []  # asked before
    assert looks.watch_sees({"a": "2", "b": "1"}, 1_060) == []
    assert looks.watch_sees({"a": "3", "b": "1"}, 1_070) == ["a"]
