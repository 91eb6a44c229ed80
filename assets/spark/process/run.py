"""Child process that does the Spark work of a Dagster run: `python -m penstock.assets.spark.process.run`, started by `pipes`.

It receives its work by Dagster Pipes (a job, its request, the settings of Spark) and sends lines for the run's log the same way. The
job's result, or the error, goes to a separate file (`messages`) as soon as the work is done: an error while Spark stops does not
undo it. The process ends, and Spark with it,

- when its work is done or has failed;
- on SIGINT (Dagster terminates a run) or SIGTERM;
- when its parent is gone, for whatever reason: its standard input is a pipe that only the parent holds open.

On such a request, a separate thread cancels the jobs and stops the session: the main thread is waiting inside a call to the JVM, and
returns from it with the error of the cancelled job. If that takes too long, the whole process group is killed, the JVM included.
(Rejected: PySpark's own SIGINT handler. It raises KeyboardInterrupt in the middle of the main thread's exchange with the JVM, and the
pending reply is then taken for the reply to the next request.)
"""

from __future__ import annotations

import importlib
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from types import FrameType
from typing import get_type_hints

import msgspec
from dagster_pipes import PipesContext, open_dagster_pipes
from pyspark.sql import SparkSession

from penstock.assets.spark.process.messages import FolderWriter
from penstock.assets.spark.session.executors import require_executors
from penstock.assets.spark.session.explained import explained
from penstock.assets.spark.session.progress import follow
from penstock.assets.spark.session.session import spark_session
from penstock.orchestration.declarations.errors import ExpectedError
from penstock.orchestration.declarations.spark_settings import SparkSettings
from penstock.runtime.model.errors import StreamsError
from penstock.runtime.model.user_errors import text_of, writable

EXIT_FAILED, EXIT_ENDED = 1, 130
_UNWIND_SECONDS = 8.0
_CANCEL_AGAIN_SECONDS = 0.2

Report = Callable[[str], None]
"""Writes a line to the run's log that names the next step."""


class Order(msgspec.Struct, frozen=True):
    """Work of the child. `job` is `module:function`; the function is called with the request, a session and a Report."""

    job: str
    request: msgspec.Raw
    settings: SparkSettings


class Answer(msgspec.Struct, frozen=True):
    """Outcome of the work: a result, or the error with its stack. `refused`: its message says all."""

    result: msgspec.Raw = msgspec.Raw(b"null")
    error: str | None = None
    stack: str = ""
    refused: bool = False


class Ending:
    """Stops the process's work on request, once, from a separate thread."""

    def __init__(self) -> None:
        self._wanted = threading.Event()
        self._cancel: Callable[[], object] | None = None
        self._unwound = threading.Event()
        self._over = threading.Event()
        self.reason: str | None = None
        """Reason for the stop; None if none was requested."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._signalled)
        threading.Thread(target=self._watch_parent, name="parent", daemon=True).start()
        threading.Thread(target=self._run, name="ending", daemon=True).start()

    def watch(self, session: SparkSession, settings: SparkSettings) -> None:
        """Set the session whose work is to be cancelled. Install the SIGINT handler again: PySpark has replaced it."""
        signal.signal(signal.SIGINT, self._signalled)
        self._cancel = session.interruptAll if settings.connect else session.sparkContext.cancelAllJobs

    def unwound(self) -> None:
        """Stop cancelling: the main thread has left its work."""
        self._unwound.set()

    def over(self) -> None:
        """Note that the session is stopped."""
        self._over.set()

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        self.reason = self.reason or f"{signal.Signals(number).name} came"
        self._wanted.set()

    def _watch_parent(self) -> None:
        while os.read(0, 1024):
            pass
        self.reason = self.reason or "the run's process is gone"
        self._wanted.set()

    def _run(self) -> None:
        self._wanted.wait()
        if self._cancel is not None:
            threading.Thread(target=self._cancel_all, args=(self._cancel,), name="cancel", daemon=True).start()
            if self._over.wait(_UNWIND_SECONDS):
                return
        # There is no work to cancel yet, or it does not stop: the group is this process, its JVM and their children.
        if os.getpgid(0) == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os._exit(EXIT_ENDED)

    def _cancel_all(self, cancel: Callable[[], object]) -> None:
        """Cancel repeatedly: the work may begin another job before it stops."""
        while not self._unwound.is_set():
            cancel()
            self._unwound.wait(_CANCEL_AGAIN_SECONDS)


def main() -> int:
    """Run the job that the Pipes context names. Return the exit status: 0, EXIT_FAILED, or EXIT_ENDED."""
    ending = Ending()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    writer = FolderWriter()
    with open_dagster_pipes(message_writer=writer) as pipes:
        order = msgspec.json.decode(pipes.get_extra("order"), type=Order)
        try:
            _work(order, pipes, ending, lambda result: writer.answer(msgspec.json.encode(Answer(result))))
        except Exception as error:  # noqa: BLE001  # the run reports any error
            if ending.reason is not None:
                pipes.log.info(f"Spark's work has been ended: {ending.reason}")
                return EXIT_ENDED
            writer.answer(msgspec.json.encode(failed(error, order.settings)))
            return EXIT_FAILED
    return 0


def failed(error: Exception, settings: SparkSettings) -> Answer:
    """Return the answer for an error of the job. It can be encoded, whatever the error's text is."""
    if isinstance(error, ExpectedError | StreamsError):
        return Answer(error=text_of(error), refused=True)
    return Answer(error=f"{type(error).__name__}: {explained(error, settings)}", stack=writable(traceback.format_exc()))


def _work(order: Order, pipes: PipesContext, ending: Ending, done: Callable[[msgspec.Raw], None]) -> None:
    """Do the work; call `done` with its result before Spark is stopped. Raises any error of the job."""
    session: SparkSession | None = None
    try:
        function = _job(order.job)
        request = msgspec.json.decode(order.request, type=get_type_hints(function)["request"])
        pipes.log.info(f"starting Spark at {order.settings.place}")
        session = spark_session(order.settings, look=False)
        ending.watch(session, order.settings)
        progress = follow(session, order.settings, pipes.log.info)

        def report(line: str) -> None:
            progress.begin(line)
            pipes.log.info(line)

        try:
            progress.begin("looking at the executors")
            require_executors(session, order.settings)
            done(msgspec.Raw(msgspec.json.encode(function(request, session, report))))
        finally:
            _close(progress.close)
    finally:
        ending.unwound()
        if session is not None:
            _close(session.stop)
        ending.over()


def _close(close: Callable[[], object]) -> None:
    """Close Spark. A failure does not affect the outcome: the process ends next, and its group is killed."""
    try:
        close()
    except Exception:
        logging.getLogger(__name__).exception("Spark did not end as it should")


def _job(named: str) -> Callable[..., object]:
    module, _, function = named.partition(":")
    found: Callable[..., object] = getattr(importlib.import_module(module), function)
    return found


if __name__ == "__main__":
    sys.exit(main())
