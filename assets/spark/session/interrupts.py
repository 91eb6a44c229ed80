"""Ctrl-C of a command that runs Spark.

PySpark installs a handler that raises KeyboardInterrupt in the middle of the main thread's exchange with the JVM. The client library may
lose that exception, and the command goes on; or the pending reply is taken for the reply to the next request, which ends in a traceback.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType

from pyspark.sql import SparkSession

from penstock.orchestration.declarations.spark_settings import SparkSettings

EXIT_INTERRUPTED = 130
_CANCEL_SECONDS = 5.0


class Interrupts:
    """Context manager in which Ctrl-C cancels Spark's jobs, from a thread of its own, and ends the process with status 130. The second one
    ends it at once. `stopped` prints what is left behind."""

    def __init__(self, stopped: Callable[[], None]) -> None:
        self._stopped = stopped
        self._cancel: Callable[[], object] | None = None
        self._asked = threading.Event()
        self._before = signal.getsignal(signal.SIGINT)

    def __enter__(self) -> Interrupts:
        self._install()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if self._asked.is_set():  # the error is that of the cancelled job, and the process ends
            threading.Event().wait()
        signal.signal(signal.SIGINT, self._before)

    def watch(self, session: SparkSession, settings: SparkSettings) -> None:
        """Set the session whose jobs are to be cancelled. Install the handler again: PySpark has replaced it."""
        self._install()
        self._cancel = session.interruptAll if settings.connect else session.sparkContext.cancelAllJobs

    def _install(self) -> None:
        ignored = self._before is signal.SIG_IGN
        signal.signal(signal.SIGINT, signal.SIG_IGN if ignored else self._signalled)

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        if self._asked.is_set():
            os._exit(EXIT_INTERRUPTED)
        self._asked.set()
        threading.Thread(target=self._end, name="interrupt", daemon=True).start()

    def _end(self) -> None:
        self._stopped()
        if self._cancel is not None:
            cancel = threading.Thread(target=self._cancel, name="cancel", daemon=True)
            cancel.start()
            cancel.join(_CANCEL_SECONDS)
        sys.stdout.flush()
        os._exit(EXIT_INTERRUPTED)  # the JVM of a driver ends with it
