"""`python -m benchmarks gaps`: how long a partition's output stops when instances join, leave and die, over sizes of the state.

For each size: one application with four tasks under a steady load, exactly once, a commit every 100 ms, every update written. One run
contains all the events:

    scale-out                a second instance starts, with an empty disk
    clean restart            one of two is stopped (SIGTERM) and started again
    scale-in                 one of two leaves permanently, and hands its tasks over
    kill -9 without standby   of one of two, the leader; the other has to restore its tasks
    clean restart with standby   as above, but the other has a copy
    kill -9 with standby     of one of two, the leader; the other has a copy
    freeze with standby      all processes of one of two, the leader, are suspended; the other has a copy
    kill -9 of a worker      of one of an instance's two worker processes; the instance keeps running

A gap is the longest time between two arrivals of committed outputs of one partition at a consumer, from the event until all
tasks run again. The table shows the longest of all partitions and repeats. Between the events, gaps are as long as a commit: the first
line. At the end, all outputs are compared with the input: each must have arrived once.

`--write` puts the table and the plot into `docs/`.
"""

from __future__ import annotations

import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.brokers import broker_for
from benchmarks.data import PARTITIONS, create_topic
from benchmarks.gap_fleet import Instances
from benchmarks.measure import ROOT, MeasurementError
from benchmarks.pages import put
from benchmarks.updates import EachOnce, Load, Watch
from penstock.orchestration.drawing.bars import Bars, bars
from penstock.orchestration.drawing.console import stdout_console
from penstock.orchestration.embedded.kafka import BrokerError

COMMIT_MS, SESSION_MS = 100, 6_000
STATELESS_KEYS = 20_000
PEACE_SECONDS = 3.0
AFTER_SECONDS = 1.5
CATCH_UP_SECONDS = 120
PAGE, PLOT = ROOT / "docs" / "scaling.md", ROOT / "docs" / "scaling.svg"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"

PEACE, OUT, RESTART, IN = "nothing happens", "scale-out", "clean restart", "scale-in"
NO_STANDBY, STANDBY, FREEZE = "kill -9 without standby", "kill -9 with standby", "freeze with standby"
RESTART_STANDBY, WORKER = "clean restart with standby", "kill -9 of a worker"
AIMS = {OUT: "300", RESTART_STANDBY: "300", IN: "300", STANDBY: "2,000", FREEZE: "2,500", WORKER: "2,000"}
EVENTS = (OUT, RESTART, IN, NO_STANDBY, RESTART_STANDBY, STANDBY, FREEZE, WORKER)
JAVA = {OUT: "145–1,318", NO_STANDBY: "11,552"}
"""Kafka Streams 4.3.1 on the same kind of machine, a state of 20,000 keys, without standbys; the first figure is without a move."""

Gaps = dict[tuple[str, int], list[float]]
"""Milliseconds by event and number of keys; for each occurrence the longest gap of a partition."""


def main(
    sizes: Annotated[str, typer.Option(help="Keys in the state, several with commas; 0: no state.")] = "0,10000,100000,1000000",
    rate: Annotated[int, typer.Option(min=100, help="Records a second.")] = 5_000,
    repeats: Annotated[int, typer.Option(min=1, help="Lives of each size.")] = 1,
    events: Annotated[str | None, typer.Option(help=f"Only some, with commas: {', '.join(EVENTS)}.")] = None,
    bootstrap: Annotated[str | None, typer.Option(help="A broker to use in place of one started for this.")] = None,
    write: Annotated[bool, typer.Option("--write", help="Put table and plot into docs/scaling.md and docs/scaling.svg.")] = False,
) -> None:
    """Measure the gaps in the output when instances come, go and die. Exit status 1 if an output is wrong or an instance fails."""
    console = stdout_console()
    wanted = [int(size) for size in sizes.split(",")]
    chosen = set(EVENTS) if events is None else {name.strip() for name in events.split(",")}
    gaps: Gaps = {}
    try:
        with broker_for(bootstrap, console) as servers:
            for turn in range(repeats):
                for size in wanted:
                    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
                        Life(servers, Path(folder), size, rate, chosen, gaps, console).run()
                        console.print(f"{size:,} keys, {turn + 1} of {repeats}: every output came once")
    except (BrokerError, MeasurementError) as error:
        console.print(f"[red]{error}[/red]", soft_wrap=True)
        raise typer.Exit(1) from error
    text = table(gaps, wanted, rate, repeats)
    console.print(text, soft_wrap=True)
    if write:
        _write(text, gaps, wanted)


