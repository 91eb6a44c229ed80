"""What a worker does with what it is told, in one go: an order that fails does not swallow the commands behind it."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import cast

import pytest

from runtime.coordination import Command, Revoked
from runtime.coordination.coordination import Told
from runtime.errors import TransactionAbortedError
from runtime.ids import TaskId
from runtime.worker.parts import Parts


class Worker(Parts):
    """A worker of which only the ears are there."""

    def __init__(self, *told: list[Told]) -> None:
        self._told = deque(told)
        self._untold: deque[Command] = deque()
        self.carried_out: list[str] = []
        self.commands = cast("object", SimpleNamespace())  # type: ignore[assignment]  # there is something that carries out
        self._coordination = SimpleNamespace(poll=lambda: self._told.popleft())  # type: ignore[assignment]

    def _hand_over(self, tasks: object) -> None:
        raise TransactionAbortedError("refused")

    def _carry_out(self, command: Command) -> None:
        self.carried_out.append(command.id)
        if len(self.carried_out) == 2:
            raise TransactionAbortedError("refused")


def test_commands_that_come_with_an_order_that_fails_are_carried_out_after_the_recovery() -> None:
    commands = [Command(id=name, kind="pause", task="0_0", issued_ms=0) for name in ("first", "second", "third")]
    worker = Worker([Revoked((TaskId(0, 0),)), *commands[:2]], [commands[2]])
    with pytest.raises(TransactionAbortedError):
        worker.listen(0, lambda: None)
    assert worker.carried_out == []
    with pytest.raises(TransactionAbortedError):  # the second was told of its abort, and is not carried out twice
        worker.listen(0, lambda: None)
    assert worker.carried_out == ["first", "second"]
    assert [command.id for command in worker._untold] == ["third"]
