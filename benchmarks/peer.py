"""The engine as a measured process: `BENCH_SPEC='{…}' python -m benchmarks.peer` (the fields are those of `workloads.Run`).

It prints `BENCH FIRST <epoch ms>` when it is RUNNING, just before the first record enters the topology (a `peek` would cost time per
record), runs until SIGTERM or SIGINT, and then closes. The measuring process reads its progress from the committed offsets of the group
`app`. With `checkpoint_ms`, it writes the duration of each commit into `COMMITS_FILE`. Exit status 1 if the client failed.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
from array import array
from pathlib import Path

from benchmarks.workloads import COMMITS_FILE, Run, build
from penstock.runtime.client.kafka_streams import KafkaStreams
from penstock.runtime.model.states import State
from penstock.runtime.worker.committer import Committer

CLOSE_MS = 15_000


def main() -> int:
    """Run the job in `BENCH_SPEC` until a signal or a failure of the client."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    run = Run.from_environment()
    if run.checkpoint_ms is not None:
        _note_commits(Path(run.state) / COMMITS_FILE)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    streams = KafkaStreams(build(run), run.streams_config())
    announced = threading.Event()

    def changed(new: State, old: State) -> None:
        if new is State.RUNNING and not announced.is_set():
            announced.set()
            print("BENCH FIRST", time.time_ns() // 1_000_000, flush=True)
        elif new is State.ERROR:
            ended.set()

    streams.set_state_listener(changed)
    streams.start()
    ended.wait()
    failure = streams.failure
    streams.close(CLOSE_MS)
    if failure is not None:
        print(f"failed: {failure}", file=sys.stderr)
    return 0 if failure is None else 1


def _note_commits(path: Path) -> None:
    """Write the durations of commits, each with the checkpoint that follows it: the engine's metric has neither it nor percentiles."""
    file = path.open("ab", buffering=0)
    commit_if_due = Committer.commit_if_due

    def timed(self: Committer, now_ms: int) -> None:
        before, begun = self.committed_at_ms, time.perf_counter()
        commit_if_due(self, now_ms)
        if self.committed_at_ms != before:
            file.write(array("d", [(time.perf_counter() - begun) * 1000]).tobytes())

    Committer.commit_if_due = timed  # type: ignore[method-assign]


if __name__ == "__main__":
    sys.exit(main())
