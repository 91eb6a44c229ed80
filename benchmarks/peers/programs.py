"""Programs that the benchmarks run in turn, and how each starts: the engine, the hand-written jobs and, on request, other engines.

All get their job from `BENCH_SPEC` (`workloads.Run`), and print `BENCH FIRST <epoch ms>` at their first record. Kafka
Streams is compiled once, which needs a JDK; Quix Streams gets its own virtual environment, because its dependencies differ from
this project's.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import ROOT, MeasurementError
from penstock.orchestration.embedded.cache import cache_dir
from penstock.orchestration.embedded.jars import KAFKA_STREAMS, class_path, compiled, compiler
from penstock.orchestration.embedded.java import java_home

_HERE = Path(__file__).parent
QUIX = ("quixstreams==3.28.1", "orjson==3.11.4")
QUIX_RECORDS = 100_000
"""Maximum number of records: it is so much slower that all others would wait for it."""


@dataclass(frozen=True, slots=True)
class Program:
    """`command` prepares the program and returns the arguments of its process; it raises MeasurementError or JarsError. `lacks`: kinds
    of workloads that it does not support. `most_records`: its maximum number of records, if lower than that of the others."""

    name: str
    command: Callable[[], list[str]]
    lacks: frozenset[str] = frozenset()
    most_records: int | None = None


def _module(name: str) -> Callable[[], list[str]]:
    return lambda: [sys.executable, "-m", name]


def _kafka_streams() -> list[str]:
    javac = compiler()
    if javac is None:
        raise MeasurementError("Kafka Streams cannot be compiled: there is no JDK on this machine (javac)")
    classes = compiled(javac, [_HERE / "StreamsApp.java"], KAFKA_STREAMS)
    return [str(java_home() / "bin" / "java"), "-Xmx2g", "-cp", f"{classes}:{class_path(KAFKA_STREAMS)}", "StreamsApp"]


def _quix() -> list[str]:
    environment = cache_dir() / "python" / "-".join(each.replace("==", "-") for each in QUIX)
    python = environment / "bin" / "python"
    done = environment / "complete"
    if not done.exists():
        uv = [sys.executable, "-m", "uv", "--quiet"]
        for arguments in (["venv", "--clear", str(environment)], ["pip", "install", "--python", str(python), *QUIX]):
            made = subprocess.run([*uv, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
            if made.returncode:
                raise MeasurementError(f"Quix Streams cannot be installed:\n{made.stderr}")
        done.touch()
    return [str(python), "-W", "ignore", str(_HERE / "quix_app.py")]


PENSTOCK, BY_HAND = "penstock", "hand-written"
_BESIDE_KAFKA_STREAMS = frozenset({"foreign-key-join", "session", "suppress", "table-aggregate"})
"""Kinds that are compared with Kafka Streams alone: most of a hand-written program would be what the engine is."""
PROGRAMS = {
    each.name: each
    for each in (
        Program(PENSTOCK, _module("benchmarks.peer")),
        Program(BY_HAND, _module("benchmarks.handwritten"), _BESIDE_KAFKA_STREAMS),
        Program("kafka-streams", _kafka_streams),
        Program("quix", _quix, _BESIDE_KAFKA_STREAMS | {"stream-join"}, QUIX_RECORDS),
    )
}
ALWAYS = (PENSTOCK, BY_HAND)
