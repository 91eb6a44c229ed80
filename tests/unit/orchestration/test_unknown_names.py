"""A name that is not known is refused by every command that takes one, before anything is done, with the nearest names that are."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.orchestration.cli import app
from penstock.orchestration.declarations.unknown_names import unknown

STREAMS_TOML = """
[applications.flight-board]
factory = "m:f"
instances = 2
[applications.flight-board.config]
"bootstrap.servers" = "127.0.0.1:1"

[applications.billing]
factory = "m:f"
instances = ["billing-east", "billing-west"]
[applications.billing.config]
"bootstrap.servers" = "127.0.0.1:1"
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two applications; no broker answers."""
    (tmp_path / "streams.toml").write_text(STREAMS_TOML)
    monkeypatch.setenv("PENSTOCK_STREAMS", str(tmp_path / "streams.toml"))
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PENSTOCK_DATABASE_URL", raising=False)


def refused(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "400"})
    assert result.exit_code == 1, (result.output, result.exception)
    return result.output


@pytest.mark.parametrize(
    "command",
    [
        ("start",),
        ("start", "billing-east"),
        ("start", "--seed", "/somewhere"),
        ("stop",),
        ("stop", "billing-east"),
        ("restart",),
        ("restart", "billing-east"),
        ("drain",),
        ("run-book", "restart-instance"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize(
    ("name", "nearest"), [("billing-eat", "billing-east"), ("Billing-West", "billing-west"), ("billing-3", "billing-")]
)
def test_an_instance_that_is_not_declared_is_refused_before_anything_is_done(
    command: tuple[str, ...], name: str, nearest: str, tmp_path: Path
) -> None:
    said = refused(*command, name)
    assert f"no instance '{name}' is declared; declared are flight-board-1, flight-board-2, billing-east, billing-west" in said
    assert f"Did you mean '{nearest}" in said
    assert not (tmp_path / "home" / "instances").exists()


@pytest.mark.parametrize("number", ["１", "03", "0", "9" * 5_000, "3 ", "-3", "3.0"])
def test_a_number_that_scale_does_not_give_is_no_number(number: str) -> None:
    said = refused("start", f"flight-board-{number}")
    assert f"no instance 'flight-board-{number}' is declared" in said and "penstock scale" not in said


def test_one_more_of_a_number_is_refused_with_the_command_that_asks_for_more(tmp_path: Path) -> None:
    """Also if no broker can say whether an operator has requested it."""
    said = refused("start", "flight-board-11")
    assert "no instance 'flight-board-11' is declared" in said and "Did you mean 'flight-board-" in said
    assert "To run more: penstock scale flight-board 11" in said
    assert not (tmp_path / "home" / "instances").exists()


@pytest.mark.parametrize(
    "command",
    [
        ("scale", "{}", "3"),
        ("drain", "billing-east", "--application", "{}"),
        ("pause", "{}", "0_0"),
        ("resume", "{}", "0_0"),
        ("status", "--application", "{}"),
        ("tasks", "{}"),
        ("events", "{}"),
        ("describe", "{}"),
        ("topology", "{}"),
        ("query", "{}", "store", "key"),
        ("audit", "{}"),
        ("run-books", "{}"),
        ("alerts", "--application", "{}"),
        ("snapshot", "take", "{}"),
        ("snapshot", "list", "{}"),
        ("run-book", "resume", "{}", "0_0"),
        ("run-book", "skip-record", "{}", "0_0"),
        ("run-book", "replay-dead-letters", "{}"),
        ("run-book", "rebuild-global-store", "{}", "store"),
    ],
    ids=" ".join,
)
def test_an_application_that_is_not_declared_is_refused(command: tuple[str, ...]) -> None:
    said = refused(*(word.format("flightboard") for word in command))
    assert "no application 'flightboard' is declared; declared are flight-board, billing" in said
    assert "Did you mean 'flight-board'?" in said


def test_of_many_names_the_nearest_and_the_first_are_listed() -> None:
    said = unknown("instance", "app-0500", [f"app-{number:04d}" for number in range(500)])
    assert "… (500 in all)" in said and said.count("app-") < 20 and said.endswith("?")
    assert unknown("instance", "x", []) == "no instance 'x' is declared; declared are none"
    assert unknown("instance", "xyz", ["a"]) == "no instance 'xyz' is declared; declared are a"