@dataclass(slots=True)
class Life:
    """One application from its first instance to its last, with a state of this many keys; its measurements go into `gaps`."""

    servers: str
    folder: Path
    keys: int
    rate: int
    chosen: set[str]
    gaps: Gaps
    console: Console
    began: float = field(default_factory=time.monotonic)

    def run(self) -> None:
        """Run all events. Raises MeasurementError."""
        app = f"bench-gaps-{uuid.uuid4().hex[:8]}"
        source, output = f"{app}-input", f"{app}-output"
        for topic in (source, output):
            create_topic(self.servers, topic)
        instances = Instances(
            app,
            self.servers,
            self.folder,
            f"benchmarks.gap_programs:{'count' if self.keys else 'copy'}",
            {"GAPS_INPUT": source, "GAPS_OUTPUT": output},
            {"commit.interval.ms": COMMIT_MS, "session.timeout.ms": SESSION_MS},
        )
        keys = self.keys or STATELESS_KEYS
        check = EachOnce(keys)
        load = Load(self.servers, source, keys, self.rate)
        try:
            with Watch(self.servers, output, PARTITIONS, check.note) as watch:
                instances.start("a")
                load.preload()
                instances.settled({"a": PARTITIONS})
                instances.wait(lambda: watch.records >= load.records, "the first output of each key")
                with load:
                    self._events(instances, watch)
                _all_came(check, load, watch)
        finally:
            instances.kill_all()

    def _events(self, instances: Instances, watch: Watch) -> None:
        half = PARTITIONS // 2
        time.sleep(PEACE_SECONDS)
        with self._measured(PEACE, watch):
            time.sleep(PEACE_SECONDS)
        with self._measured(OUT, watch):
            instances.start("b")
            instances.settled({"a": half, "b": half})
        if RESTART in self.chosen:
            with self._measured(RESTART, watch):
                instances.stop("b")
                instances.start("b")
                instances.settled({"a": half, "b": half})
        if IN in self.chosen:
            with self._measured(IN, watch):
                instances.leave("b")
                instances.settled({"a": PARTITIONS})
            with self._measured(OUT, watch):
                instances.start("b")
                instances.settled({"a": half, "b": half})
        if NO_STANDBY in self.chosen:
            with self._measured(NO_STANDBY, watch):
                instances.kill("a")
                instances.settled({"b": PARTITIONS})
            instances.start("a")
            instances.settled({"a": half, "b": half})
        if self.chosen & {RESTART_STANDBY, STANDBY, FREEZE}:
            self._with_standby(instances, watch)
        if WORKER in self.chosen:
            self._with_workers(instances, watch)

    def _with_standby(self, instances: Instances, watch: Watch) -> None:
        """Replace the running instances by two others, with standbys; restart the younger, then kill and freeze the one that leads, the
        older."""
        half, standbys = PARTITIONS // 2, PARTITIONS if self.keys else 0
        others = list(instances.processes)
        for name in ("c", "d"):
            instances.start(name, **{"num.standby.replicas": 1})
            time.sleep(AFTER_SECONDS)
        for name in others:
            instances.leave(name)
        instances.settled({"c": half, "d": half}, standbys)
        if RESTART_STANDBY in self.chosen:
            with self._measured(RESTART_STANDBY, watch):
                instances.stop("d")
                instances.start("d", **{"num.standby.replicas": 1})
                instances.settled({"c": half, "d": half}, standbys)
        if STANDBY in self.chosen:
            with self._measured(STANDBY, watch):
                instances.kill("c")
                instances.settled({"d": PARTITIONS})
            instances.start("c", **{"num.standby.replicas": 1})
            instances.settled({"c": half, "d": half}, standbys)
        if FREEZE in self.chosen:
            leader, other = ("d", "c") if STANDBY in self.chosen else ("c", "d")
            with self._measured(FREEZE, watch):
                instances.freeze(leader)
                instances.settled({other: PARTITIONS})
            instances.kill(leader)

    def _with_workers(self, instances: Instances, watch: Watch) -> None:
        """Replace all others by one instance with two worker processes."""
        others = list(instances.processes)
        instances.start("e", **{"num.stream.threads": 2})
        time.sleep(AFTER_SECONDS)
        for name in others:
            instances.leave(name)
        instances.settled({"e": PARTITIONS})
        with self._measured(WORKER, watch):
            instances.kill_worker("e")
            instances.settled({"e": PARTITIONS})

    @contextmanager
    def _measured(self, event: str, watch: Watch) -> Iterator[None]:
        """Measure the block, and a moment after it."""
        since = time.monotonic()
        yield
        time.sleep(AFTER_SECONDS)
        found = [round(gap * 1000) for gap in watch.longest_gaps(since, time.monotonic())]
        self.gaps.setdefault((event, self.keys), []).append(max(found))
        shown = ", ".join(f"{gap:,}" for gap in found)
        self.console.print(f"{time.monotonic() - self.began:6.1f} s  {self.keys:,} keys, {event}: {shown} ms")


