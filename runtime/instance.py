"""One long-running instance as a process: `python -m runtime.instance --config FILE [--seed URI]`.

The file is JSON, written by whoever starts the process (`orchestration/launcher.py`), and is all that the process needs to know:

    {"application": "flight-board", "instance": "flight-board-1", "factory": "examples.flight_board.topology:build",
     "config": {"bootstrap.servers": "127.0.0.1:9092", …}, "log_path": "…/flight-board-1.log"}

`factory` names a function without arguments that returns the `Topology`. `application` and `instance` become `application.id` and
`client.id`. `${NAME}` in `instance`, `log_path` and the configuration's texts is read from the environment. SIGTERM and SIGINT close the
instance cleanly and keep its tasks reserved for its return (rules.md, 4). With `num.stream.threads` above 1 this is the main process of the
instance's workers, and all that is said here is of all of them (docs/workers.md).

With `--seed` a seed or snapshot is installed first (docs/seeding.md); one that was installed before is left alone.

Exit status: 0 closed cleanly, 1 failed while running, 2 wrong configuration or topology, 3 the state directory cannot be used or is
held by another process, 4 no progress for `max.poll.interval.ms` (the log then ends with the stacks of all threads; of several workers, one
that hangs is replaced instead). What went wrong is the last line of the log otherwise.
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

import msgspec

from runtime import logs
from runtime.client import KafkaStreams
from runtime.config import StreamsConfig
from runtime.environment import filled_in
from runtime.errors import StateDirectoryError, StreamsConfigError, StreamsError, TopologyError
from runtime.seeds.install import Installed, install_seed
from runtime.seeds.progress import Progress
from runtime.states import State
from runtime.topology.factory import build_topology

logger = logging.getLogger(__name__)

EXIT_CLEAN, EXIT_FAILED, EXIT_CONFIGURATION, EXIT_STATE_DIRECTORY, EXIT_STALLED = 0, 1, 2, 3, 4
INTERRUPTED = "interrupted: the seed is not installed to its end; start again, and it goes on from there"


def exit_status(error: StreamsError) -> int:
    """The exit status that tells of this error."""
    if isinstance(error, StreamsConfigError | TopologyError):
        return EXIT_CONFIGURATION
    return EXIT_STATE_DIRECTORY if isinstance(error, StateDirectoryError) else EXIT_FAILED


class InstanceSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of the configuration file; see the module's docstring."""

    application: str
    instance: str
    factory: str
    config: dict[str, str | int | float | bool]
    log_path: str | None = None

    @classmethod
    def read(cls, path: Path) -> InstanceSettings:
        """Raises StreamsConfigError naming the file and the field that is wrong, or the variable that is not set."""
        try:
            read = msgspec.json.decode(path.read_bytes(), type=cls)
        except (OSError, msgspec.DecodeError) as error:
            raise StreamsConfigError(f"{path}: {error}") from error
        texts = {key: filled_in(value, f"{path}, {key}") for key, value in read.config.items() if isinstance(value, str)}
        return msgspec.structs.replace(
            read,
            instance=filled_in(read.instance, f"{path}, instance"),
            config={**read.config, **texts},
            log_path=None if read.log_path is None else filled_in(read.log_path, f"{path}, log_path"),
        )

    def streams_config(self) -> dict[str, object]:
        return {**self.config, "application.id": self.application, "client.id": self.instance}


def seed(settings: InstanceSettings, where: str, *, reset: bool) -> Installed:
    """Installs the seed at a path or URI for the instance's application, with a bar on the terminal. Raises as `install_seed`, and
    StreamsConfigError and TopologyError."""
    config = StreamsConfig(settings.streams_config())
    topology = build_topology(settings.factory).resolved(config)
    return install_seed(topology, config, where, reset=reset, progress=Progress.on_terminal())


def run(settings: InstanceSettings) -> int:
    """Runs the instance until a signal or an error ends it. Returns the exit status."""
    try:
        streams = KafkaStreams(settings.factory, settings.streams_config(), log_path=settings.log_path)
    except (StreamsConfigError, TopologyError) as error:
        return _told(error)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):  # a launcher may have ignored them, and children inherit that
        signal.signal(number, lambda signum, frame: _stop(signum, frame, ended))
    streams.set_state_listener(lambda new, old: ended.set() if new.has_completed_shutdown() else None)
    try:
        streams.start()
    except StreamsError as error:
        return _told(error)
    _watch(streams, settings.instance, ended)
    streams.close(leave_group=False)
    if streams.state is State.ERROR:
        logger.error("instance %s ended with an error: %s", settings.instance, streams.failure)
        return EXIT_STATE_DIRECTORY if isinstance(streams.failure, StateDirectoryError) else EXIT_FAILED
    logger.info("instance %s closed cleanly", settings.instance)
    return EXIT_CLEAN


def _watch(streams: KafkaStreams, instance: str, ended: threading.Event) -> None:
    """Waits for the end; kills this process if the stream thread makes no progress for `max.poll.interval.ms`, as when user code hangs.

    The group goes by heartbeats, which a hanging thread does not stop, so nobody else would ever get the tasks. Ending is safe at any
    moment: the open transaction is fenced and the stores stand at their last commit. Whoever supervises the process starts it again.
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
    description = "Runs one instance of an application until it is told to stop."
    parser = argparse.ArgumentParser(prog="python -m runtime.instance", description=description)
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


def add_seed_options(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """`--seed` and what belongs to it."""
    parser.add_argument("--seed", metavar="URI", required=required, help="path or URI of the seed or snapshot to install (docs/seeding.md)")
    parser.add_argument(
        "--reset-offsets",
        action="store_true",
        help="the application has run and its changelogs were lost: put their tasks back to the seed, state and input offsets",
    )


def _seeded(settings: InstanceSettings, where: str, reset: bool) -> int:
    """The exit status, `EXIT_CLEAN` if the instance may run."""
    try:
        logger.info("%s", seed(settings, where, reset=reset))
    except StreamsError as error:
        return _told(error)
    except KeyboardInterrupt:
        logger.error(INTERRUPTED)
        return EXIT_FAILED
    return EXIT_CLEAN


def _told(error: StreamsError) -> int:
    """Its exit status, when the log has it; where the user's own code is wrong, with what that raised."""
    status = exit_status(error)
    logger.error("%s", error, exc_info=error.__cause__ if status == EXIT_CONFIGURATION else None)
    return status


if __name__ == "__main__":
    sys.exit(main())
