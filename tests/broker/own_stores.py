"""An application that counts in stores of all kinds at once, including the user's own; tests kill it and restore it."""

from __future__ import annotations

import os
from typing import cast

from penstock import Processor, ProcessorContext, Record, Topology, serdes
from penstock.runtime.model.record import SessionWindow, Windowed
from penstock.runtime.stores import SessionStore, StateStore, StoreBuilder, Stores, VersionedKeyValueStore
from tests.support.own_stores import KINDS, OwnBuilder, OwnStore

DAY = 86_400_000


class CountEverywhere(Processor):
    """Counts each key in every store; fails if their previous counts differ."""

    def init(self, context: ProcessorContext) -> None:
        self._context = context
        self._own = {kind: cast(OwnStore, context.get_state_store(kind)) for kind in KINDS}
        self._versions = cast(VersionedKeyValueStore, context.get_state_store("versions"))
        self._sessions = cast(SessionStore, context.get_state_store("sessions"))

    def process(self, record: Record) -> None:
        key, time = str(record.key), record.timestamp
        seen = {kind: int(store.get(key) or 0) for kind, store in self._own.items()}
        version = self._versions.get(key)
        seen["versions"] = 0 if version is None else int(str(version.value))
        before = list(self._sessions.fetch(key))
        seen["sessions"] = int(str(before[-1][1])) if before else 0
        if len(set(seen.values())) != 1:
            raise AssertionError(f"the stores differ on {key}: {seen}")
        count = seen["versions"] + 1
        for store in self._own.values():
            store.put(key, str(count))
        self._versions.put(key, count, count)
        start = before[-1][0].window.start if before else time
        if before:
            self._sessions.remove(before[-1][0])
        self._sessions.put(Windowed(key, SessionWindow(start, max(time, start))), count)
        self._context.forward(record.with_value(count))


def topology(source: str, output: str) -> Topology:
    """Return source → CountEverywhere → output."""
    builders: list[StoreBuilder[StateStore]] = [
        *(OwnBuilder(kind, kind) for kind in KINDS),
        Stores.versioned_key_value_store_builder(Stores.persistent_versioned_key_value_store("versions", DAY), serdes.STRING, serdes.LONG),
        Stores.session_store_builder(Stores.persistent_session_store("sessions", DAY), serdes.STRING, serdes.LONG),
    ]
    made = Topology().add_source("source", source, key_serde=serdes.STRING, value_serde=serdes.STRING)
    made.add_processor("count", CountEverywhere, "source")
    for builder in builders:
        made.add_state_store(builder, "count")
    return made.add_sink("sink", output, "count", key_serde=serdes.STRING, value_serde=serdes.LONG)


def build() -> Topology:
    """Return the topology of the processes."""
    return topology(os.environ["TEST_SOURCE"], os.environ["TEST_OUTPUT"])
