"""Kafka Streams itself, in a JVM that runs as long as the tests do (java/Reference.java)."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from penstock.orchestration.embedded.jars import KAFKA_STREAMS, class_path, compiled
from penstock.orchestration.embedded.java import java_home

SOURCES = Path(__file__).parent / "java"
_OPTIONS = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")

Output = tuple[str, "bytes | None", "bytes | None", int, tuple[tuple[str, "bytes | None"], ...]]
"""Topic, key, value, timestamp in ms, headers."""
Outcome = tuple[list[list[Output]], "int | None", "str | None"]
"""Of each step, its outputs; the number of dropped records; what was raised."""


class JavaStreams:
    """Runs topologies of java/*.java on records. Not safe for several threads."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process, self._log = process, log

    def run(self, topology: str, config: Mapping[str, object], steps: Sequence[object]) -> Outcome:
        """Return the outputs of each step, the number of dropped records, and the error; steps have the form of Reference.java."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"topology": topology, "config": config, "steps": steps}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the JVM ended:\n{self._log.read_text()}"
        answer = json.loads(line)
        return [[_output(row) for row in step] for step in answer["steps"]], answer.get("dropped"), answer.get("error")


@contextmanager
def java_streams(javac: str, folder: Path) -> Iterator[JavaStreams]:
    """Starts the JVM and ends it. `folder`: where it leaves its log and its state."""
    log = folder / "java.log"
    command = [
        str(java_home() / "bin" / "java"),
        *_OPTIONS,
        f"-Djava.io.tmpdir={folder}",
        "-cp",
        f"{compiled(javac, sorted(SOURCES.glob('*.java')), KAFKA_STREAMS)}:{class_path(KAFKA_STREAMS)}",
    ]
    with log.open("w") as output:
        process = subprocess.Popen([*command, "Reference"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output, text=True)
    try:
        yield JavaStreams(process, log)
    finally:
        process.kill()
        process.communicate()


def _output(row: Sequence[object]) -> Output:
    topic, key, value, timestamp, headers = row
    pairs = cast("list[tuple[str, str | None]]", headers)
    return str(topic), _bytes(key), _bytes(value), cast(int, timestamp), tuple((name, _bytes(data)) for name, data in pairs)


def _bytes(text: object) -> bytes | None:
    return None if text is None else cast(str, text).encode("latin-1")
