"""A worker's handling of records that arrive together: an order that fails does not drop the commands behind it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.runtime.coordination import Command, CommandResult, Coordination, Revoked
from penstock.runtime.coordination.coordination import BEGINNING_MS, STALE_COMMAND_MS
from penstock.runtime.coordination.log import Entry
from penstock.runtime.coordination.records import Member
from penstock.runtime.coordination.registry import Registry
from penstock.runtime.model.errors import TransactionAbortedError
from penstock.runtime.model.ids import TaskId
from penstock.runtime.model.metrics import Metrics
from penstock.runtime.worker.commands import Answer
from penstock.runtime.worker.coordination_handler import CoordinationHandler
from penstock.testing import ManualClock


def test_commands_that_arrive_with_a_failing_order_are_executed_after_the_recovery() -> None:
    commands = [Command(id=name, kind=name, task="0_0", issued_ms=0) for name in ("first", "second", "third")]
    reported: list[list[object]] = [[Revoked((TaskId(0, 0),)), *commands[:2]], [commands[2]], []]
    results: list[CommandResult] = []

    def refuse() -> None:
        raise TransactionAbortedError("refused")

    def run(kind: str, task: TaskId | None, args: object) -> Answer:
        if kind == "second":
            refuse()
        return Answer(True)

    parts: dict[str, Any] = dict.fromkeys(("incarnations", "tasks", "followers", "reader", "restorer", "events", "global_task", "clock"))
    orders = CoordinationHandler(
        instance="a",
        coordination=SimpleNamespace(poll=lambda: reported.pop(0), result=results.append),  # type: ignore[arg-type]  # only its poll
        commands=SimpleNamespace(run=run),  # type: ignore[arg-type]
        metrics=Metrics(),
        commit=refuse,
        written=lambda: 0,
        refresh_view=lambda: None,
        **parts,
    )
    with pytest.raises(TransactionAbortedError):
        orders.listen()
    assert results == []
    with pytest.raises(TransactionAbortedError):
        orders.listen()
    assert [(result.id, result.ok) for result in results] == [("first", True), ("second", False)]
    assert results[1].data == {"again": True}
    orders.listen()
    assert [(result.id, result.ok) for result in results[2:]] == [("third", True)], "the second is not carried out twice"


@pytest.mark.parametrize("off_ms", [0, -10 * STALE_COMMAND_MS, 10 * STALE_COMMAND_MS], ids=["right", "slow", "fast"])
def test_a_command_expires_by_the_brokers_clock_whatever_the_clocks_of_worker_and_sender(off_ms: int) -> None:
    brokers_ms = 1_000_000_000
    clock = ManualClock(brokers_ms + off_ms)
    coordination = cast(Any, Coordination.__new__(Coordination))
    coordination._clock, coordination._registry, coordination._seen, coordination._open = clock, Registry(), set(), frozenset()
    me = coordination._member = Member(instance="a", incarnation=1, transactional_id="t", host="h", pid=1)
    coordination.membership = SimpleNamespace(leads=False)

    def say(name: str, at_ms: int) -> None:
        command = Command(id=name, kind="close", instance="a", issued_ms=brokers_ms - off_ms)
        coordination._registry.apply(Entry(1, command, command.key, at_ms), clock.monotonic_ms())

    say("old", brokers_ms - STALE_COMMAND_MS - 1)
    assert coordination._commands() == [], "how late it is is not known yet"
    coordination._registry.apply(Entry(2, me, me.key, brokers_ms), clock.monotonic_ms())
    say("new", brokers_ms)
    assert [command.id for command in coordination._commands()] == ["new"]


def test_a_worker_polls_more_often_until_its_first_assignment_but_not_without_an_end() -> None:
    coordination = cast(Any, Coordination.__new__(Coordination))
    clock = coordination._clock = ManualClock()
    coordination._registry, coordination._begun_ms, coordination._granted_epoch = Registry(), clock.monotonic_ms(), -1
    assert coordination.moving
    clock.advance(BEGINNING_MS)
    assert not coordination.moving, "it waits for the end of a session, perhaps"
    coordination._begun_ms = clock.monotonic_ms()
    assert coordination.moving
    coordination._granted_epoch = 7
    assert not coordination.moving
