"""Spark's work of a Dagster run, in a child process: with its progress in the run's log, and a clean end when the run is terminated.

A session of Spark is a JVM with gigabytes of memory, and one per process for good. In a process of its own it is gone when the work is
done, and whatever goes wrong in it cannot take the run with it.

The child talks Dagster's Pipes. `PipesSubprocessClient` falls short of it in three ways, so the process is started here: it reports a
failure as an exit code in place of the message; it leaves the child alone when the run's process is killed (the child would go on beside
the next try); and what does not end at SIGINT stays. Here the child's standard input is a pipe that closes when this process dies, the
child is the head of a process group, and the run is over when the whole group is.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar, get_type_hints

import dagster as dg
import filelock
import msgspec
from dagster._core.errors import DagsterExecutionInterruptedError
from pyspark.sql import SparkSession

from assets.spark.run import EXIT_ENDED, Answer, Order, Report
from orchestration.applications import Applications
from orchestration.places import Places
from orchestration.spark_settings import SparkSettings

Request = TypeVar("Request")
Result = TypeVar("Result")
Context = dg.AssetExecutionContext | dg.OpExecutionContext | dg.AssetCheckExecutionContext

_END_SECONDS = 15.0
"""How long an end may take that was asked for. The child kills itself before."""
_POLL_SECONDS = 0.05


class SparkJobs(dg.ConfigurableResource["SparkJobs"]):
    """Runs jobs of Spark where `[spark]` of `streams.toml` says. It has no settings of its own."""

    @contextlib.contextmanager
    def turn(self, context: Context) -> Iterator[None]:
        """Waits until it is this run's turn, which it then has until the context is left; `run` does not wait again in it.

        For what must not grow old while others are at work: a snapshot that is taken before may be pruned when Spark begins.
        """
        places = Places.find()
        settings = Applications.read(places.streams_toml).spark
        with _turn(places.home, settings.resolved(), context.log.info):
            yield

    def run(
        self,
        context: Context,
        job: Callable[[Request, SparkSession, Report], Result],
        request: Request,
        *,
        delta: bool = False,
    ) -> Result:
        """Runs `job(request, session, report)` in a child process and returns its result.

        `job` is a function of a module, whose parameter `request` and whose result have types that msgspec makes JSON of. `report` writes a
        line to the run's log. With `delta` the session knows Delta tables. Raises dg.Failure with the message of what went wrong there, and
        ValueError for a function that the child could not find. On this machine jobs of several runs work one after the other. Terminating
        the run ends the job, its tasks on the executors, the child and its JVM before this returns.
        """
        if "<" in job.__qualname__ or job.__module__ == "__main__":
            raise ValueError(f"{job.__qualname__} of {job.__module__} is not a job: the child imports the function from its module")
        places = Places.find()
        settings = Applications.read(places.streams_toml).spark
        order = Order(
            job=f"{job.__module__}:{job.__qualname__}",
            request=msgspec.Raw(msgspec.json.encode(request)),
            settings=msgspec.structs.replace(settings, delta=delta),
        )
        with _turn(places.home, settings.resolved(), context.log.info):
            answer = _run(context, order)
        result: Result = msgspec.json.decode(answer.result, type=get_type_hints(job)["return"])
        return result


@contextlib.contextmanager
def _turn(home: Path, settings: SparkSettings, say: Callable[[str], object]) -> Iterator[None]:
    """On this machine one job works at a time: each takes all cores, and its share of the memory. The others wait here, and say so."""
    if not settings.is_local:
        yield
        return
    home.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(home / "spark.lock", is_singleton=True)  # one per process, which this thread may take again
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        say("another run's Spark is at work on this machine: waiting for its end")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _run(context: Context, order: Order) -> Answer:
    inner = context.op_execution_context if isinstance(context, dg.AssetCheckExecutionContext) else context
    with (
        dg.open_pipes_session(
            context=inner,
            extras={"order": msgspec.json.encode(order).decode()},
            context_injector=dg.PipesTempFileContextInjector(),
            message_reader=dg.PipesTempFileMessageReader(),
        ) as pipes,
        _child(dict(pipes.get_bootstrap_env_vars())) as process,
    ):
        try:
            status = process.wait()
        except DagsterExecutionInterruptedError:
            context.log.info("the run is being terminated: Spark's work is cancelled")
            raise
    answers = [msgspec.json.decode(message, type=Answer) for message in pipes.message_handler.get_custom_messages()]
    if not answers:
        raise dg.Failure(_without_answer(status, order.settings))
    if answers[0].error is not None:
        raise dg.Failure(answers[0].error, metadata={"stack": dg.MetadataValue.md(f"```\n{answers[0].stack}\n```")})
    return answers[0]


@contextlib.contextmanager
def _child(environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """The child process, at the head of a process group of its own, which is gone when the context is left, however it is left.

    Its output goes where this process's does: Dagster shows it as the run's stdout and stderr.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "assets.spark.run"],
        env={**os.environ, **environment, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdin=subprocess.PIPE,  # its other end closes when this process dies
        start_new_session=True,
    )
    assert process.stdin is not None
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        _await_group(process)
        process.stdin.close()


def _await_group(process: subprocess.Popen[bytes]) -> None:
    """Waits until the child and all of its group (the JVM, which ends after it) are gone; kills what is left of it when time is up."""
    until = time.monotonic() + _END_SECONDS
    while True:
        process.poll()
        try:
            os.killpg(process.pid, signal.SIGKILL if time.monotonic() > until else 0)
        except (ProcessLookupError, PermissionError):  # macOS: the latter, of a group of which only the dead are left
            process.wait()
            return
        time.sleep(_POLL_SECONDS)


def _without_answer(status: int, settings: SparkSettings) -> str:
    if status == EXIT_ENDED:
        return "Spark's work was ended from outside"
    if status < 0:
        killed = signal.Signals(-status).name
        memory = settings.driver_memory or "a quarter of this machine's"
        return (
            f"Spark's process was killed ({killed}): most often the system ran out of memory. [spark] driver-memory is {memory}; "
            "Python's processes need some beside it"
        )
    return f"Spark's process ended with status {status} and without a word: the end of the run's stderr says why"
