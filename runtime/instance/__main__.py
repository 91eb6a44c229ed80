"""The process of an instance: `python -m penstock.runtime.instance --config FILE [--seed URI]`.

The file is JSON, written by the launcher (`orchestration/instances/launcher.py`), and contains all that the process needs:

    {"application": "flight-board", "instance": "flight-board-1", "factory": "examples.flight_board.topology:build",
     "config": {"bootstrap.servers": "127.0.0.1:9092", …}, "log_path": "…/flight-board-1.log"}

`factory` names a function without arguments that returns the `Topology`. `application` and `instance` become `application.id` and
`client.id`. `${NAME}` in `instance`, `log_path` and the configuration's texts is read from the environment. SIGTERM and SIGINT close the
instance cleanly and keep its tasks reserved for its return (rules.md, 4). With `num.stream.threads` above 1 this is the main process of the
instance's workers, and all of this applies to the workers together (docs/workers.md).

With `--successor` the process waits for the command to become the instance (`runtime/instance/successor.py`).

With `--seed` a seed or snapshot is installed first (docs/seeding.md), unless it was installed before.

Exit status: 0 closed cleanly, 1 failed while running, 2 the configuration or topology is wrong, or does not fit the state or the running
members, 3 the state directory cannot be used or is locked by another process, 4 no progress for `max.poll.interval.ms` (with several
workers, the one that hangs is replaced instead). The last line of the log is the error; for status 4, the stacks of all threads. The
status is also written to `exit_path`, for the launcher, which may not be the parent.
"""

from __future__ import annotations

import argparse
import faulthandler
import logging
import os
import sys
from pathlib import Path

import msgspec

from penstock.runtime.client.running import EXIT_CLEAN, EXIT_CONFIGURATION
from penstock.runtime.instance.process import run_instance
from penstock.runtime.instance.seed import add_seed_options
from penstock.runtime.instance.settings import ExitStatus, InstanceSettings, exit_path
from penstock.runtime.instance.successor import SUCCESSOR, await_turn
from penstock.runtime.model import logs
from penstock.runtime.model.errors import StreamsConfigError


def main(arguments: list[str] | None = None) -> int:
    faulthandler.enable(all_threads=False)  # a crash in native code leaves its signal and the Python lines in the log
    description = "Run one instance of an application until it is stopped."
    parser = argparse.ArgumentParser(prog="python -m penstock.runtime.instance", description=description)
    parser.add_argument("--config", type=Path, required=True, help="JSON file with application, instance, factory, config and log_path")
    add_seed_options(parser, required=False)
    parser.add_argument(SUCCESSOR, action="store_true", help="wait for commands on stdin before the start")
    options = parser.parse_args(arguments)
    build = await_turn() if options.successor else ""
    if build is None:
        return EXIT_CLEAN
    try:
        settings, output = InstanceSettings.read(options.config), logs.Output.of()
    except StreamsConfigError as error:
        print(error, file=sys.stderr)
        return EXIT_CONFIGURATION
    status = run_instance(settings, output, options.seed, reset_offsets=options.reset_offsets, build=build)
    try:
        exit_path(options.config).write_bytes(msgspec.json.encode(ExitStatus(pid=os.getpid(), status=status)))
    except OSError as error:
        logging.getLogger(__name__).warning("the exit status %d is not written: %s", status, error)
    return status


if __name__ == "__main__":
    sys.exit(main())
