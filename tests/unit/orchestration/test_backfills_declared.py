"""Backfills as `streams.toml` and the command line declare them."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from penstock.orchestration.cli import app
from penstock.orchestration.commands import backfill
from penstock.orchestration.declarations.applications import Applications
from penstock.orchestration.declarations.backfills import BackfillInput, BackfillPolicy, BackfillRequest, parsed_columns
from penstock.orchestration.declarations.toml_table import WrongDeclarationError

DECLARED = """
[applications.board]
factory = "board:build"
instances = 1

[applications.board.backfill]
outputs = "s3://lake/board"
first-day = 2026-01-01

[applications.board.backfill.inputs.flights]
uri = "lake/flights"
format = "delta"
key = "carrier"
value = ["delay", "origin"]
timestamp = "at"

[applications.board.backfill.inputs."air.ports"]
uri = "kafka"
"""


def policy(text: str = DECLARED) -> BackfillPolicy:
    [application] = Applications.parse(text, Path("streams.toml")).applications
    return application.backfill


def test_a_declaration_is_a_request_with_paths_of_the_project() -> None:
    found = policy()
    assert found.first_day == date(2026, 1, 1)
    assert found.request("board", Path("/project"), Path("/home"), "2026-02-01") == BackfillRequest(
        application="board",
        inputs={
            "flights": BackfillInput(
                "/project/lake/flights", "delta", {"key": ["carrier"], "value": ["delay", "origin"], "timestamp": ["at"]}
            ),
            "air.ports": BackfillInput("kafka"),
        },
        until="2026-02-01",
        seed="/home/seeds/board",
        outputs="s3://lake/board",
    )


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (('format = "delta"', 'format = "csv"'), r"line 12: .*'csv' is not one of 'parquet', 'delta'"),
        (('uri = "kafka"', 'uri = "kafka"\nkey = "k"'), r"columns are those of a table"),
        (('timestamp = "at"', 'timestamp = ["at"]'), r"timestamp"),
        (("first-day = 2026-01-01", 'first-day = 2026-01-01\nuntil = "2026-01-01"'), r"goes without first-day"),
        (('key = "carrier"', 'keys = "carrier"'), r"unknown key: did you mean 'key'\?"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(changed: tuple[str, str], message: str) -> None:
    with pytest.raises(WrongDeclarationError, match=message):
        policy(DECLARED.replace(*changed))


def test_columns_on_the_command_line() -> None:
    assert parsed_columns("flights:key=id,value=a+b,timestamp=at") == ("flights", {"key": ["id"], "value": ["a", "b"], "timestamp": ["at"]})
    assert parsed_columns("flights:value=*") == ("flights", {"value": ["*"]})
    for wrong in ("flights", "flights:", ":key=a", "flights:name=a", "flights:key=", "flights:key=a,key=b", "flights:timestamp=a+b"):
        with pytest.raises(ValueError, match="expected"):
            parsed_columns(wrong)


def requested(project: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> BackfillRequest:
    """Return the request that the command hands to Spark's process."""
    commands: list[list[str]] = []

    def become(command: list[str]) -> None:
        commands.append(command)

    monkeypatch.setattr(backfill, "_become", become)
    monkeypatch.setenv("PENSTOCK_STREAMS", str(project / "streams.toml"))
    monkeypatch.setenv("PENSTOCK_HOME", str(project / "home"))
    result = CliRunner().invoke(app, ["backfill", "board", *options])
    assert result.exit_code == 0, result.output
    return msgspec.json.decode(commands[0][-1], type=BackfillRequest)


def test_options_override_what_is_declared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "streams.toml").write_text(DECLARED.replace("first-day = 2026-01-01", 'until = "PT1H"\nrejected = "rejected"'))
    declared = requested(tmp_path, monkeypatch)
    assert (declared.until, declared.seed) == ("PT1H", str(tmp_path / "home" / "seeds" / "board"))
    assert (declared.outputs, declared.rejected) == ("s3://lake/board", str(tmp_path / "rejected"))
    other = requested(
        tmp_path,
        monkeypatch,
        *("--input", "flights=/other", "--columns", "flights:key=id", "--until", "latest", "--rejected", "fail", "--seed", "s3://seeds"),
    )
    assert other.inputs == {"flights": BackfillInput("/other", "parquet", {"key": ["id"]}), "air.ports": BackfillInput("kafka")}
    assert (other.until, other.seed, other.rejected) == ("latest", "s3://seeds", None)
