"""The topologies of the instances in these tests: count records per key; a value that is not JSON pauses its task."""

from __future__ import annotations

import os

from penstock import Consumed, Grouped, Materialized, Produced, StreamsBuilder, serdes
from penstock.runtime.topology.topology import Topology


def build() -> Topology:
    """Return `<application>-in` → counts per key → `<application>-out`; the environment names the application."""
    return _counting(StreamsBuilder()).build()


def build_with_table() -> Topology:
    """Return the topology of `build` with a global table `names` of `<application>-names`."""
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


def build_wide() -> Topology:
    """Return the topology of `build`, and `<application>-in` joined with the global table `names` → counts per name, in a store without a
    changelog after a repartition topic → `<application>-moved`."""
    application = os.environ["PENSTOCK_TEST_APPLICATION"]
    builder = StreamsBuilder()
    names = builder.global_table(f"{application}-names", Consumed(key=serdes.STRING, value=serdes.STRING), Materialized("names"))
    source = builder.stream(f"{application}-in", Consumed(key=serdes.STRING, value=serdes.JSON))
    produced = Produced(key=serdes.STRING, value=serdes.LONG)
    counts = Materialized("counts", key=serdes.STRING, value=serdes.LONG)
    source.group_by_key().count(counts).to_stream().to(f"{application}-out", produced)
    (
        source.join(names, lambda key, value: key, lambda value, name: name)
        .group_by(lambda key, name: name, Grouped(serdes.STRING, value=serdes.STRING, name="by-name"))
        .count(Materialized("moved", key=serdes.STRING, value=serdes.LONG, logging=False))
        .to_stream()
        .to(f"{application}-moved", produced)
    )
    return builder.build()


def build_chained() -> Topology:
    """Return `<application>-in` → `<application>-out`, a topic that the application also reads → counts per key → `<application>-moved`."""
    application = os.environ["PENSTOCK_TEST_APPLICATION"]
    builder = StreamsBuilder()
    consumed, produced = Consumed(key=serdes.STRING, value=serdes.JSON), Produced(key=serdes.STRING, value=serdes.JSON)
    builder.stream(f"{application}-in", consumed).to(f"{application}-out", produced)
    counts = Materialized("counts", key=serdes.STRING, value=serdes.LONG)
    copies = builder.stream(f"{application}-out", consumed).group_by_key()
    copies.count(counts).to_stream().to(f"{application}-moved", Produced(key=serdes.STRING, value=serdes.LONG))
    return builder.build()


def build_of_table() -> Topology:
    """Return a table of `<application>-in`, which is restored from that topic → `<application>-out`."""
    application = os.environ["PENSTOCK_TEST_APPLICATION"]
    builder = StreamsBuilder()
    rows = builder.table(f"{application}-in", Consumed(key=serdes.STRING, value=serdes.STRING), Materialized("rows"))
    rows.to_stream().to(f"{application}-out", Produced(key=serdes.STRING, value=serdes.STRING))
    return builder.build({"topology.optimization": "reuse.ktable.source.topics"})
