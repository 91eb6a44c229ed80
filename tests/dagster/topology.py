"""The topology of the instances in these tests: counts records per key; a value that is not JSON pauses its task."""

from __future__ import annotations

import os

from runtime import Consumed, Materialized, Produced, StreamsBuilder, serdes
from runtime.topology.topology import Topology


def build() -> Topology:
    """`<application>-in` → counts per key → `<application>-out`; the application is named by the environment."""
    application = os.environ["PENSTOCK_TEST_APPLICATION"]
    builder = StreamsBuilder()
    (
        builder.stream(f"{application}-in", Consumed(key=serdes.STRING, value=serdes.JSON))
        .group_by_key()
        .count(Materialized("counts", key=serdes.STRING, value=serdes.LONG))
        .to_stream()
        .to(f"{application}-out", Produced(key=serdes.STRING, value=serdes.LONG))
    )
    return builder.build()
