"""`penstock backfill`: an application's own program over years of its input, on Spark. The result is a seed."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, NoReturn

import msgspec
import typer

from penstock.orchestration.commands.common import Json
from penstock.orchestration.commands.run_book import ApplicationName, DryRun
from penstock.orchestration.declarations.backfills import KAFKA, BackfillRequest
from penstock.orchestration.resets.target import Edge, Target

SPARK_PROCESS = "penstock.assets.spark.history"
"""Module of the process that runs Spark: the command line does not import it."""
_FAIL = "fail"


def backfill(
    application: ApplicationName,
    given: Annotated[
        list[str],
        typer.Option(
            "--input",
            metavar="TOPIC=URI",
            help="Records of a topic: a table (`flights=/lake/flights`, `flights=s3://lake/flights`), or `flights=kafka` for the topic "
            "itself. Once for each topic that the application reads, those of global tables included.",
        ),
    ],
    seed: Annotated[str, typer.Option(metavar="URI", help="Folder of the application's seeds: one that all executors share, or a URI.")],
    until: Annotated[
        str,
        typer.Option(
            metavar="TIME|OFFSETS|latest",
            help="End of the history. TIME: `2026-01-31T12:00:00` (UTC, unless it names a zone), or a duration back from now: `PT1H`. "
            "OFFSETS: `flights:0=100,flights:1=200`, or a file of lines `topic,partition,offset`. `latest`: all that is there.",
        ),
    ] = "latest",
    outputs: Annotated[
        str | None, typer.Option(metavar="URI", help="Folder for the records of the output topics, as Parquet. Default: not kept.")
    ] = None,
    rejected: Annotated[
        str,
        typer.Option(
            metavar="URI|fail",
            help="What becomes of a record for which a handler returns PAUSE. URI: it is kept in a table there, and the run goes on. "
            "`fail`: the run ends and names it.",
        ),
    ] = _FAIL,
    table_format: Annotated[str, typer.Option("--format", metavar="FORMAT", help="Format of tables: `parquet`, `delta`.")] = "parquet",
    restart: Annotated[bool, typer.Option("--restart", help="Begin again, although an unfinished run could be continued.")] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Run an application's own program over its history on Spark, and write a seed with which the stream goes on.

    The program is the one that `streams.toml` declares; nothing is written a second time. Each part of the topology is a stage. State and
    outputs are those that the stream would have had. `penstock docs history` says what is equal and what is not.

    **Tables** have a row per record: `key` and `value` as bytes (what is on the topic), `timestamp`, and if they are known `partition`,
    `offset` and `headers`. With offsets, the stream goes on after the last row. Without, `--until` must be a time: rows before it count,
    and the stream goes on at the topic's first record of that time.

    **After a failure** or Ctrl-C run the same command again: stages that are done are not run again. What cannot be done right is refused
    before anything runs, in one message that names each object.

    **Examples**

    `penstock backfill flight-board --input flights=kafka --input airports=kafka --seed /lake/seeds/flight-board --dry-run` shows the
    stages.

    `penstock backfill flight-board --input flights=s3://lake/flights --input airports=kafka --until 2026-07-01 --seed
    s3://lake/seeds/flight-board --outputs s3://lake/board`

    `penstock start flight-board-1 --seed s3://lake/seeds/flight-board` then goes on from there.
    """
    inputs = dict(_parsed(text) for text in given)
    if len(inputs) < len(given):
        raise typer.BadParameter("a topic is given twice", param_hint="--input")
    _check_until(until)
    request = BackfillRequest(
        application=application,
        inputs=inputs,
        until=until,
        seed=_absolute(seed),
        outputs=None if outputs is None else _absolute(outputs),
        rejected=None if rejected == _FAIL else _absolute(rejected),
        table_format=table_format,
        dry_run=dry_run,
        restart=restart,
        as_json=as_json,
    )
    _become([sys.executable, "-m", SPARK_PROCESS, msgspec.json.encode(request).decode()])


def _parsed(text: str) -> tuple[str, str]:
    topic, _, location = text.partition("=")
    if not topic or not location:
        raise typer.BadParameter(f"{text!r}: expected TOPIC=URI, for example flights=/lake/flights", param_hint="--input")
    return topic, location if location == KAFKA else _absolute(location)


def _absolute(where: str) -> str:
    """Return a URI as it is, and a path from the root: executors have other working directories."""
    return where if "://" in where else str(Path(where).expanduser().absolute())


def _check_until(until: str) -> None:
    try:
        target = Target.parse(until, datetime.now(UTC))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--until") from error
    if target.to is Edge.EARLIEST:
        raise typer.BadParameter("earliest: there is no history before the first record", param_hint="--until")


def _become(command: Sequence[str]) -> NoReturn:
    """Replace this process, so that Ctrl-C and the exit status are those of the run."""
    os.execv(command[0], list(command))
