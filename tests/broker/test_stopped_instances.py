"""Instances stopped on purpose: no other instance waits for them, and `penstock status` reports what waits, and for what."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from typer.testing import CliRunner

from penstock.orchestration.cli import app
from penstock.runtime.coordination.commands import CommandClient
from tests.support import Kafka, wait_until
from tests.support.engine import active_tasks, count_topology, counts_become, running


def test_tasks_of_an_instance_that_was_stopped_on_purpose_do_not_wait_for_it(
    broker: Kafka, topic: Callable[..., str], application_id: str, state_dir: Path
) -> None:
    source, output = topic("in", partitions=4), topic("out", partitions=4)
    topology = count_topology(source, output)
    keys = {f"k{n}": 1 for n in range(10)}
    settings = {"restart.grace.ms": 600_000}

    def said() -> tuple[int, str]:
        found = CliRunner().invoke(app, ["status", "-b", broker.bootstrap_servers, "-a", application_id])
        return found.exit_code, " ".join(found.output.split())

    with running(broker, topology, application_id, state_dir / "a", **settings, **{"client.id": "a"}) as first:
        with running(broker, topology, application_id, state_dir / "b", **settings, **{"client.id": "b"}) as second:
            wait_until(lambda: len(active_tasks(first)) == len(active_tasks(second)) == 2, 60, "two tasks each")
            broker.produce(source, [(key, "v") for key in keys])
            counts_become(broker, output, keys)
            assert said()[0] == 0
            kept = active_tasks(second)
            second.close(leave_group=False)
        wait_until(lambda: "is run by no instance" in said()[1], 30, "what waits")
        status, text = said()
        assert status == 1
        for task in kept:
            assert f"task {task} of {application_id} is run by no instance: kept until" in text
        assert "for b, which restarts" in text
        assert len(active_tasks(first)) == 2
        with CommandClient(application_id, broker.connection, "test") as commands:
            commands.want("b", False)
        wait_until(lambda: len(active_tasks(first)) == 4, 30, "the tasks of the one that was stopped")
        broker.produce(source, [(key, "v") for key in keys])
        counts_become(broker, output, dict.fromkeys(keys, 2))
        wait_until(lambda: said()[0] == 0, 30, "a status without tasks that wait")
