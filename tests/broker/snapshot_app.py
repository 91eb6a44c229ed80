"""An application with many kinds of state: counts, windows, counts in memory, counts after a repartition topic, a user's own store,
and a global table."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import cast

from penstock import Processor, ProcessorContext, Record, Topology, serdes
from penstock.runtime.dsl.builder import StreamsBuilder
from penstock.runtime.dsl.options import Consumed, Grouped, Materialized
from penstock.runtime.dsl.windows import TimeWindows
from tests.support.own_stores import OwnBuilder, OwnStore

TEXT = Consumed(serdes.STRING, value=serdes.STRING)
GROUPED = Grouped(key=serdes.STRING, value=serdes.STRING)


class Remember(Processor):
    """Keeps the last value of each key in a user's own store."""

    def init(self, context: ProcessorContext) -> None:
        self._store = cast(OwnStore, context.get_state_store("own"))

    def process(self, record: Record) -> None:
        self._store.put(str(record.key), str(record.value))


def build() -> Topology:
    builder = StreamsBuilder()
    builder.global_table(os.environ["TEST_NAMES"], TEXT, Materialized("names"))
    stream = builder.stream(os.environ["TEST_SOURCE"], TEXT)
    by_key = stream.group_by_key(GROUPED)
    by_key.count(Materialized("counts"))
    by_key.count(Materialized("memory", store_type="in_memory"))
    by_key.windowed_by(TimeWindows.of_size_with_no_grace(timedelta(minutes=1))).count(Materialized("windows"))
    stream.group_by(lambda _key, value: value, GROUPED).count(Materialized("by-value"))
    builder.add_state_store(OwnBuilder("own", "sqlite"))
    stream.process(Remember, "own")
    return builder.build()
