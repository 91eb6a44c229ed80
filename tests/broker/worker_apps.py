"""Applications for workers in processes of their own: factories that find everything else in the environment."""

from __future__ import annotations

import os
import time
from pathlib import Path

from runtime import serdes
from runtime.dsl.builder import StreamsBuilder
from runtime.dsl.options import Consumed, Materialized, Produced
from runtime.topology.topology import Topology
from tests.broker.engine import count_topology

TEXT = Consumed(serdes.STRING, value=serdes.STRING)


def counts() -> Topology:
    """Counts per key; every update is written."""
    return count_topology(os.environ["TEST_SOURCE"], os.environ["TEST_OUTPUT"], caching=False)


def once(name: str) -> bool:
    """True for the first process that asks for it."""
    try:
        Path(os.environ["TEST_FOLDER"], name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def trouble(value: str) -> str:
    """Passes a value on. The first process that meets `hang` hangs; one that meets `fail` fails, the first one only for `fail once`."""
    if value == "hang" and once("hung"):
        time.sleep(600)
    if value == "fail" or (value == "fail once" and once("failed")):
        raise ValueError(f"cannot go on at {value!r}")
    return value


def troubled_copy() -> Topology:
    """Writes what it reads, unless it is told not to."""
    builder = StreamsBuilder()
    source = builder.stream(os.environ["TEST_SOURCE"], TEXT)
    source.map_values(trouble).to(os.environ["TEST_OUTPUT"], Produced(serdes.STRING, value=serdes.STRING))
    return builder.build()


def with_names() -> Topology:
    """Joins with a global table."""
    builder = StreamsBuilder()
    names = builder.global_table(os.environ["TEST_NAMES"], TEXT, Materialized("names"))
    source = builder.stream(os.environ["TEST_SOURCE"], TEXT)
    joined = source.join(names, lambda key, value: key, lambda value, name: f"{value} {name}")
    joined.to(os.environ["TEST_OUTPUT"], Produced(serdes.STRING, value=serdes.STRING))
    return builder.build()
