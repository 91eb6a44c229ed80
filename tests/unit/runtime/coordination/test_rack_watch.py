"""The leader's requests for racks, and its use of the answer (`rack.aware.assignment.strategy`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import pytest

from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.coordination.rack_watch import RackWatch
from penstock.runtime.coordination.racks import RackRules, RackStrategy
from penstock.runtime.coordination.topics import TopicLayout
from penstock.runtime.kafka.topic_admin import TopicAdmin
from penstock.runtime.kafka.topic_watch import TopicWatcher
from penstock.runtime.model.clock import SystemClock
from penstock.runtime.model.errors import BrokerUnavailableError
from penstock.runtime.model.ids import TaskId, TopicPartition
from tests.support import wait_until
from tests.support.engine import count_topology

HERE = frozenset({"r1"})


def watch(**settings: object) -> RackWatch:
    config = StreamsConfig({"application.id": "app", "bootstrap.servers": "127.0.0.1:1", "client.rack": "r1", **settings})
    topology = count_topology("in", "out")
    parts = topology.sub_topologies()
    tasks = frozenset(TaskId(part.id, 0) for part in parts)
    partitions = {topic: 1 for part in parts for topic in part.source_topics}
    layout = TopicLayout(partitions, tasks, frozenset(), frozenset(), TopicPartition("guard", 0))
    return RackWatch(config, topology, layout, TopicAdmin(config), TopicWatcher(SystemClock()))


def rules(watch: RackWatch) -> RackRules:
    return cast(RackRules, wait_until(watch.rules, what="an answer"))


def test_no_request_is_made_where_racks_do_not_matter() -> None:
    assert watch().rules() == RackRules()


def test_each_task_s_input_and_changelogs_are_where_the_brokers_say(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def racks(self: TopicAdmin, topics: Iterable[str]) -> dict[TopicPartition, frozenset[str]]:
        asked.extend(topics)
        return {TopicPartition(topic, 0): HERE for topic in topics if not topic.endswith("-changelog")}

    monkeypatch.setattr(TopicAdmin, "racks", racks)
    watched = watch(**{"rack.aware.assignment.strategy": "min_traffic", "rack.aware.assignment.traffic_cost": 7})
    assert watched.rules() is None, "nothing is assigned before the first answer"
    found = rules(watched)
    assert (found.strategy, found.traffic_cost, found.non_overlap_cost) == (RackStrategy.MIN_TRAFFIC, 7, None)
    assert any(topic.endswith("-changelog") for topic in asked)
    assert all(HERE in places for places in found.racks.values())
    assert any(frozenset() in places for places in found.racks.values()), "the changelog, whose racks the brokers did not return"
    watched.close()


def test_without_an_answer_tasks_are_placed_as_if_there_were_no_racks(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away(self: TopicAdmin, topics: Iterable[str]) -> dict[TopicPartition, frozenset[str]]:
        raise BrokerUnavailableError("no broker answers")

    monkeypatch.setattr(TopicAdmin, "racks", away)
    watched = watch(**{"rack.aware.assignment.strategy": "balance_subtopology"})
    assert rules(watched) == RackRules()
    assert "racks are ignored" in caplog.text
    watched.close()


def test_brokers_without_racks_are_reported(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(TopicAdmin, "racks", lambda self, topics: {TopicPartition(topic, 0): frozenset() for topic in topics})
    watched = watch(**{"rack.aware.assignment.strategy": "min_traffic"})
    rules(watched)
    assert "broker.rack" in caplog.text
    watched.close()
