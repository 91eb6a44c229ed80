"""The process of an instance: `python -m penstock.runtime.instance --config FILE [--seed URI]`.

The file is JSON, written by the launcher (`orchestration/instances/launcher.py`), and contains all that the process needs:

    {"application": "flight-board", "instance": "flight-board-1", "factory": "examples.flight_board.topology:build",
     "config": {"bootstrap.servers": "127.0.0.1:9092", …}, "log_path": "…/flight-board-1.log"}

`factory` names a function without arguments that returns the `Topology`. `application` and `instance` become `application.id` and
`client.id`. `${NAME}` in `instance`, `log_path` and the configuration's texts is read from the environment. SIGTERM and SIGINT close the
instance cleanly and keep its tasks reserved for its return (rules.md, 4). With `num.stream.threads` above 1 this is the main process of the
instance's workers, and all of this applies to the workers together (docs/workers.md).

With `--seed` a seed or snapshot is installed first (docs/seeding.md), unless it was installed before.

Exit status: 0 closed cleanly, 1 failed while running, 2 the configuration or topology is wrong, or does not fit the state or the running
members, 3 the state directory cannot be used or is locked by another process, 4 no progress for `max.poll.interval.ms` (with several
workers, the one that hangs is replaced instead). The last line of the log is the error; for status 4, the stacks of all threads.
"""

from __future__ import annotations

import argparse
import faulthandler
import logging
import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType

from penstock.runtime.client.kafka_streams import KafkaStreams
from penstock.runtime.config.environment import BUILD
from penstock.runtime.instance.build import build_of
from penstock.runtime.instance.seed import INTERRUPTED, add_seed_options, seed
from penstock.runtime.instance.settings import EXIT_CLEAN, EXIT_CONFIGURATION, EXIT_FAILED, EXIT_STALLED, InstanceSettings, exit_status
from penstock.runtime.model import logs
from penstock.runtime.model.errors import BrokerUnavailableError, StreamsConfigError, StreamsError, TopologyError
from penstock.runtime.model.states import State
from penstock.runtime.model.user_errors import described

logger = logging.getLogger(__name__)


def run(settings: InstanceSettings) -> int:
    """Run the instance until a signal or an error stops it. Returns the exit status."""
    try:
        streams = KafkaStreams(settings.factory, settings.streams_config(), log_path=settings.log_path)
    except (StreamsConfigError, TopologyError) as error:
        return _log_error(error)
    os.environ[BUILD] = build_of(settings.config, settings.factory)  # for this process and its workers'
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):  # the launcher may ignore them, which child processes inherit
        signal.signal(number, lambda signum, frame: _stop(signum, frame, ended))
    streams.set_state_listener(lambda new, old: ended.set() if new.has_completed_shutdown() else None)
    try:
        streams.start()
    except StreamsError as error:
        return _log_error(error)
    _watch(streams, settings.instance, ended)
    streams.close(leave_group=False)
    if streams.state is State.ERROR:
        return _failed(streams.failure)
    logger.info("instance %s closed cleanly", settings.instance)
    return EXIT_CLEAN


def _watch(streams: KafkaStreams, instance: str, ended: threading.Event) -> None:
    """Wait until the instance stops; kill this process if the stream thread makes no progress for `max.poll.interval.ms` (user code hangs).

    The group relies on heartbeats, which continue when a thread hangs, so no other instance would get the tasks. Killing is safe at any
    time: the open transaction is fenced, and the stores are as of their last commit. The supervisor restarts the process.
    """
    limit_ms = streams.config.integer("max.poll.interval.ms")
    while not ended.wait(min(1.0, limit_ms / 4000)):
        if streams.ms_since_progress > limit_ms:
            logger.critical("instance %s: no progress for %d ms (max.poll.interval.ms): ending this process", instance, limit_ms)
            for handler in logging.getLogger().handlers:
                if isinstance(handler, logging.StreamHandler):
                    faulthandler.dump_traceback(handler.stream)
                handler.flush()
            os._exit(EXIT_STALLED)


def _stop(signum: int, _frame: FrameType | None, ended: threading.Event) -> None:
    logger.info("signal %s: closing", signal.Signals(signum).name)
    ended.set()


def main(arguments: list[str] | None = None) -> int:
    description = "Run one instance of an application until it is stopped."
    parser = argparse.ArgumentParser(prog="python -m penstock.runtime.instance", description=description)
    parser.add_argument("--config", type=Path, required=True, help="JSON file with application, instance, factory, config and log_path")
    add_seed_options(parser, required=False)
    options = parser.parse_args(arguments)
    try:
        settings = InstanceSettings.read(options.config)
    except StreamsConfigError as error:
        print(error, file=sys.stderr)
        return EXIT_CONFIGURATION
    fields = {"application": settings.application, "instance": settings.instance}
    logs.configure(Path(settings.log_path) if settings.log_path else None, fields=fields)
    logger.info("instance %s starts, process %d", settings.instance, os.getpid())
    if options.seed is not None and (status := _seeded(settings, options.seed, options.reset_offsets)) != EXIT_CLEAN:
        return status
    return run(settings)


def _seeded(settings: InstanceSettings, where: str, reset: bool) -> int:
    """Install the seed. Returns the exit status, `EXIT_CLEAN` if the instance may run."""
    try:
        while True:
            try:
                logger.info("%s", seed(settings, where, reset=reset))
                break
            except BrokerUnavailableError as error:
                logger.warning("%s; the seed waits for a broker, and goes on from where it is", error)
    except StreamsError as error:
        return _log_error(error)
    except KeyboardInterrupt:
        logger.error(INTERRUPTED)
        return EXIT_FAILED
    return EXIT_CLEAN


def _failed(error: BaseException | None) -> int:
    """Log the error that stopped the client and return the exit status. Launchers quote this line after the instance's name."""
    if isinstance(error, StreamsError):
        logger.error("%s", error)
        return exit_status(error)
    logger.error("%s", "no error is known" if error is None else described(error))
    return EXIT_FAILED


def _log_error(error: StreamsError) -> int:
    """Log the error and return its exit status. If the user's code is the cause, the log includes its traceback."""
    status = exit_status(error)
    logger.error("%s", error, exc_info=error.__cause__ if status == EXIT_CONFIGURATION else None)
    return status


if __name__ == "__main__":
    sys.exit(main())
