"""Record of the formats of a seed's entries in the shape of the state, so that later programs are compared with them.

A seed may come from an earlier version of the program than the one that installs it. Without the record the next version would be compared
with the latter only (`coordination/previous_run.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec

from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.coordination.lost_record import awaited_record
from penstock.runtime.coordination.past import read_past
from penstock.runtime.coordination.previous_run import standing_record
from penstock.runtime.coordination.records import SEED, SHAPE, StateShape, newest
from penstock.runtime.kafka.topic_admin import TopicAdmin
from penstock.runtime.seeds.plan import SeededTask
from penstock.runtime.topology.shape import TopologyShape, shape_of
from penstock.runtime.topology.topology import Topology


def state_record(
    topology: Topology, config: StreamsConfig, topics: TopicAdmin, tasks: Sequence[SeededTask], seed: str
) -> StateShape | None:
    """Return the record to write before the state of these tasks; None if the existing one covers it. `seed`: its id. Raises TopologyError
    (the record of the stores that are not seeded is lost), BrokerUnavailableError, StreamsError."""
    now, seeded = shape_of(topology, config.application_id), {store.name for task in tasks for store in task.stores}
    read = partial(standing_record, config, topics)
    whole = all(store.of_source or store.name in seeded for store in now.stores)
    previous, _ = (read() if whole else awaited_record(now, config, topics, read)) or (None, None)
    holds = newest(record for record in read_past(config, SHAPE) if isinstance(record, StateShape))
    shape = seeded_shape(previous, now, tasks)
    if holds is not None and (holds.shape, holds.seed) == (shape, seed):
        return None
    return StateShape(version=1 if holds is None else holds.version + 1, shape=shape, by=SEED, seed=seed)


def seeded_shape(previous: TopologyShape | None, now: TopologyShape, tasks: Sequence[SeededTask]) -> TopologyShape:
    """Return the shape of the state after these tasks were seeded. Other stores keep their recorded shape, which the topology's start
    checks."""
    formats = {store.name: store.format for task in tasks for store in task.stores}
    base = TopologyShape(sources=now.sources) if previous is None else previous
    seeded = {store.name: msgspec.structs.replace(store, format=formats[store.name]) for store in now.stores if store.name in formats}
    stores = tuple(seeded.pop(store.name, store) for store in base.stores)
    return msgspec.structs.replace(base, stores=(*stores, *seeded.values()))
