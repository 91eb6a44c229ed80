"""Writes of a backend that are prepared before their offsets are known."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.runtime.model.ids import NextOffset, TopicPartition
from penstock.runtime.serdes.keys import WINDOW_SUFFIX, window_store_key
from penstock.runtime.stores.backend import Backend
from penstock.runtime.stores.budget import StoreMemory
from penstock.runtime.stores.memory import MemoryBackend, MemorySegments
from penstock.runtime.stores.rocks import RocksBackend
from penstock.runtime.stores.rocks_segments import RocksSegments
from penstock.runtime.stores.settings import SegmentSettings

CHANGELOG = TopicPartition("log", 0)
SEGMENTS = SegmentSettings(1_000, 500, WINDOW_SUFFIX)


@pytest.fixture(params=["rocks", "rocks-segments", "memory", "memory-segments"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    made: dict[str, Backend] = {"memory": MemoryBackend("default"), "memory-segments": MemorySegments(SEGMENTS)}
    if request.param.startswith("rocks"):
        made["rocks"] = RocksBackend(tmp_path / "a", "default", StoreMemory())
        made["rocks-segments"] = RocksSegments(tmp_path / "b", SEGMENTS, StoreMemory())
    yield made[request.param]
    for each in made.values():
        each.close()


def test_a_begun_write_shows_nothing_until_it_is_completed_and_may_be_dropped(backend: Backend) -> None:
    old, new = (window_store_key(key, 5, 0) for key in (b"old", b"new"))
    backend.write([(old, b"1")], {CHANGELOG: NextOffset(1)})
    backend.begin_write([(old, b"dropped"), (new, b"dropped")])
    complete = backend.begin_write([(old, None), (new, b"2")])
    assert backend.get(old) == b"1"
    assert backend.get(new) is None
    complete({CHANGELOG: NextOffset(7)}, {"time": b"5"})
    assert backend.get(old) is None
    assert backend.get(new) == b"2"
    assert backend.offsets() == {CHANGELOG: NextOffset(7)}
    assert backend.meta("time") == b"5"
