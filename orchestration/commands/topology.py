"""`penstock topology`: a diagram of an application's topology."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from penstock.orchestration.commands.common import Servers, err, explained, fail, hint, named, warn
from penstock.orchestration.commands.inspection import picture_of
from penstock.orchestration.declarations.applications import Application
from penstock.orchestration.declarations.project_paths import ProjectPaths
from penstock.orchestration.drawing import Note, TopicRate, mermaid, parse, svg, with_call_sites
from penstock.orchestration.drawing.flow import Flow, flow
from penstock.orchestration.drawing.live import have_reported_again, newest_call_sites, newest_text, notes
from penstock.orchestration.kafka.observer import Observer, Picture
from penstock.orchestration.kafka.topic_offsets import TopicOffsets
from penstock.runtime.kafka.topic_admin import TopicAdmin
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
        text, found, sites, by_topic = _found(application, bootstrap_servers, rates and form is not Form.TEXT)
    if form is Form.TEXT:
        drawn = with_call_sites(text, sites)
    else:
        drawn = {Form.MERMAID: mermaid, Form.SVG: svg}[form](parse(text, found, sites), by_topic)
    if output is None:
        typer.echo(drawn, nl=not drawn.endswith("\n"))
        return
    try:
        output.write_text(drawn, encoding="utf-8")
    except OSError as error:
        fail(f"{output} cannot be written: {error.strerror}")
    hint(f"{output} is written")


def _found(application: str, servers: str | None, rates: bool) -> tuple[str, dict[int, Note], Mapping[str, str], dict[str, TopicRate]]:
    """Return the text of the topology, notes on its running sub-topologies, the lines that made its unnamed nodes, and its topics'
    rates."""
    known = named(application, servers)
    observer = Observer(application, known.connection)
    try:
        picture = picture_of(observer)
    except BrokerUnavailableError as error:
        if not known.factory:
            raise
        warn(f"{error}. The topology is that of {known.factory}.")
        picture = Picture(application, {}, {}, {}, None)
    text = newest_text(picture)
    if text is not None:
        found, by_topic = _measured(known, observer, picture, flow(parse(text)), rates)
        return text, found, newest_call_sites(picture), by_topic
    if not known.factory:
        fail(f"{application} has no recorded topology on {servers}: has it ever been started there?")
    ProjectPaths.find().make_importable()
    described = build_topology(known.factory).resolved(known.streams_config()).describe()
    return str(described), {}, described.call_sites, {}


def _measured(
    application: Application, observer: Observer, first: Picture, graph: Flow, rates: bool
) -> tuple[dict[int, Note], dict[str, TopicRate]]:
    """Observe the application again until all workers have reported; return the notes and the rates."""
    if not rates or not any(member.active for member in first.members.values()):
        return notes(first), {}
    picture, until = first, time.monotonic() + _LONGEST_SECONDS
    with err.status("measuring for a few seconds how fast it runs (--no-rates: skip this)"):
        admin, read = TopicAdmin(application.streams_config(), lambda: time.monotonic() > until), set(graph.read_by_tasks)
        counts = admin.partition_counts(graph.topics)
        before, began = TopicOffsets.of(admin, application.id, counts, read), time.monotonic()
        while not have_reported_again(picture, first) and time.monotonic() < until:
            time.sleep(_POLL_SECONDS)
            picture = observer.observe()
        now, seconds = TopicOffsets.of(admin, application.id, counts, read), time.monotonic() - began
    behind: Counter[int] = Counter()
    for place, lag in now.behind.items():
        behind[graph.read_by_tasks[place.topic]] += lag
    return notes(picture, first, behind), {
        topic: TopicRate(
            sum(now.committed[place] - before.committed.get(place, now.committed[place]) for place in now.committed if place.topic == topic)
            / seconds
            if topic in read
            else None,
            sum(end - before.ends[place] for place, end in now.ends.items() if place.topic == topic) / seconds,
        )
        for topic in counts
    }
