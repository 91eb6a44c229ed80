"""Users' own stores, and those with more than one entry per key, through kills, aborts and restores on a real broker (rules.md, 12)."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.runtime.commit.exactly_once import ExactlyOnce
from penstock.runtime.model.errors import TransactionAbortedError
from penstock.runtime.model.states import State
from tests.broker.own_stores import topology
from tests.broker.test_commit import fail_some_commits
from tests.support import Kafka, wait_until
from tests.support.engine import counts_become, events_of_the_start_are_committed, running
from tests.support.instances import application

Topic = Callable[..., str]


@pytest.mark.chaos
def test_all_kinds_of_stores_agree_after_kills_and_after_a_rebuild(broker: Kafka, application_id: str, tmp_path: Path) -> None:
    """The processor fails if the stores differ on a count."""
    with application(broker, application_id, tmp_path, 2) as app:
        app.factory = "tests.broker.own_stores:build"
        sent = 0
        for kill in range(3):
            app.produce(1_000)
            sent += 1_000
            app.start("one")
            least = sent - 700 + 200 * kill
            wait_until(lambda: sum(broker.committed_offsets(app.id, app.source).values()) >= least, 40, "some commits")  # noqa: B023
            app.kill("one")
        app.start("one")
        app.each_update_came_once(sent)
        app.kill("one")
        shutil.rmtree(tmp_path / "one")
        app.produce(20)
        app.start("one")
        app.each_update_came_once(sent + 20)


def test_a_task_that_was_killed_before_its_first_commit_starts_again(broker: Kafka, application_id: str, tmp_path: Path) -> None:
    """Its stores have made files, and the other task's commits show that it was open."""
    with application(broker, application_id, tmp_path, 2) as app:
        app.factory = "tests.broker.own_stores:build"
        app.start("one")
        app.becomes({"one": 2})
        broker.produce(app.source, [("a", "v")] * 10, partition=1)
        wait_until(lambda: sum(broker.committed_offsets(app.id, app.source).values()) == 10, what="a commit of the other task")
        app.kill("one")
        assert list((tmp_path / "one").rglob("0_0/custom/*/*")), "files of its stores"
        broker.produce(app.source, [("b", "v")] * 10, partition=0)
        app.start("one")
        wait_until(lambda: sum(broker.committed_offsets(app.id, app.source).values()) == 20, what="all records")


def test_an_abort_takes_back_what_stores_of_the_users_own_wrote(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, output = topic("in", partitions=2), topic("out", partitions=2)
    fail_some_commits(monkeypatch, ExactlyOnce, TransactionAbortedError("for the test"), every=3)
    with running(broker, topology(source, output), application_id, state_dir) as streams:
        for sent in range(1, 9):
            broker.produce(source, [(f"k{n % 5}", "v") for n in range(50)])
            counts_become(broker, output, {f"k{n}": 10 * sent for n in range(5)})
        assert streams.state is State.RUNNING or streams.wait_for(State.RUNNING, 20_000)


def test_uncommitted_bytes_of_every_kind_bring_a_commit_forward(broker: Kafka, topic: Topic, application_id: str, state_dir: Path) -> None:
    """Five stores in one task share the limit."""
    source, output = topic("in"), topic("out")
    settings: dict[str, object] = {"commit.interval.ms": 60_000, "statestore.uncommitted.max.bytes": 20 * 5 * 64}
    with running(broker, topology(source, output), application_id, state_dir, **settings):
        events_of_the_start_are_committed(broker, application_id)
        broker.produce(source, [(f"k{n}", "v") for n in range(30)])
        counts_become(broker, output, {f"k{n}": 1 for n in range(30)}, 20)


def test_no_limit_of_uncommitted_bytes_leaves_commits_to_the_interval(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path
) -> None:
    source, output = topic("in"), topic("out")
    settings: dict[str, object] = {"commit.interval.ms": 60_000, "statestore.uncommitted.max.bytes": -1}
    with running(broker, topology(source, output), application_id, state_dir, **settings) as streams:

        def processed() -> float:
            return sum(value for name, value in streams.metrics().items() if name.name == "process-total")

        events_of_the_start_are_committed(broker, application_id)
        for sent in (30, 60):  # when the second are processed, the worker has checked after the first whether to commit
            broker.produce(source, [(f"k{n}", "v") for n in range(30)])
            wait_until(lambda sent=sent: processed() >= sent, what="the processing")  # type: ignore[misc]  # a default argument
        assert not sum(broker.committed_offsets(application_id, source).values())
    assert sum(broker.committed_offsets(application_id, source).values()) == 60, "by the close"
