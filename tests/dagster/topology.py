"""The topologies of the instances in these tests: count records per key; a value that is not JSON pauses its task."""

from __future__ import annotations

import os

from runtime import Consumed, Materialized, Produced, StreamsBuilder, serdes
from runtime.topology.topology import Topology


def build() -> Topology:
    """`<application>-in` → counts per key → `<application>-out`; the application is named by the environment."""
    return _counting(StreamsBuilder()).build()


def build_with_table() -> Topology:
    """As `build`, beside a global table `names` of `<application>-names`."""
    builder = StreamsBuilder()
    topic = f"{os.environ['PENSTOCK_TEST_APPLICATION']}-names"
    builder.global_table(topic, Consumed(key=serdes.STRING, value=serdes.STRING), Materialized("names"))
    return _counting(builder).build()


def _counting(builder: StreamsBuilder) -> StreamsBuilder:
    application = os.environ["PENSTOCK_TEST_APPLICATION"]
    (
        builder.stream(f"{application}-in", Consumed(key=serdes.STRING, value=serdes.JSON))
        .group_by_key()
        .count(Materialized("counts", key=serdes.STRING, value=serdes.LONG))
        .to_stream()
        .to(f"{application}-out", Produced(key=serdes.STRING, value=serdes.LONG))
    )
    return builder
