"""Topologies for measuring gaps, run by `python -m penstock.runtime.instance`; the environment sets their topics."""

from __future__ import annotations

import os

from penstock.runtime.dsl.builder import StreamsBuilder
from penstock.runtime.dsl.options import Consumed, Grouped, Materialized, Produced
from penstock.runtime.topology.topology import Topology
from penstock.serdes import BYTES, LONG


def copying(source: str, output: str) -> StreamsBuilder:
    """Return the builder of a topology without state, which copies each record."""
    builder = StreamsBuilder()
    builder.stream(source, Consumed(BYTES, value=BYTES)).to(output, Produced(BYTES, value=BYTES))
    return builder


def counting(source: str, output: str) -> StreamsBuilder:
    """Return the builder of a topology that counts per key and writes every update."""
    builder = StreamsBuilder()
    records = builder.stream(source, Consumed(BYTES, value=BYTES))
    counts = records.group_by_key(Grouped(BYTES, value=BYTES)).count(Materialized("counts", caching=False))
    counts.to_stream().to(output, Produced(BYTES, value=LONG))
    return builder


def copy() -> Topology:
    return copying(os.environ["GAPS_INPUT"], os.environ["GAPS_OUTPUT"]).build()


def count() -> Topology:
    return counting(os.environ["GAPS_INPUT"], os.environ["GAPS_OUTPUT"]).build()
