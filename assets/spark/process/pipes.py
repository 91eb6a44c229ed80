"""Spark work of a Dagster run in a child process, with progress in the run's log, and a clean end when the run is terminated.

A Spark session is a JVM with gigabytes of memory, which a process keeps for its whole life. In a child process it is gone when the work is
done, and no failure in it can end the run's process.

The child uses Dagster Pipes, with complete lines (`messages`). The process is started here, because `PipesSubprocessClient` has three
limits. It reports a failure as an exit code, without the message. It leaves the child running if the run's process is killed, so the
child would run in parallel with the retry. And a child that ignores SIGINT stays. Here the child's standard input is a pipe that closes
when this process dies, the child leads a process group, and the run ends only when the whole group is gone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import TypeVar, get_type_hints

import dagster as dg
import msgspec
from dagster._core.errors import DagsterExecutionInterruptedError
from pyspark.sql import SparkSession

from penstock.assets.spark.process.messages import FolderReader
from penstock.assets.spark.process.run import EXIT_ENDED, Answer, Order, Report
from penstock.orchestration.dagster.ops import failure
from penstock.orchestration.declarations.applications import Applications
from penstock.orchestration.declarations.project_paths import ProjectPaths
from penstock.orchestration.declarations.spark_settings import SparkSettings
from penstock.orchestration.embedded.spark_turn import spark_turn

Request = TypeVar("Request")
Result = TypeVar("Result")
Context = dg.AssetExecutionContext | dg.OpExecutionContext | dg.AssetCheckExecutionContext

_END_SECONDS = 15.0
"""Time that the child has to stop on request. It kills itself earlier."""
_POLL_SECONDS = 0.05


class SparkJobs(dg.ConfigurableResource["SparkJobs"]):
    """Runs jobs of Spark where `[spark]` of `streams.toml` says. It has no settings of its own."""

    @contextlib.contextmanager
    def turn(self, context: Context) -> Iterator[None]:
        """Wait for this run's turn and hold it until the context exits; `run` does not wait again inside it.

        For input that must not grow old while other jobs run: a snapshot taken before the wait may be pruned by the time Spark begins.
        """
        paths = ProjectPaths.find()
        settings = Applications.of(paths).spark
        with spark_turn(paths.home, context.log.info, local=settings.resolved().is_local):
            yield

    def run(
        self,
        context: Context,
        job: Callable[[Request, SparkSession, Report], Result],
        request: Request,
        *,
        delta: bool = False,
    ) -> Result:
        """Run `job(request, session, report)` in a child process and return its result.

        `job` is a function of a module; msgspec must be able to convert its parameter `request` and its result to JSON. `report` writes a
        line to the run's log. With `delta`, the session supports Delta tables. Fails with the message of the job's error, and raises
        ValueError for a function that the child cannot import. On this machine, jobs of several runs execute one after the other.
        Terminating the run stops the job, its tasks on the executors, the child and its JVM before this returns.
        """
        if "<" in job.__qualname__ or job.__module__ == "__main__":
            raise ValueError(f"{job.__qualname__} of {job.__module__} is not a job: the child imports the function from its module")
        paths = ProjectPaths.find()
        settings = Applications.of(paths).spark
        order = Order(
            job=f"{job.__module__}:{job.__qualname__}",
            request=msgspec.Raw(msgspec.json.encode(request)),
            settings=msgspec.structs.replace(settings, delta=delta),
        )
        with spark_turn(paths.home, context.log.info, local=settings.resolved().is_local):
            answer = _run(context, order)
        result: Result = msgspec.json.decode(answer.result, type=get_type_hints(job)["return"])
        return result


def _run(context: Context, order: Order) -> Answer:
    inner = context.op_execution_context if isinstance(context, dg.AssetCheckExecutionContext) else context
    reader = FolderReader()
    with (
        dg.open_pipes_session(
            context=inner,
            extras={"order": msgspec.json.encode(order).decode()},
            context_injector=dg.PipesTempFileContextInjector(),
            message_reader=reader,
        ) as pipes,
        _child(dict(pipes.get_bootstrap_env_vars())) as process,
    ):
        try:
            status = process.wait()
        except DagsterExecutionInterruptedError:
            context.log.info("the run is being terminated: Spark's work is cancelled")
            raise
    if reader.answer is None:
        raise dg.Failure(_without_answer(status, order.settings))
    answer = msgspec.json.decode(reader.answer, type=Answer)
    if answer.error is not None and answer.refused:
        raise failure(answer.error)
    if answer.error is not None:
        raise dg.Failure(answer.error, metadata={"stack": dg.MetadataValue.md(f"```\n{answer.stack}\n```")})
    if status != 0:
        context.log.warning(
            f"Spark's work is done; its process ended with status {status} after that: the end of the run's stderr says why"
        )
    return answer


@contextlib.contextmanager
def _child(environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Start the child as leader of its own process group, which is gone when the context exits, however it exits.

    Its output goes to this process's: Dagster shows it as the run's stdout and stderr.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock.assets.spark.process.run"],
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
    """Wait until the child and its group (the JVM, which ends after it) are gone; kill what is left after the timeout."""
    until = time.monotonic() + _END_SECONDS
    while True:
        process.poll()
        try:
            os.killpg(process.pid, signal.SIGKILL if time.monotonic() > until else 0)
        except (ProcessLookupError, PermissionError):  # macOS raises the latter for a group that has only zombies left
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
    return f"Spark's process ended with status {status} before its work was done: the end of the run's stderr says why"
