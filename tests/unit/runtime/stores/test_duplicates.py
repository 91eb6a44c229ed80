"""Rows of a join of streams: what is read does not depend on what the read cache still holds."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from penstock import serdes
from penstock.runtime.stores import Stores
from penstock.runtime.stores.budget import StoreMemory
from penstock.runtime.stores.duplicates import StagedDuplicatesStore
from tests.support.stores import opened

RETENTION = 1_000
ROOM = 20_000
"""Bytes of a read cache for some 30 rows: there are about as many that are not expired."""


@pytest.mark.parametrize("spread", [500, 5_000], ids=["expired rows make room", "rows are read again from files"])
@pytest.mark.parametrize("read_cache", [ROOM, 1 << 24], ids=["small cache", "large cache"])
@pytest.mark.parametrize("seed", range(3))
def test_a_join_reads_the_rows_of_a_key_that_are_not_expired_in_order(seed: int, read_cache: int, spread: int, tmp_path: Path) -> None:
    """Late, equal and expired times; commits and rollbacks; a `spread` of times that leaves few or many rows alive."""
    random, step = Random(seed), 10_000 // spread
    supplier = Stores.persistent_window_store("store", RETENTION, RETENTION, retain_duplicates=True)
    make = Stores.window_store_builder(supplier, serdes.STRING, serdes.LONG).build
    memory = StoreMemory(read_cache_bytes=read_cache)
    for under_test in opened(make, tmp_path, memory):
        store = under_test.store
        assert isinstance(store, StagedDuplicatesStore)
        rows: dict[bytes, list[tuple[int, int]]] = {}
        committed, now, began = rows, 0, 0
        for number in range(2_000):
            now += random.randint(0, 2 * step)
            key, time = b"k%d" % random.randrange(40), max(0, now - random.choice([0, 0, 0, random.randint(0, 1_500)]))
            latest = max((at for of_key in rows.values() for at, _ in of_key), default=-1)
            store.add(key, number, time, time)
            if time > latest - RETENTION:
                rows.setdefault(key, []).append((time, number))
                latest = max(latest, time)
            asked = b"k%d" % random.randrange(40)
            first = now - random.randint(0, 1_500)
            alive = [row for row in rows.get(asked, ()) if first <= row[0] <= now and row[0] > latest - RETENTION]
            assert list(store.values_between(asked, first, now)) == sorted(alive, key=lambda row: row[0]), number
            if random.random() < 0.05:
                under_test.commit(number + 1)
                committed, began = {name: list(of_key) for name, of_key in rows.items()}, now
            elif random.random() < 0.01:
                store.rollback()
                rows, now = {name: list(of_key) for name, of_key in committed.items()}, began
        under_test.commit(2_001)
        assert 0 <= memory.read_cache.used <= read_cache
