"""`python -m benchmarks board`: the live board in a browser with many instances and tasks.

Synthetic instances report to the board's state as real ones do, each every three seconds, so everything from the state to the screen is
measured, and Kafka is not. The table shows the frames that the browser has drawn, and its long tasks: those of the page's thread that take
50 ms or more, in which it does not react.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import threading
import time
from itertools import pairwise
from typing import Annotated

import typer
from playwright.sync_api import sync_playwright

from penstock.orchestration.board.publisher import Publisher
from penstock.orchestration.board.server import BoardServer, board_app, listening
from penstock.orchestration.board.state import BoardState, Subject
from penstock.orchestration.drawing.console import stdout_console
from penstock.runtime.coordination.records import Desired, Member, TaskReport, TopologyText, encode
from penstock.runtime.model.clock import SystemClock
from penstock.runtime.model.states import State, TaskKind, TaskState

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
REPORT_SECONDS = 3.0
TOKEN = "token-of-the-benchmark"
TEXT = """Sub-topology: 0
 Source: source (topics: [orders])
 --> count
 Processor: count (stores: [counts])
 --> sink
 Sink: sink (topic: counts-per-key)
"""
COUNT = """() => {
  window.seen = {frames: [], long: []};
  new PerformanceObserver(list => list.getEntries().forEach(each => window.seen.long.push(each.duration))).observe({type: 'longtask'});
  const frame = at => { window.seen.frames.push(at); requestAnimationFrame(frame); };
  requestAnimationFrame(frame);
}"""


def main(
    instances: Annotated[int, typer.Option(min=1, help="Number of instances.")] = 100,
    tasks: Annotated[int, typer.Option(min=1, help="Number of tasks, of all instances.")] = 2_000,
    seconds: Annotated[int, typer.Option(min=1, help="How long to measure.")] = 20,
) -> None:
    """Measure the board in Chromium."""
    console = stdout_console()
    executable = next(filter(None, map(shutil.which, BROWSERS)), None)
    if executable is None:
        console.print("[red]no chromium on this machine; on Debian: apt-get install chromium[/red]")
        raise typer.Exit(1)
    clock, state = SystemClock(), BoardState(Subject("bench"))
    state.contact(clock.wall_ms(), missing=False)
    topology = TopologyText(hash="h", text=TEXT)
    state.coordination(topology.key, encode(topology))
    for number in range(instances):
        desired = Desired(instance=f"bench-{number}", running=True, at_ms=clock.wall_ms(), by="bench")
        state.coordination(desired.key, encode(desired))
        _report(state, number, instances, tasks, clock.wall_ms())
    state.complete()
    publisher = Publisher(lambda: {"applications": {"bench": state.document(clock.wall_ms())}}, clock.wall_ms)
    server, listener, stop = BoardServer(board_app(publisher, TOKEN, ()), publisher), listening("127.0.0.1", 0), threading.Event()
    threads = [
        threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True),
        threading.Thread(target=_feed, args=(state, instances, tasks, clock, stop), daemon=True),
    ]
    for thread in threads:
        thread.start()
    try:
        seen = _watch(executable, f"http://127.0.0.1:{listener.getsockname()[1]}/#token={TOKEN}", tasks, seconds)
    finally:
        stop.set()
        server.should_exit = True
        publisher.stop()
    frames, long = seen["frames"], seen["long"]
    gaps = sorted(later - sooner for sooner, later in pairwise(frames))
    console.print(f"{instances} instances, {tasks} tasks, {seconds} s; load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    console.print(f"frames per second    {len(gaps) / ((frames[-1] - frames[0]) / 1000):.0f}")
    console.print(f"longest frame, ms    {gaps[-1]:.0f} (median {gaps[len(gaps) // 2]:.0f}, 99 % below {gaps[len(gaps) * 99 // 100]:.0f})")
    console.print(f"long tasks           {len(long)} ({sum(long):.0f} ms in all, the longest {max(long, default=0):.0f} ms)")
    console.print(
        f"page's thread busy   {seen['busy'][0]:.0%} of the time, of it scripts {seen['busy'][1]:.0%}; heap {seen['heap'][0]:.0f} MiB"
    )


def _watch(executable: str, url: str, tasks: int, seconds: int) -> dict[str, list[float]]:
    """Open the page, wait until it shows all tasks, and return from then on: times of frames and durations of long tasks, in ms; the share
    of the time in which the page's thread was busy, and in which it ran scripts; its heap in MiB."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1440, "height": 1000})
        page.goto(url)
        page.wait_for_function("tasks => document.querySelectorAll('.instances .tile').length === tasks", arg=tasks, timeout=120_000)
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable")

        def metrics() -> dict[str, float]:
            return {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}

        before = metrics()
        page.evaluate(COUNT)
        page.wait_for_timeout(1000 * seconds)
        found: dict[str, list[float]] = json.loads(page.evaluate("JSON.stringify(window.seen)"))
        after = metrics()
        found["busy"] = [(after[name] - before[name]) / seconds for name in ("TaskDuration", "ScriptDuration")]
        found["heap"] = [after["JSHeapUsedSize"] / 2**20]
        browser.close()
    return found


def _feed(state: BoardState, instances: int, tasks: int, clock: SystemClock, stop: threading.Event) -> None:
    """Let the instances report one after the other, each once per `REPORT_SECONDS`."""
    number = 0
    while not stop.is_set():
        state.contact(clock.wall_ms(), missing=False)
        _report(state, number % instances, instances, tasks, clock.wall_ms())
        number += 1
        time.sleep(REPORT_SECONDS / instances)


def _report(state: BoardState, number: int, instances: int, tasks: int, now_ms: int) -> None:
    own = range(number, tasks, instances)
    reports = {
        f"0_{task}": TaskReport(
            kind=TaskKind.ACTIVE,
            state=TaskState.RUNNING,
            offset_sum=now_ms * (task % 7 + 1) // 10,
            end_sum=0,
            lag=random.randrange(1_000),
            checkpoint_ms=now_ms,
        )
        for task in own
    }
    member = Member(
        instance=f"bench-{number}",
        incarnation=1,
        transactional_id="",
        host=f"host-{number}",
        pid=number + 1,
        state=State.RUNNING,
        tasks=reports,
        topology_hash="h",
        heartbeat_ms=now_ms,
    )
    state.coordination(member.key, encode(member))
