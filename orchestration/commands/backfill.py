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

from penstock.orchestration.commands.common import Json, explained
from penstock.orchestration.commands.run_book import ApplicationName, DryRun
from penstock.orchestration.declarations.applications import Applications
from penstock.orchestration.declarations.backfills import FORMATS, KAFKA, BackfillInput, absolute, parsed_columns
from penstock.orchestration.declarations.project_paths import ProjectPaths
from penstock.orchestration.resets.target import Edge, Target

SPARK_PROCESS = "penstock.assets.spark.history"
"""Module of the process that runs Spark: the command line does not import it."""
_FAIL = "fail"


def backfill(
    application: ApplicationName,
    given: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            metavar="TOPIC=URI",
            help="Records of a topic: a table (`flights=/lake/flights`, `flights=s3://lake/flights`), or `flights=kafka` for the topic "
            "itself. Once for each topic that the application reads, those of global tables included. Default: as declared.",
        ),
    ] = None,
    columns: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOPIC:NAME=COLUMN,…",
            help="Columns of a table with other names, or that are not bytes: `flights:key=flight_id,value=*,timestamp=departed_at`. Keys "
            "and values that are not bytes are written by the application's serdes; `a+b` makes an object of two columns, `*` of all "
            "others.",
        ),
    ] = None,
    seed: Annotated[
        str | None,
        typer.Option(
            metavar="URI",
            help="Folder of the application's seeds: one that all executors share, or a URI. Default: as declared, else in the project's "
            "home.",
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="TIME|OFFSETS|latest",
            help="End of the history. TIME: `2026-01-31T12:00:00` (UTC, unless it names a zone), or a duration back from now: `PT1H`. "
            "OFFSETS: `flights:0=100,flights:1=200`, or a file of lines `topic,partition,offset`. `latest`: all that is there. Default: "
            "as declared, else `latest`.",
        ),
    ] = None,
    outputs: Annotated[
        str | None,
        typer.Option(metavar="URI", help="Folder for the records of the output topics, as Parquet. Default: as declared, else not kept."),
    ] = None,
    rejected: Annotated[
        str | None,
        typer.Option(
            metavar="URI|fail",
            help="What becomes of a record for which a handler returns PAUSE. URI: it is kept in a table there, and the run goes on. "
            "`fail`: the run ends and names it. Default: as declared, else `fail`.",
        ),
    ] = None,
    table_format: Annotated[
        str | None, typer.Option("--format", metavar="FORMAT", help="Format of the tables of --input: `parquet` (default), `delta`.")
    ] = None,
    restart: Annotated[bool, typer.Option("--restart", help="Begin again, although an unfinished run could be continued.")] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Run an application's own program over its history on Spark, and write a seed with which the stream goes on.

    The program is the one that `streams.toml` declares; nothing is written a second time. Each part of the topology is a stage. State and
    outputs are those that the stream would have had. `penstock docs history` says what is equal and what is not.

    **Tables** have a row per record: `key` and `value` as bytes (what is on the topic), `timestamp`, and if they are known `partition`,
    `offset` and `headers`; `--columns` maps others. With offsets, the stream goes on after the last row. Without, `--until` must be a
    time: rows before it count, and the stream goes on at the topic's first record of that time.

    **Declared** in `[applications.NAME.backfill]`, it needs no options; each option overrides what is declared.

    **After a failure** or Ctrl-C run the same command again: stages that are done are not run again. What cannot be done right is refused
    before anything runs, in one message that names each object.

    **Examples**

    `penstock backfill flight-board --input flights=kafka --input airports=kafka --seed /lake/seeds/flight-board --dry-run` shows the
    stages.

    `penstock backfill flight-board --input flights=s3://lake/flights --input airports=kafka --until 2026-07-01 --seed
    s3://lake/seeds/flight-board --outputs s3://lake/board`

    `penstock start flight-board-1 --seed s3://lake/seeds/flight-board` then goes on from there.
    """
    named = [_parsed(text, table_format or FORMATS[0]) for text in given or ()]
    if len(dict(named)) < len(named):
        raise typer.BadParameter("a topic is given twice", param_hint="--input")
    with explained():
        paths = ProjectPaths.find()
        declared = Applications.of(paths).named(application)
    request = declared.backfill.request(application, paths.root, paths.home)
    inputs = _with_columns({**request.inputs, **dict(named)}, columns or ())
    if not inputs:
        raise typer.BadParameter(
            f"there is none, and [applications.{application}.backfill.inputs] declares none: --input TOPIC=URI, or --input TOPIC=kafka",
            param_hint="--input",
        )
    _check_until(until or request.until)
    request = msgspec.structs.replace(
        request,
        inputs=inputs,
        until=until or request.until,
        seed=request.seed if seed is None else _absolute(seed),
        outputs=request.outputs if outputs is None else _absolute(outputs),
        rejected=request.rejected if rejected is None else None if rejected == _FAIL else _absolute(rejected),
        dry_run=dry_run,
        restart=restart,
        as_json=as_json,
    )
    _become([sys.executable, "-m", SPARK_PROCESS, msgspec.json.encode(request).decode()])


def _parsed(text: str, table_format: str) -> tuple[str, BackfillInput]:
    topic, _, location = text.partition("=")
    if not topic or not location:
        raise typer.BadParameter(f"{text!r}: expected TOPIC=URI, for example flights=/lake/flights", param_hint="--input")
    if table_format not in FORMATS:
        raise typer.BadParameter(f"{table_format!r} is not one of {', '.join(FORMATS)}", param_hint="--format")
    return topic, BackfillInput(location if location == KAFKA else _absolute(location), table_format)


def _with_columns(inputs: dict[str, BackfillInput], given: Sequence[str]) -> dict[str, BackfillInput]:
    """Return the inputs with the columns of the option. Raises BadParameter."""
    found = dict(inputs)
    for text in given:
        try:
            topic, columns = parsed_columns(text)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--columns") from error
        if topic not in found or found[topic].location == KAFKA:
            raise typer.BadParameter(f"{topic} is no topic with a table as --input", param_hint="--columns")
        found[topic] = msgspec.structs.replace(found[topic], columns=columns)
    return found


def _absolute(where: str) -> str:
    return absolute(where, Path.cwd())


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
