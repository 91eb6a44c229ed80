"""A paused task stays paused on every owner: after a kill, after a restart, by a bad record or by a command; and the replies to
commands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.runtime.client.kafka_streams import KafkaStreams
from penstock.runtime.commit.compare_and_set import Offsets
from penstock.runtime.coordination.commands import CommandClient
from penstock.runtime.kafka.transactions import TransactionalProducer
from penstock.runtime.model.clock import SystemClock
from penstock.runtime.model.errors import StreamsError
from penstock.runtime.model.events import EventKind
from penstock.runtime.model.ids import TaskId, TopicPartition
from penstock.runtime.model.states import State
from penstock.runtime.worker.periodic_jobs import RECOMMIT_MS
from tests.support import Kafka, wait_until
from tests.support.engine import BAD, PAUSE, count_topology, counts_become, events_of_kind, paused, reaches, running
from tests.support.instances import application, members

Topic = Callable[..., str]
TASK, OTHER = TaskId(0, 0), TaskId(0, 1)


def where(broker: Kafka, application_id: str, state: str) -> dict[str, str]:
    """Return the owner of each task that is in a state, by task."""
    return {
        task: instance
        for instance, tasks in members(broker, application_id).items()
        for task, its_state in tasks.items()
        if its_state == state
    }


def test_a_bad_record_and_a_pause_by_hand_hold_their_tasks_at_the_next_owner_too(
    broker: Kafka, application_id: str, tmp_path: Path
) -> None:
    """Of two instances, the owner of both tasks is killed. One task is paused by its record again, the other by the recorded pause."""
    with (
        application(broker, application_id, tmp_path, partitions=2) as app,
        CommandClient(application_id, broker.connection, "t") as client,
    ):
        app.start("one")
        app.becomes({"one": 2})
        broker.produce(app.source, [("a", "1"), ("a", BAD), ("a", "2")], partition=0)
        broker.produce(app.source, [("b", "1")], partition=1)
        wait_until(lambda: where(broker, app.id, "PAUSED") == {"0_0": "one"}, what="the pause")
        counts_become(broker, app.output, {"a": 1, "b": 1})
        assert client.send("pause", task=OTHER).ok
        broker.produce(app.source, [("b", "2")], partition=1)
        wait_until(lambda: where(broker, app.id, "PAUSED") == {"0_0": "one", "0_1": "one"}, what="the pause by hand")
        app.start("two")
        wait_until(lambda: len(members(broker, app.id)) == 2, what="two members")
        app.kill("one")
        wait_until(lambda: where(broker, app.id, "PAUSED") == {"0_0": "two", "0_1": "two"}, 45, "both paused at the next owner")
        assert broker.committed_offsets(app.id, app.source) == {0: 1, 1: 1}
        counts_become(broker, app.output, {"a": 1, "b": 1})

        assert client.send("shift", task=TASK, args={"topic": app.source, "partition": 0, "from": 1, "to": 2}).ok
        assert client.send("resume", task=TASK).by == "two"
        assert client.send("resume", task=OTHER).by == "two"
        counts_become(broker, app.output, {"a": 2, "b": 2})
        app.kill("two")
        app.start("two")  # a resumed task is not held any more
        app.becomes({"two": 2})


def test_a_pause_by_hand_lasts_over_a_restart_until_the_client_itself_resumes_it(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path
) -> None:
    source, output = topic("in"), topic("out")
    topology = count_topology(source, output)
    with (
        CommandClient(application_id, broker.connection, "test") as client,
        running(broker, topology, application_id, state_dir),
    ):
        assert client.send("pause", task=TASK).ok
    broker.produce(source, [("a", "1")])
    with running(broker, topology, application_id, state_dir) as streams:
        wait_until(lambda: paused(streams) == {"0_0"}, what="the pause")
        assert events_of_kind(broker, application_id, EventKind.TASK_PAUSED)[-1].payload["reason"] == "command"
        assert streams.resume(TASK)
        counts_become(broker, output, {"a": 1})
    with running(broker, topology, application_id, state_dir) as streams:
        broker.produce(source, [("a", "2")])
        counts_become(broker, output, {"a": 2})
        assert paused(streams) == set()


def test_commands_are_answered_clearly_whatever_they_find(broker: Kafka, topic: Topic, application_id: str, state_dir: Path) -> None:
    source, output = topic("in"), topic("out")
    with CommandClient(application_id, broker.connection, "test") as client:
        with pytest.raises(StreamsError, match="has the application ever been started"):
            client.send("pause", task=TASK)
        with running(broker, count_topology(source, output), application_id, state_dir) as streams:
            answers: dict[str, tuple[bool, str]] = {}
            for kind, task in (("resume", TASK), ("pause", TASK), ("pause", TASK), ("pause", TaskId(3, 1)), ("dance", TASK)):
                answer = client.send(kind, task=task)
                answers[f"{kind} {task} {len(answers)}"] = (answer.ok, answer.reason)
            assert list(answers.values()) == [
                (True, "task 0_0 was running already"),
                (True, ""),
                (True, "task 0_0 was paused already"),
                (False, "there is no task 3_1: known are 0_0"),
                (False, answers["dance 0_0 4"][1]),
            ]
            assert "unknown command 'dance': known are close, export-snapshot, keep-snapshots, pause, " in answers["dance 0_0 4"][1]
            assert paused(streams) == {"0_0"}
        with pytest.raises(StreamsError, match="no instance answered for task 0_0 within 1 s"):
            client.send("resume", task=TASK, timeout_s=1)


class TurnableClock(SystemClock):
    """The machine's clock, with intervals that the test can let pass early."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + self.ahead_ms


def test_rule_20_offsets_of_a_paused_task_are_committed_again_every_six_hours(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, output = topic("in"), topic("out")
    broker.produce(source, [("a", "1"), ("a", BAD)])
    clock = TurnableClock()
    config: dict[str, object] = {
        "application.id": application_id,
        "bootstrap.servers": broker.bootstrap_servers,
        "state.dir": str(state_dir),
        "deserialization.exception.handler": PAUSE,
    }
    written: list[int] = []
    real = TransactionalProducer.send_offsets

    def send(self: TransactionalProducer, offsets: Offsets, *others: object, **named: object) -> None:
        written.extend(at.offset for partition, at in offsets.items() if partition == TopicPartition(source, 0))
        real(self, offsets, *others, **named)  # type: ignore[arg-type]  # passed on unchanged

    with KafkaStreams(count_topology(source, output), config, clock=clock) as streams:
        streams.start()
        reaches(streams, State.RUNNING)
        wait_until(lambda: paused(streams) == {"0_0"}, what="the pause")
        monkeypatch.setattr(TransactionalProducer, "send_offsets", send)
        for times in (1, 2):
            clock.ahead_ms += RECOMMIT_MS
            wait_until(lambda wanted=times: len(written) >= wanted, what="the commit of what is held")  # type: ignore[misc]
        assert set(written) == {1}
        assert paused(streams) == {"0_0"}
        assert broker.committed_offsets(application_id, source) == {0: 1}
