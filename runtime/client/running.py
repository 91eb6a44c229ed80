"""Parts of `KafkaStreams.run()`: signals, exit statuses, and the end of a process whose user code hangs.

A Python signal handler runs on the main thread between two instructions, perhaps while a lock is held. So the handler only puts the
signal's number into a `SimpleQueue`, which is safe there; the main thread waits on that queue, and acts.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from penstock.runtime.model.errors import StateDirectoryError, StoreChangedError, StreamsConfigError, StreamsError, TopologyError
from penstock.runtime.model.user_errors import described

logger = logging.getLogger(__name__)

EXIT_CLEAN, EXIT_FAILED, EXIT_CONFIGURATION, EXIT_STATE_DIRECTORY, EXIT_STALLED = 0, 1, 2, 3, 4
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_BY_SIGNAL = 128  # as shells report it


def exit_status(error: StreamsError) -> int:
    """Return the exit status for an error."""
    if isinstance(error, StreamsConfigError | TopologyError | StoreChangedError):
        return EXIT_CONFIGURATION
    return EXIT_STATE_DIRECTORY if isinstance(error, StateDirectoryError) else EXIT_FAILED


def log_refusal(error: StreamsError) -> int:
    """Log the error that prevented a start, and return its exit status. If the user's code is the cause, the log includes its traceback."""
    status = exit_status(error)
    logger.error("%s", error, exc_info=error.__cause__ if status == EXIT_CONFIGURATION else None)
    return status


def log_failure(error: BaseException | None) -> int:
    """Log the error that stopped the client, and return its exit status. Launchers quote this line after the instance's name."""
    if isinstance(error, StreamsError):
        logger.error("%s", error)
        return exit_status(error)
    logger.error("%s", "no error is known" if error is None else described(error))
    return EXIT_FAILED


@contextmanager
def received_signals(receive: Callable[[int], None]) -> Iterator[None]:
    """Call `receive` with the number of each SIGTERM and SIGINT while the block runs; then restore the previous handlers.

    A parent process may ignore these signals, which its children inherit: they are handled all the same. Not on the main thread: Python
    handles no signals there, and a warning says so.
    """
    if threading.current_thread() is not threading.main_thread():
        logger.warning("run() is not on the main thread, where Python handles signals: SIGTERM and Ctrl-C do not close it, close() does")
        yield
        return
    previous = {number: signal.signal(number, lambda received, _frame: receive(received)) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: one that C code has installed


def end_at_once(number: int) -> NoReturn:
    """End this process at its second signal. Nothing is lost: the open transaction is aborted, the stores are as of their last commit."""
    name = signal.Signals(number).name
    logger.warning("%s again: this process ends now, without a commit; its uncommitted records are processed again", name)
    _flush_logs()
    os._exit(_BY_SIGNAL + number)


def end_stalled(instance: str, limit_ms: int) -> NoReturn:
    """End this process because a stream thread made no progress for `max.poll.interval.ms`: user code hangs. Log the stacks of all threads.

    The group relies on heartbeats, which continue when a thread hangs, so no other instance would get the tasks. Killing is safe at any
    time: the open transaction is fenced, and the stores are as of their last commit. A supervisor restarts the process.
    """
    logger.critical("instance %s: no progress for %d ms (max.poll.interval.ms): ending this process", instance, limit_ms)
    streams = [handler.stream for handler in logging.getLogger().handlers if isinstance(handler, logging.StreamHandler)]
    for stream in streams or [sys.__stderr__]:
        faulthandler.dump_traceback(stream)
    _flush_logs()
    os._exit(EXIT_STALLED)


def _flush_logs() -> None:
    for handler in logging.getLogger().handlers:
        handler.flush()
