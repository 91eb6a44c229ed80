"""What a worker does with what it is told, in one go: an order that fails does not swallow the commands behind it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from runtime.coordination import Command, CommandResult, Revoked
from runtime.errors import TransactionAbortedError
from runtime.ids import TaskId
from runtime.worker.commands import Answer
from runtime.worker.orders import Orders


def test_commands_that_come_with_an_order_that_fails_are_carried_out_after_the_recovery() -> None:
    commands = [Command(id=name, kind=name, task="0_0", issued_ms=0) for name in ("first", "second", "third")]
    told: list[list[object]] = [[Revoked((TaskId(0, 0),)), *commands[:2]], [commands[2]], []]
    results: list[CommandResult] = []

    def refuse() -> None:
        raise TransactionAbortedError("refused")

    def run(kind: str, task: TaskId | None, args: object) -> Answer:
        if kind == "second":
            refuse()
        return Answer(True)

    parts: dict[str, Any] = dict.fromkeys(("tasks", "followers", "reader", "restorer", "events"))
    orders = Orders(
        instance="a",
        coordination=SimpleNamespace(poll=lambda: told.pop(0), result=results.append),  # type: ignore[arg-type]  # of it all, the ears
        commands=SimpleNamespace(run=run),  # type: ignore[arg-type]
        commit=refuse,
        show=lambda: None,
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
