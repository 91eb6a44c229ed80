"""A reset of an application that is not declared here: its facts come from its records alone."""

from __future__ import annotations

import re

from penstock import Consumed, Materialized, Produced, StreamsBuilder
from penstock.orchestration.resets.survey import Past
from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.coordination.records import Reset, TopologyText
from penstock.runtime.topology.shape import shape_of
from penstock.serdes import STRING


def test_the_topic_of_a_global_table_is_no_output_also_where_the_application_writes_to_it() -> None:
    builder = StreamsBuilder()
    builder.global_table("cards", Consumed(STRING, value=STRING), Materialized("cards"))
    orders = builder.stream("orders", Consumed(STRING, value=STRING))
    orders.to("cards", Produced(STRING, value=STRING))
    orders.to("copies", Produced(STRING, value=STRING))
    topology = builder.build().resolved(StreamsConfig({"application.id": "app", "bootstrap.servers": "x:1"}))
    past = Past(topologies=[TopologyText(hash="h", text=str(topology.describe()), shape=shape_of(topology, "app"))])
    assert (past.inputs, past.outputs) == ({"orders"}, {"copies"})


def test_the_inputs_of_a_pattern_are_known_after_a_reset_that_was_killed_when_it_had_deleted_their_offsets() -> None:
    builder = StreamsBuilder()
    builder.stream(re.compile("orders-.*"), Consumed(STRING, value=STRING)).to("copies", Produced(STRING, value=STRING))
    topology = builder.build().resolved(StreamsConfig({"application.id": "app", "bootstrap.servers": "x:1"}))
    text = TopologyText(hash="h", text=str(topology.describe()), shape=shape_of(topology, "app"))
    assert Past(topologies=[text]).inputs == set()
    assert Past(topologies=[text], reset=Reset(id="r", at_ms=1, by="ann", inputs=("orders-1",))).inputs == {"orders-1"}
    assert Past(topologies=[text], reset=Reset(id="r", at_ms=1, by="ann", inputs=("orders-1",), ended=True)).inputs == set()
