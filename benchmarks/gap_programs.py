"""The topologies whose gaps are measured, for `python -m runtime.instance`; their topics come from the environment."""

from __future__ import annotations

import os

from runtime.dsl.builder import StreamsBuilder
from runtime.dsl.options import Consumed, Grouped, Materialized, Produced
from runtime.serdes import BYTES, LONG
from runtime.topology.topology import Topology


def copy() -> Topology:
    """No state: each record is written as it came."""
    builder = StreamsBuilder()
    builder.stream(os.environ["GAPS_INPUT"], Consumed(BYTES, value=BYTES)).to(os.environ["GAPS_OUTPUT"], Produced(BYTES, value=BYTES))
    return builder.build()


def count() -> Topology:
    """A count per key; every update is written."""
    builder = StreamsBuilder()
    records = builder.stream(os.environ["GAPS_INPUT"], Consumed(BYTES, value=BYTES))
    counts = records.group_by_key(Grouped(BYTES, value=BYTES)).count(Materialized("counts", caching=False))
    counts.to_stream().to(os.environ["GAPS_OUTPUT"], Produced(BYTES, value=LONG))
    return builder.build()
