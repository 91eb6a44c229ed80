"""A command that came to nothing because its worker was rolled back is asked again, by whoever sent it; a refusal is not."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from penstock.orchestration.declarations.applications import Application
from penstock.orchestration.kafka.task_commands import RefusedError, TaskCommands
from penstock.runtime.coordination.commands import CommandClient
from penstock.runtime.coordination.records import CommandResult
from penstock.runtime.model.errors import StreamsError
from penstock.runtime.model.ids import TaskId

APPLICATION = Application("a", "m:f", ("a-1",), {"bootstrap.servers": "127.0.0.1:1"})
TASK = TaskId(0, 1)
ROLLED_BACK = CommandResult(id="c", ok=False, reason="rolled back, nothing was done", data={"again": True}, by="a-1")
DONE = CommandResult(id="c", ok=True, reason="", data={}, by="a-1")
REFUSED = CommandResult(id="c", ok=False, reason="it is RUNNING", data={}, by="a-1")

ASK: Mapping[str, Callable[[TaskCommands], object]] = {
    "resume": lambda commands: commands.resume(TASK, 5.0),
    "pause": lambda commands: commands.pause(TASK, 5.0),
    "shift": lambda commands: commands.shift(TASK, "in", 0, 7, 5.0),
    "rebuild-global-store": lambda commands: commands.ask_instance("rebuild-global-store", "a-1", {}, 5.0),
    "snapshot": lambda commands: commands.ask_instance("snapshot", "a-1", {}, 5.0),
}


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Gives the worker's answers in turn, the last one forever; the list of what it was asked."""

    def by(*answers: CommandResult) -> list[str]:
        asked: list[str] = []

        def send(_: CommandClient, kind: str, **_to: object) -> CommandResult:
            asked.append(kind)
            return answers[min(len(asked), len(answers)) - 1]

        monkeypatch.setattr(CommandClient, "send", send)
        monkeypatch.setattr(TaskCommands, "owner_lives", lambda _: True)
        monkeypatch.setattr("penstock.orchestration.kafka.task_commands._AGAIN_SECONDS", 0.01)
        return asked

    return by


@pytest.mark.parametrize("kind", ASK)
def test_who_was_rolled_back_is_asked_again(answered: Callable[..., list[str]], kind: str) -> None:
    asked = answered(ROLLED_BACK, ROLLED_BACK, DONE)
    with TaskCommands(APPLICATION, "ann") as commands:
        ASK[kind](commands)
    assert asked == [kind] * 3


@pytest.mark.parametrize("kind", ASK)
def test_a_refusal_is_reported_at_once_with_its_reason(answered: Callable[..., list[str]], kind: str) -> None:
    asked = answered(REFUSED)
    with TaskCommands(APPLICATION, "ann") as commands, pytest.raises(RefusedError, match=f"a-1 refuses to {kind}: it is RUNNING"):
        ASK[kind](commands)
    assert asked == [kind]


def test_a_command_that_is_always_rolled_back_is_given_up(answered: Callable[..., list[str]]) -> None:
    answered(ROLLED_BACK)
    with TaskCommands(APPLICATION, "ann") as commands, pytest.raises(StreamsError, match=r"task 0_1: a-1 could not resume in 0 s"):
        commands.resume(TASK, 0.05)
