"""Sessions in a cache: they grow, merge, are evicted, committed and restored, and leave no trace of what they were in between."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from random import Random

import pytest

from penstock import Consumed, Materialized, Produced, SessionWindows, StreamsBuilder, serdes
from penstock.runtime.model.ids import NextOffset, TaskId, TopicPartition
from penstock.runtime.model.record import Windowed
from penstock.runtime.serdes.keys import session_key
from penstock.runtime.stores import EngineStore, StoreContext
from penstock.runtime.stores.custom import build_store
from penstock.runtime.stores.window import StagedSessionStore
from penstock.runtime.topology.topology import Topology
from tests.support.pipelines import Compiled

GAP = 10
LOG = TopicPartition("app-sessions-changelog", 3)
Sessions = dict[bytes, int]
"""Numbers of records, by the key in the store."""


def topology() -> Topology:
    def name(key: object, value: object) -> str:
        assert isinstance(key, Windowed)
        return f"{key.key}/{key.window.start}/{key.window.end}"

    builder = StreamsBuilder()
    windows = SessionWindows.of_inactivity_gap_and_grace(timedelta(milliseconds=GAP), timedelta(seconds=10))
    records = builder.stream("in", Consumed(serdes.STRING, value=serdes.STRING)).group_by_key()
    counts = records.windowed_by(windows).count(Materialized("sessions", caching=True))
    counts.to_stream(name).to("out", Produced(serdes.STRING, value=serdes.LONG))
    return builder.build()


def model(rows: list[tuple[str, str, int]]) -> Sessions:
    found: Sessions = {}
    for key in {key for key, *_ in rows}:
        start = end = number = -1
        for at in [*sorted(at for each, _, at in rows if each == key), 1 << 40]:
            if number > 0 and at - end > GAP:
                found[session_key(key.encode(), start, end)] = number
                number = -1
            start, number = (at, 1) if number < 0 else (start, number + 1)
            end = at
    return found


def stored(store: EngineStore) -> Sessions:
    assert isinstance(store, StagedSessionStore)
    return {session_key(str(key.key).encode(), *key.window): int(str(value)) for key, value in store.all()}


def restored(log: list[tuple[bytes, bytes | None, int]], compiled: Compiled, folder: Path) -> Sessions:
    store = build_store(compiled.part.stores[0])
    store.open(folder, StoreContext("app", folder, TaskId(0, 3), LOG))
    for record in log:
        store.restore([record], {LOG: NextOffset(1)})
    rows = stored(store)
    store.close()
    return rows


def needless(log: list[tuple[bytes, bytes | None, int]]) -> int:
    """Return the number of tombstones of sessions that were never written."""
    return sum(value is None and key not in {each for each, put, _ in log[:number] if put} for number, (key, value, _) in enumerate(log))


def downstream(compiled: Compiled) -> Sessions:
    table: Sessions = {}
    for _, key, value, *_ in compiled.outputs.sent:
        name, start, end = (key or b"").decode().split("/")
        place = session_key(name.encode(), int(start), int(end))
        if value is None:
            del table[place]  # a tombstone of what was never sent is an error
        else:
            table[place] = int.from_bytes(value, "big")
    return table


@pytest.mark.parametrize("cache_bytes", [300, 1 << 20], ids=["evicting", "large cache"])
@pytest.mark.parametrize("seed", range(10))
def test_state_changelog_and_output_are_those_of_the_records(seed: int, cache_bytes: int, tmp_path: Path) -> None:
    random = Random(seed)
    compiled = Compiled(topology(), tmp_path / "store", cache_bytes=cache_bytes)
    (store,) = compiled.stores.values()
    rows: list[tuple[str, str, int]] = []
    log: list[tuple[bytes, bytes | None, int]] = []
    now = 100
    for number in range(300):
        now += random.choice([0, 1, 3, 8, 12, 40])
        rows.append((random.choice("abc"), "x", max(0, now - random.choice([0, 0, 0, 5, 30]))))
        compiled.run(rows[-1])
        if random.random() < 0.15 or number == 299:
            compiled.pipeline.flush_caches()
            log += store.changelog_records()
            store.commit({LOG: NextOffset(len(log))})
            assert stored(store) == downstream(compiled) == model(rows)
    assert restored(log, compiled, tmp_path / "restored") == model(rows)
    assert needless(log) < 20  # those of two sessions that became one; with those of sessions that grew there are more than 50
    store.close()
