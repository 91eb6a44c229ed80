"""Topologies for measuring gaps, run by `python -m penstock.runtime.instance`; the environment sets their topics."""

from __future__ import annotations

import os

from penstock.runtime.dsl.builder import StreamsBuilder
from penstock.runtime.dsl.options import Consumed, Grouped, Materialized, Produced
from penstock.runtime.topology.topology import Topology
from penstock.serdes import BYTES, LONG


def copy() -> Topology:
    """Return a topology without state: it copies each record."""
    builder = StreamsBuilder()
    builder.stream(os.environ["GAPS_INPUT"], Consumed(BYTES, value=BYTES)).to(os.environ["GAPS_OUTPUT"], Produced(BYTES, value=BYTES))
    return builder.build()


def count() -> Topology:
    """Return a topology that counts per key and writes every update."""
    builder = StreamsBuilder()
    records = builder.stream(os.environ["GAPS_INPUT"], Consumed(BYTES, value=BYTES))
    counts = records.group_by_key(Grouped(BYTES, value=BYTES)).count(Materialized("counts", caching=False))
    counts.to_stream().to(os.environ["GAPS_OUTPUT"], Produced(BYTES, value=LONG))
    return builder.build()
