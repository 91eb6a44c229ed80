"""What stores share inside RocksDB: caches by size, and a number of filters over write buffers that does not grow with the stores."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime import serdes
from runtime.config import StreamsConfig
from runtime.errors import StreamsConfigError
from runtime.ids import Partition, TaskId
from runtime.stores.base import EngineStore, StoreContext
from runtime.stores.budget import MIB, StoreMemory
from runtime.stores.rocks_options import RocksMemory, rocks_memory
from runtime.stores.suppliers import Stores

BUFFERS = 8 * MIB
FILTERS = 2
"""As many as fit into a quarter of it."""


def opened(folder: Path, number: int, memory: StoreMemory) -> EngineStore:
    supplier = Stores.persistent_timestamped_key_value_store(f"s{number}")
    store = Stores.timestamped_key_value_store_builder(supplier, serdes.STRING, serdes.LONG).build()
    store.open(folder, StoreContext("app", folder, TaskId(0, 0), Partition("c", number), memory))
    return store


def free_filters(memory: RocksMemory) -> int:
    """How many a store could still have."""
    taken = 0
    while memory.take_filter():
        taken += 1
    memory.give_back(taken)
    return taken


def test_clients_of_one_process_share_caches_of_one_size() -> None:
    one, two, other = StoreMemory(), StoreMemory(), StoreMemory(block_cache_bytes=5 * MIB)
    assert rocks_memory(one) is rocks_memory(two)
    assert rocks_memory(one) is not rocks_memory(other)
    assert one.native is two.native


def test_filters_are_given_out_by_the_budget_and_given_back(tmp_path: Path) -> None:
    memory = StoreMemory(write_buffer_bytes=BUFFERS)
    native = rocks_memory(memory)
    assert free_filters(native) == FILTERS
    stores = [opened(tmp_path, number, memory) for number in range(5)]
    assert free_filters(native) == 0
    stores[0].wipe()
    assert free_filters(native) == 0
    for store in stores:
        store.close()
    assert free_filters(native) == FILTERS


def test_a_store_that_cannot_be_opened_keeps_no_filter(tmp_path: Path) -> None:
    memory = StoreMemory(write_buffer_bytes=BUFFERS)
    (tmp_path / "rocksdb").mkdir()
    (tmp_path / "rocksdb" / "s0").write_text("a file")
    with pytest.raises(Exception, match="s0"):
        opened(tmp_path, 0, memory)
    first = opened(tmp_path, 1, memory)
    with pytest.raises(Exception, match="s1"):  # open already
        opened(tmp_path, 1, memory)
    first.close()
    assert free_filters(rocks_memory(memory)) == FILTERS


def test_the_configuration_gives_the_sizes() -> None:
    settings = {
        "application.id": "app",
        "bootstrap.servers": "b:1",
        "rocksdb.block.cache.bytes": 3 * MIB,
        "rocksdb.write.buffer.bytes": 2 * MIB,
    }
    config = StreamsConfig({**settings, "statestore.cache.max.bytes": 0, "statestore.read.cache.max.bytes": 7})
    memory = StoreMemory.configured(config.integer)
    assert (memory.block_cache_bytes, memory.write_buffer_bytes) == (3 * MIB, 2 * MIB)
    assert (memory.cache.limit, memory.read_cache.limit) == (0, 7)
    with pytest.raises(StreamsConfigError, match=r"rocksdb\.block\.cache\.bytes"):
        StreamsConfig({**settings, "rocksdb.block.cache.bytes": 1000})
