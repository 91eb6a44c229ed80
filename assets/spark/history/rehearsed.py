"""A build over a span of its input on Spark: `python -m penstock.assets.spark.history.rehearsed IN OUT [CODE]`, started like the process
of a build on this machine (`orchestration/rehearsals/processes.py`).

It answers one request, `messages.RunOnSpark`. The stages of a backfill begin with the state of a snapshot and read the topics' records of
the span; what comes of them is given back in the form of a build on this machine, so that one comparison serves both.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import IO

import msgspec
import pyarrow as pa

from penstock.assets.spark.history.beginning import parts_of
from penstock.assets.spark.history.days import Offset, bounds_of
from penstock.assets.spark.history.errors import HistoryError
from penstock.assets.spark.history.job import read_file
from penstock.assets.spark.history.run import Brokers, HistoryRequest, HistoryResult, plan_run, run_history
from penstock.assets.spark.seeds.job import SeedError
from penstock.assets.spark.seeds.plan import SeedApplication
from penstock.assets.spark.session.explained import SPARK_ERRORS, explained
from penstock.assets.spark.session.progress import follow
from penstock.assets.spark.session.session import spark_session
from penstock.orchestration.declarations.backfills import KAFKA, BackfillInput
from penstock.orchestration.declarations.errors import ExpectedError
from penstock.orchestration.declarations.spark_settings import WrongSparkError
from penstock.orchestration.rehearsals import messages
from penstock.orchestration.rehearsals.build import MOST_REJECTED
from penstock.orchestration.rehearsals.outputs import OutputWriter
from penstock.runtime.model import logs
from penstock.runtime.model.errors import StreamsError
from penstock.runtime.snapshots.catalogue import find
from penstock.runtime.snapshots.manifest import task_order
from penstock.runtime.snapshots.opening import place_of
from penstock.runtime.snapshots.places import Place

_PARENT_GONE = 130

Say = Callable[[str], None]
"""Takes the name of each step, and Spark's progress."""


def answer(request: messages.RunOnSpark, say: Say) -> messages.Answer:
    """Run the build, or say why Spark cannot. Raises HistoryError, SeedError, WrongSparkError, StreamsError, Spark's errors."""
    history, brokers = _history(request), _brokers(request)
    try:
        plan_run(history, brokers)
    except HistoryError as error:
        if not request.only_plan:
            raise
        return messages.Misfits([str(error)])
    if request.only_plan:
        return messages.Misfits([])
    if request.begin is not None:
        say("reads the state with which the tasks begin")
        shared = None if request.settings.is_local else place_of(request.work) / "begin"
        history = replace(history, begin=parts_of(find(request.begin), shared))
    spark = spark_session(request.settings)
    began = time.monotonic()
    with closing(follow(spark, request.settings, say)) as progress:

        def report(step: str) -> None:
            say(step)
            progress.begin(step)

        result = run_history(spark, history, brokers, report=report)
    return _report(request, result, time.monotonic() - began)


def _history(request: messages.RunOnSpark) -> HistoryRequest:
    topics = sorted({span.topic for span in (*request.spans, *request.global_spans)})
    return HistoryRequest(
        SeedApplication.of(request.application, request.factory, request.config),
        {topic: BackfillInput(KAFKA) for topic in topics},
        "",
        f"{request.work}/state",
        f"{request.work}/outputs" if request.outputs else None,
        f"{request.work}/rejected",
        all_stores=True,
    )


def _brokers(request: messages.RunOnSpark) -> Brokers:
    offsets = [Offset(span.topic, span.partition, span.first, span.end) for span in (*request.spans, *request.global_spans)]
    return Brokers(
        lambda topics: {topic: request.partitions[topic] for topic in topics if topic in request.partitions},
        lambda topics: bounds_of(offsets, None),
    )


def _report(request: messages.RunOnSpark, result: HistoryResult, seconds: float) -> messages.Report:
    """Return the result as that of a build on this machine; its parts stay where the executors have written them."""
    folder, state = Path(request.folder), find(result.seed)
    outputs = OutputWriter(folder / "outputs.db")
    if result.outputs is not None:
        for topic, file in _files(place_of(result.outputs)):
            _add(outputs, topic, file)
    outputs.close()
    rejected = [] if result.rejected is None else list(_rejected(place_of(result.rejected)))
    return messages.Report(
        records=sum(span.end - span.first for span in request.spans),
        dropped=sum(stage.dropped for stage in result.stages),
        rejections=sum(stage.rejected for stage in result.stages),
        rejected=rejected[:MOST_REJECTED],
        seconds=seconds,
        cpu_seconds=sum(stage.cpu_seconds for stage in result.stages),
        parts={messages.END: {task: state.task_place(task).uri for task in state.tasks}},
        written={messages.END: outputs.number},
        outputs=str(folder / "outputs.db"),
    )


def _files(outputs: Place) -> list[tuple[str, Place]]:
    """Return the files of outputs with their topics, those of a topic in the order of its tasks."""
    found = [(topic.name, file) for topic in outputs.children() for file in topic.children() if file.name.endswith(".parquet")]
    return sorted(found, key=lambda each: (each[0], task_order(each[1].name.partition(".")[0])))


def _add(outputs: OutputWriter, topic: str, file: Place) -> None:
    for rows in read_file(file):
        times = rows.column("timestamp").cast(pa.int64()).to_pylist()
        columns = (rows.column(name).to_pylist() for name in ("key", "value", "headers"))
        for key, value, headers, timestamp in zip(*columns, times, strict=True):
            pairs = [(each["key"], each["value"]) for each in headers] if headers else None
            outputs.add(topic, key, value, timestamp, pairs, None)


def _rejected(folder: Place) -> list[messages.Rejected]:
    found = []
    for file in folder.children():
        for rows in read_file(file):
            for row in rows.select(["topic", "partition", "offset", "reason", "error_type", "error"]).to_pylist():
                found.append(
                    messages.Rejected(
                        task=file.name.partition(".")[0],
                        topic=row["topic"],
                        partition=row["partition"],
                        offset=row["offset"],
                        reason=row["reason"],
                        error=f"{row['error_type']}: {row['error']}",
                        where="",
                    )
                )
    return sorted(found, key=lambda each: (each.topic, each.partition, each.offset))


def serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Answer one request. The process ends at once if the one that has started it is gone: requests are at their end then."""

    def send(found: messages.Answer) -> None:
        answers.write(msgspec.json.encode(found) + b"\n")
        answers.flush()

    request = msgspec.json.decode(requests.readline(), type=messages.RunOnSpark)
    done = threading.Event()

    def watch() -> None:
        requests.read()
        if not done.is_set():
            os._exit(_PARENT_GONE)  # Spark's JVM ends with it

    threading.Thread(target=watch, name="parent", daemon=True).start()
    try:
        found = answer(request, lambda text: send(messages.Notice(text)))
    except (ExpectedError, StreamsError, SeedError, WrongSparkError) as error:
        found = messages.Refused(str(error))
    except SPARK_ERRORS as error:
        found = messages.Refused(explained(error, request.settings))
    send(found)
    done.set()


def main() -> None:
    """Serve the two file descriptors of the command line."""
    logs.configure(None, fields={})
    into, out = int(sys.argv[1]), int(sys.argv[2])
    with os.fdopen(into, "rb") as requests, os.fdopen(out, "wb") as answers:
        serve(requests, answers)


if __name__ == "__main__":
    main()
