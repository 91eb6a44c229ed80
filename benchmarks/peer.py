"""The engine as a measured process: `BENCH_SPEC='{…}' python -m benchmarks.peer` (the fields are `workloads.Run`'s).

It prints `BENCH FIRST <epoch ms>` when the first record enters the topology, runs until SIGTERM or SIGINT, and then closes. Progress is
seen from outside, in the committed offsets of the group `app`. Exit status 1 if the client failed.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading

from benchmarks.workloads import Run, build
from runtime.client import KafkaStreams
from runtime.states import State

CLOSE_MS = 15_000


def main() -> int:
    """Runs what `BENCH_SPEC` says until a signal comes or the client fails."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    run = Run.from_environment()
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    streams = KafkaStreams(build(run), run.streams_config())
    streams.set_state_listener(lambda new, old: ended.set() if new is State.ERROR else None)
    streams.start()
    ended.wait()
    failure = streams.failure
    streams.close(CLOSE_MS)
    if failure is not None:
        print(f"failed: {failure}", file=sys.stderr)
    return 0 if failure is None else 1


if __name__ == "__main__":
    sys.exit(main())
