"""`penstock topology`: a diagram of an application's topology."""

from __future__ import annotations

import time
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from penstock.orchestration.commands.common import Servers, err, explained, fail, hint, named, warn
from penstock.orchestration.commands.inspection import picture_of
from penstock.orchestration.declarations.project_paths import ProjectPaths
from penstock.orchestration.drawing import mermaid, parse, svg, with_call_sites
from penstock.orchestration.drawing.live import have_reported_again, newest_call_sites, newest_text, notes
from penstock.orchestration.kafka.observer import Observer, Picture
from penstock.runtime.model.errors import BrokerUnavailableError
from penstock.runtime.topology.factory import build_topology

_POLL_SECONDS, _LONGEST_SECONDS = 1.0, 8.0


class Form(StrEnum):
    """Format of the diagram."""

    MERMAID = "mermaid"
    SVG = "svg"
    TEXT = "text"


def topology(
    application: Annotated[str, typer.Argument(help="The application.id.")],
    form: Annotated[
        Form, typer.Option("--format", "-f", help="mermaid, svg, or text: that of describe(), and the lines of unnamed nodes.")
    ] = Form.MERMAID,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A file to write, for example topology.svg.")] = None,
    rates: Annotated[
        bool, typer.Option("--rates/--no-rates", help="Measure the running instances' records per second (takes some seconds).")
    ] = True,
    bootstrap_servers: Servers = None,
) -> None:
    """Draw an application's topology: sub-topologies, stores, topics, and their record rates.

    A running application's topology is read from Kafka. If the application has never been started, the function named in `streams.toml` is
    called.

    `penstock topology flight-board --format svg --output flight-board.svg`
    """
    with explained():
        text, found, sites = _found(application, bootstrap_servers, rates and form is not Form.TEXT)
    if form is Form.TEXT:
        drawn = with_call_sites(text, sites)
    else:
        drawn = {Form.MERMAID: mermaid, Form.SVG: svg}[form](parse(text, found, sites))
    if output is None:
        typer.echo(drawn, nl=not drawn.endswith("\n"))
        return
    try:
        output.write_text(drawn, encoding="utf-8")
    except OSError as error:
        fail(f"{output} cannot be written: {error.strerror}")
    hint(f"{output} is written")


def _found(application: str, servers: str | None, rates: bool) -> tuple[str, dict[int, str], Mapping[str, str]]:
    """Return the text of the topology, notes on its running sub-topologies, and the lines that made its unnamed nodes."""
    known = named(application, servers)
    observer = Observer(application, known.bootstrap_servers)
    try:
        picture = picture_of(observer)
    except BrokerUnavailableError as error:
        if not known.factory:
            raise
        warn(f"{error}. The topology is that of {known.factory}.")
        picture = Picture(application, {}, {}, {}, None)
    text = newest_text(picture)
    if text is not None:
        return text, _notes(observer, picture, rates), newest_call_sites(picture)
    if not known.factory:
        fail(f"{application} has no recorded topology on {servers}: has it ever been started there?")
    ProjectPaths.find().make_importable()
    described = build_topology(known.factory).resolved(known.streams_config()).describe()
    return str(described), {}, described.call_sites


def _notes(observer: Observer, first: Picture, rates: bool) -> dict[int, str]:
    """Observe the application again until all workers have reported; return the notes."""
    if not rates or not any(member.active for member in first.members.values()):
        return notes(first)
    picture, until = first, time.monotonic() + _LONGEST_SECONDS
    with err.status("measuring for a few seconds how fast it runs (--no-rates: skip this)"):
        while not have_reported_again(picture, first) and time.monotonic() < until:
            time.sleep(_POLL_SECONDS)
            picture = observer.observe()
    return notes(picture, first)
