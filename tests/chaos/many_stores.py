"""`python -m tests.chaos.many_stores FOLDER`: many stores in one process, each written to; prints what that took, as JSON."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from pathlib import Path

import psutil

from penstock import serdes
from penstock.runtime.model.ids import NextOffset, TaskId, TopicPartition
from penstock.runtime.stores.base import EngineStore, StoreContext
from penstock.runtime.stores.budget import MIB, StoreMemory
from penstock.runtime.stores.suppliers import Stores

BLOCK_CACHE, WRITE_BUFFERS = 8 * MIB, 4 * MIB
ROUNDS, ENTRIES, VALUE = 3, 100, bytes(200)
EACH = 4
"""All stores are written to in the first round, each fourth in those after it."""
STORES = 1_000
BUFFERS_AT_MOST = WRITE_BUFFERS + STORES * 2 * ENTRIES * len(VALUE)
"""A store flushes when it is written to and the budget is used up; so each may hold its last batch beyond the budget."""
SETTLED_SECONDS = 60
SOFT_LIMIT = 1024
"""Of open files: what many systems begin with, and far from enough."""


def main(folder: Path) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (SOFT_LIMIT, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    process = psutil.Process()
    memory = StoreMemory(block_cache_bytes=BLOCK_CACHE, write_buffer_bytes=WRITE_BUFFERS)
    before = process.memory_info().rss
    stores = [_opened(folder / f"0_{number}", TaskId(0, number), memory) for number in range(STORES)]
    opened = process.memory_info().rss
    for turn in range(ROUNDS):
        entries = [(b"%d-%d" % (turn, number), VALUE, 1) for number in range(ENTRIES)]
        for number, store in list(enumerate(stores))[:: EACH if turn else 1]:
            store.restore(entries, {TopicPartition("changelog", number): NextOffset(turn)})
    assert memory.native is not None
    deadline = time.monotonic() + SETTLED_SECONDS
    while memory.native.write_buffer_usage() > BUFFERS_AT_MOST and time.monotonic() < deadline:
        time.sleep(0.1)  # what was to be flushed is on its way
    found = {
        "opened": opened - before,
        "grown": process.memory_info().rss - before,
        "buffers": memory.native.write_buffer_usage(),
        "threads": process.num_threads(),
        "files": process.num_fds(),
    }
    print(json.dumps(found), flush=True)
    os._exit(0)  # closing takes seconds, and is not what is measured


def _opened(folder: Path, task: TaskId, memory: StoreMemory) -> EngineStore:
    supplier = Stores.persistent_timestamped_key_value_store("counts")
    store = Stores.timestamped_key_value_store_builder(supplier, serdes.STRING, serdes.BYTES).build()
    store.open(folder, StoreContext("app", folder, task, TopicPartition("changelog", task.partition), memory))
    return store


if __name__ == "__main__":
    main(Path(sys.argv[1]))
