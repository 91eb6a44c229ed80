"""The child process that does Spark's work for a run of Dagster: `python -m assets.spark.run`, started by `assets.spark.pipes`.

It is told by Dagster Pipes what to do (a job, its request, the settings of Spark) and answers the same way: lines for the run's log, the
job's result, or the error. It ends, and Spark with it,

- when its work is done or has failed;
- when it is asked to: SIGINT (Dagster ends a run) or SIGTERM;
- when its parent is gone, however that died: its standard input is a pipe that only the parent holds open.

Asked to end, it cancels the jobs and stops the session, from a thread of its own: the main thread waits inside a call to the JVM, and comes
out of it with the error that the cancelled job gives. If that takes too long, the whole process group is killed, the JVM included.
(Rejected: PySpark's own SIGINT handler. It raises KeyboardInterrupt in the middle of the main thread's talk with the JVM, and the answer
that is still to come is then taken for the answer to the next question.)
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

from assets.spark.executors import require_executors
from assets.spark.explained import explained
from assets.spark.progress import follow
from assets.spark.session import spark_session
from orchestration.spark_settings import SparkSettings

EXIT_FAILED, EXIT_ENDED = 1, 130
_UNWIND_SECONDS = 8.0
_CANCEL_AGAIN_SECONDS = 0.2

Report = Callable[[str], None]
"""A line for the run's log; what is done from then on."""


class Order(msgspec.Struct, frozen=True):
    """What the child is to do. `job` is `module:function`; the function is called with the request, a session and a Report."""

    job: str
    request: msgspec.Raw
    settings: SparkSettings


class Answer(msgspec.Struct, frozen=True):
    """What came of it: a result, or what went wrong, with the stack."""

    result: msgspec.Raw = msgspec.Raw(b"null")
    error: str | None = None
    stack: str = ""


class Ending:
    """Ends the process's work when it is asked for, once, from a thread of its own."""

    def __init__(self) -> None:
        self._wanted = threading.Event()
        self._cancel: Callable[[], object] | None = None
        self._unwound = threading.Event()
        self._over = threading.Event()
        self.reason: str | None = None
        """Why the work is being ended; None while it is not."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._signalled)
        threading.Thread(target=self._watch_parent, name="parent", daemon=True).start()
        threading.Thread(target=self._run, name="ending", daemon=True).start()

    def watch(self, session: SparkSession, settings: SparkSettings) -> None:
        """The session whose work is to be cancelled. PySpark has put its own handler in the place of ours meanwhile."""
        signal.signal(signal.SIGINT, self._signalled)
        self._cancel = session.interruptAll if settings.connect else session.sparkContext.cancelAllJobs

    def unwound(self) -> None:
        """The main thread has come out of its work: there is nothing left to cancel."""
        self._unwound.set()

    def over(self) -> None:
        """The session is stopped."""
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
        # Nothing to unwind yet, or it does not: the group is this process, its JVM and what they started.
        if os.getpgid(0) == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os._exit(EXIT_ENDED)

    def _cancel_all(self, cancel: Callable[[], object]) -> None:
        """Again and again: the work may begin the next job before it has come to an end."""
        while not self._unwound.is_set():
            cancel()
            self._unwound.wait(_CANCEL_AGAIN_SECONDS)


def main() -> int:
    """Does what the Pipes context orders. The exit status: 0, EXIT_FAILED, or EXIT_ENDED."""
    ending = Ending()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    with open_dagster_pipes() as pipes:
        order = msgspec.json.decode(pipes.get_extra("order"), type=Order)
        answer = _work(order, pipes, ending)
        if ending.reason is not None:
            pipes.log.info(f"Spark's work has been ended: {ending.reason}")
            return EXIT_ENDED
        pipes.report_custom_message(msgspec.json.encode(answer).decode())
    return 0 if answer.error is None else EXIT_FAILED


def _work(order: Order, pipes: PipesContext, ending: Ending) -> Answer:
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
            return Answer(msgspec.Raw(msgspec.json.encode(function(request, session, report))))
        finally:
            progress.close()
    except Exception as error:  # noqa: BLE001  # whatever it is, the run shows it
        return Answer(error=f"{type(error).__name__}: {explained(error, order.settings)}", stack=traceback.format_exc())
    finally:
        ending.unwound()
        if session is not None:
            session.stop()
        ending.over()


def _job(named: str) -> Callable[..., object]:
    module, _, function = named.partition(":")
    found: Callable[..., object] = getattr(importlib.import_module(module), function)
    return found


if __name__ == "__main__":
    sys.exit(main())
