"""Applications for workers as processes: factories that read all other settings from the environment."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

from penstock import TimeWindows, serdes
from penstock.runtime.dsl.builder import StreamsBuilder
from penstock.runtime.dsl.options import Consumed, Grouped, Materialized, Produced
from penstock.runtime.topology.topology import Topology
from penstock.runtime.worker.supervisor.channel import Channel
from tests.support.engine import count_topology

TEXT = Consumed(serdes.STRING, value=serdes.STRING)


def counts() -> Topology:
    """Return a topology that counts per key; every update is written."""
    return count_topology(os.environ["TEST_SOURCE"], os.environ["TEST_OUTPUT"], caching=False)


def once(name: str) -> bool:
    """Return True for the first process that calls it with this name."""
    try:
        Path(os.environ["TEST_FOLDER"], name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def trouble(value: str) -> str:
    """Return the value. The first process that meets `hang` hangs; one that meets `fail` fails, and for `fail once` only the first; one
    that meets `exit` calls `sys.exit()`."""
    if value == "hang" and once("hung"):
        time.sleep(600)
    if value == "fail" or (value == "fail once" and once("failed")):
        raise ValueError(f"cannot continue at {value!r}")
    if value == "exit":
        sys.exit(f"cannot continue at {value!r}")
    return value


def troubled_copy() -> Topology:
    """Return a topology that copies its input, with the failures of `trouble`."""
    builder = StreamsBuilder()
    source = builder.stream(os.environ["TEST_SOURCE"], TEXT)
    source.map_values(trouble).to(os.environ["TEST_OUTPUT"], Produced(serdes.STRING, value=serdes.STRING))
    return builder.build()


def frozen_at_its_end() -> Topology:
    """Return the topology of counts. The first worker that has sent its last message is stopped (SIGSTOP) before it closes its channel."""
    close = Channel.close

    def stop_and_close(self: Channel) -> None:
        if once("stopped"):
            self._outgoing.put(None)
            self._writer.join()  # the message is sent
            Path(os.environ["TEST_FOLDER"], "stopped").write_text(f"{os.getpid()}.")
            os.kill(os.getpid(), signal.SIGSTOP)
        close(self)

    if Path(sys.argv[0]).name == "process.py":  # not in the client's process
        Channel.close = stop_and_close  # type: ignore[method-assign]
    return counts()


def short_windows() -> Topology:
    """Return a topology with windows of 5 ms, which is probably a mistake."""
    builder = StreamsBuilder()
    grouped = builder.stream(os.environ["TEST_SOURCE"], TEXT).group_by_key()
    grouped.windowed_by(TimeWindows.of_size_with_no_grace(5)).count("short")
    return builder.build()


def with_names() -> Topology:
    """Return a topology that joins with a global table."""
    builder = StreamsBuilder()
    names = builder.global_table(os.environ["TEST_NAMES"], TEXT, Materialized("names"))
    source = builder.stream(os.environ["TEST_SOURCE"], TEXT)
    joined = source.join(names, lambda key, value: key, lambda value, name: f"{value} {name}")
    joined.to(os.environ["TEST_OUTPUT"], Produced(serdes.STRING, value=serdes.STRING))
    return builder.build()


async def enriched(value: str) -> str:
    """Return the value. The first call for `hang` writes its process id to the file `calling` and does not return."""
    if value == "hang" and once("calling"):
        Path(os.environ["TEST_FOLDER"], "calling").write_text(f"{os.getpid()}.")
        await asyncio.Event().wait()
    return value


def enriched_counts() -> Topology:
    """Return a topology that counts the results of calls per key; every update is written."""
    builder = StreamsBuilder()
    results = builder.stream(os.environ["TEST_SOURCE"], TEXT).map_async(enriched, limit=50, timeout=None).map_batches(list, size=20)
    counts = results.group_by_key(Grouped(serdes.STRING, value=serdes.STRING)).count(Materialized("counts", caching=False))
    counts.to_stream().to(os.environ["TEST_OUTPUT"], Produced(serdes.STRING, value=serdes.LONG))
    return builder.build()
