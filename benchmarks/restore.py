"""`python -m benchmarks restore`: speed of restoring a lost store, compared with hand-written programs in the same run.

The changelog has ten updates per key, like one that was not compacted recently. All programs read it on one thread. The engine and, on
request, Kafka Streams start in the usual way, find no state, and are measured from the first call of their restore listeners to the last,
and from the start of their processes to RUNNING. Programs take turns; each run begins with an empty folder, and the final content of the
stores is compared with the expected content.
"""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from typing import Annotated

import msgspec
import typer
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from rich import box
from rich.table import Table

from benchmarks.brokers import broker_for
from benchmarks.data import FIRST_EVENT_MS, PARTITIONS, produce
from benchmarks.measure import ROOT, MeasurementError
from benchmarks.peers.programs import PENSTOCK
from benchmarks.peers.programs import PROGRAMS as ENGINES
from benchmarks.restore_programs import BY_HAND, Job, OfKafkaStreams, Restored
from penstock.orchestration.drawing.console import stdout_console
from penstock.orchestration.embedded.jars import JarsError
from penstock.orchestration.embedded.kafka import BrokerError

BESIDE = "kafka-streams"
DENOMINATOR = "folded-sst"
TIMEOUT_SECONDS = 600
COORDINATOR_SECONDS = 30


def main(
    records: Annotated[int, typer.Option(min=1000, help="Updates in the changelog.")] = 2_000_000,
    keys: Annotated[int, typer.Option(min=100, help="Keys that they are over; records divided by keys is rounded down.")] = 200_000,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each program; the table shows the median.")] = 3,
    beside: Annotated[bool, typer.Option("--beside", help="Measure Kafka Streams too, which takes a JDK.")] = False,
    bootstrap: Annotated[str | None, typer.Option(help="A broker to use in place of one started for this.")] = None,
) -> None:
    """Measure the restore of a store against the same by hand. Exit status 1 if a store's content is wrong or a program fails."""
    console = stdout_console()
    rounds = max(1, records // keys)
    results: dict[str, list[Restored]] = {program: [] for program in (PENSTOCK, *BY_HAND, *([BESIDE] if beside else []))}
    base = f"bench-restore-{uuid.uuid4().hex[:8]}"
    apps = {program: f"{base}-java" if program == BESIDE else base for program in results}  # one group cannot serve both engines
    try:
        java = ENGINES[BESIDE].command() if beside else []
        with broker_for(bootstrap, console) as servers:
            for app in dict.fromkeys(apps.values()):
                with console.status(f"writing a changelog of {rounds * keys:,} records"):
                    _prepare(servers, app, keys, rounds)
            for turn in range(repeats):
                for program, runs in results.items():
                    with console.status(f"{program}, {turn + 1} of {repeats}"):
                        runs.append(_run(program, java, servers, apps[program], keys, rounds))
    except (BrokerError, JarsError, MeasurementError) as error:
        console.print(f"[red]{error}[/red]", soft_wrap=True)
        raise typer.Exit(1) from error
    console.print(_table(results, rounds * keys, keys))
    wrong = [program for program, runs in results.items() if any(run.wrong for run in runs)]
    if wrong:
        console.print(f"[red]stores hold what they should not, or not all: {', '.join(wrong)}[/red]")
        raise typer.Exit(1)
    console.print("What is in the stores is right, in every run.")


def _prepare(servers: str, app: str, keys: int, rounds: int) -> None:
    """Create the topics of an application that has counted and processed its input, and whose state is lost."""
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 3})
    changelog, source = f"{app}-counts-changelog", f"{app}-input"
    topics = [
        NewTopic(changelog, PARTITIONS, 1, config={"cleanup.policy": "compact"}),
        NewTopic(source, PARTITIONS, 1),
        NewTopic(f"{source}-output", PARTITIONS, 1),
    ]
    for future in admin.create_topics(topics).values():
        future.result(30)
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "linger.ms": 5,
            "batch.size": 1 << 19,
            "queue.buffering.max.messages": 1_000_000,
            "partitioner": "murmur2_random",
            "enable.idempotence": True,
        }
    )
    names = [b"u%08d" % number for number in range(keys)]
    random.Random(3).shuffle(names)
    at = FIRST_EVENT_MS
    for turn in range(1, rounds + 1):
        value = turn.to_bytes(8, "big")
        for name in names:
            at += 1
            produce(producer, changelog, value, name, at)
    producer.flush()
    _commit_nothing(admin, app, source)


def _commit_nothing(admin: AdminClient, group: str, topic: str) -> None:
    """Commit the offset of the topic, which is empty, as if it was processed. A broker that has just started has no coordinator for it
    yet."""
    done = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    deadline = time.monotonic() + COORDINATOR_SECONDS
    while True:
        (answer,) = admin.alter_consumer_group_offsets([done])[group].result(30).topic_partitions[:1]
        if answer.error is None:
            return
        if time.monotonic() > deadline:
            raise MeasurementError(f"the offsets of group {group} cannot be set: {answer.error.str()}")
        time.sleep(0.2)


def _run(program: str, java: list[str], servers: str, app: str, keys: int, rounds: int) -> Restored:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-state-") as state:
        job = Job(program, app, servers, f"{app}-input", state, time.time_ns() // 1_000_000, keys, rounds)
        command = [sys.executable, "-m", "benchmarks.restore_programs", msgspec.json.encode(job).decode()]
        env = dict(os.environ)
        if program == BESIDE:
            command, env["BENCH_SPEC"] = java, msgspec.json.encode(OfKafkaStreams.of(job)).decode()
        try:
            ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=env, timeout=TIMEOUT_SECONDS, check=True)
        except subprocess.CalledProcessError as error:
            raise MeasurementError(f"{program} ended with status {error.returncode}:\n{error.stderr[-4000:]}") from error
        except subprocess.TimeoutExpired as error:
            raise MeasurementError(f"{program} did not come to its end within {TIMEOUT_SECONDS} s") from error
    return msgspec.json.decode(ended.stdout.splitlines()[-1], type=Restored)


def _table(results: dict[str, list[Restored]], records: int, keys: int) -> Table:
    table = Table(
        title=f"Restore of {records:,} updates over {keys:,} keys",
        caption="krec/s: thousand records per second, median (least-most); ratio: to folded-sst; start: seconds from the start of the "
        "process until it could process; besides: of that, what was not restoring",
        box=box.SIMPLE,
    )
    table.add_column("")
    for heading in ("krec/s", "ratio", "start", "besides"):
        table.add_column(heading, justify="right", no_wrap=True)
    limit = _rate(results[DENOMINATOR], records)
    for program, runs in results.items():
        rates = sorted(records / run.seconds / 1000 for run in runs)
        table.add_row(
            f"by hand, {program}" if program in BY_HAND else program,
            f"{_rate(runs, records):.0f} ({rates[0]:.0f}-{rates[-1]:.0f})",
            f"{_rate(runs, records) / limit:.2f}",
            f"{statistics.median(run.ready_seconds for run in runs):.1f}",
            f"{statistics.median(run.ready_seconds - run.seconds for run in runs):.1f}",
        )
    return table


def _rate(runs: Sequence[Restored], records: int) -> float:
    return statistics.median(records / run.seconds / 1000 for run in runs)