def _all_came(check: EachOnce, load: Load, watch: Watch) -> None:
    """Wait for the last output, then compare all of them with the input. Raises MeasurementError."""
    deadline = time.monotonic() + CATCH_UP_SECONDS
    while watch.records < load.records and time.monotonic() < deadline:
        time.sleep(COMMIT_MS / 1000)
    time.sleep(2 * COMMIT_MS / 1000)  # the last output may be a duplicate
    if check.wrong or check.seen != load.written:
        raise MeasurementError(f"{watch.records:,} outputs of {load.records:,}, {check.wrong:,} of them not the next of their key")


def table(gaps: Gaps, sizes: list[int], rate: int, repeats: int) -> str:
    """Return the table for the page."""
    lines = [
        f"| event | {' | '.join(_name(size) for size in sizes)} | aim | Kafka Streams |",
        f"|---|{'---:|' * len(sizes)}---:|---:|",
    ]
    for event in dict.fromkeys(event for event, _ in gaps):
        cells = [f"{max(gaps[event, size]):,.0f}" if (event, size) in gaps else "" for size in sizes]
        lines.append(f"| {event} | {' | '.join(cells)} | {AIMS.get(event, '')} | {JAVA.get(event, '')} |")
    lines += [
        "",
        f"Milliseconds without output: the longest of {PARTITIONS} partitions, and of all occurrences; lives of each size: {repeats}. "
        f"{rate:,} records/s, commits every {COMMIT_MS} ms, exactly once, a session of {SESSION_MS // 1000} s.",
    ]
    return "\n".join(lines) + "\n"


def _name(size: int) -> str:
    return f"{size:,} keys" if size else "no state"


def _write(text: str, gaps: Gaps, sizes: list[int]) -> None:
    put(PAGE, BEGIN, text, END)
    names = ["none" if size == 0 else f"{size:,}" for size in sizes]
    charts = [
        Bars(f"{event}, ms", names, [max(gaps.get((event, size), [0.0])) for size in sizes])
        for event in dict.fromkeys(event for event, _ in gaps)
    ]
    PLOT.write_text(bars(charts), encoding="utf-8")
