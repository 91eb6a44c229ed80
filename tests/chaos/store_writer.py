"""A process that commits to two stores for as long as it lives; `test_store_kill.py` kills it. Usage: `python -m
tests.chaos.store_writer FOLDER`.

Commit n puts n under `KEYS` keys of each store, with n as the next offset of input and changelog, and deletes what only commit n - 1
had. It says `committed n` when the store's `commit` has returned: from then on, n may not be lost."""

from __future__ import annotations

import sys
from pathlib import Path

from runtime import serdes
from runtime.ids import NextOffset, Partition, TaskId
from runtime.record import ValueAndTimestamp
from runtime.stores import StoreContext, StoreMemory, Stores
from runtime.stores.key_value import StagedKeyValueStore
from runtime.stores.window import StagedWindowStore

KEYS = 60
MINUTE = 60_000
SIZE = MINUTE
RETENTION = 10 * MINUTE
INPUT = Partition("input", 0)
COUNTS = Partition("app-counts-changelog", 0)
WINDOWS = Partition("app-windows-changelog", 0)


def open_stores(folder: Path) -> tuple[StagedKeyValueStore, StagedWindowStore]:
    """Both stores; opening them is also the check that their files can be read."""
    memory = StoreMemory()
    counts = Stores.timestamped_key_value_store_builder(Stores.persistent_key_value_store("counts"), serdes.STRING, serdes.LONG).build()
    supplier = Stores.persistent_window_store("windows", RETENTION, SIZE)
    windows = Stores.timestamped_window_store_builder(supplier, serdes.STRING, serdes.LONG).build()
    counts.open(folder, StoreContext("app", folder, TaskId(0, 0), COUNTS, memory))
    windows.open(folder, StoreContext("app", folder, TaskId(0, 0), WINDOWS, memory))
    return counts, windows


def window_of(number: int) -> int:
    """The start of the window that commit `number` writes to: a new segment every few commits, so that segments come and go."""
    return number * MINUTE


def main(folder: Path) -> None:
    counts, windows = open_stores(folder)
    number = min(counts.committed_offset(INPUT) or 0, windows.committed_offset(INPUT) or 0)  # killed between the two: again
    while True:
        number += 1
        for n in range(KEYS):
            key = f"key-{n}".encode()
            counts.update(key, None, counts.entry(key), number, number, None)
            windows.put(f"key-{n}", timed(number), window_of(number))
        counts.put(f"only-{number}", timed(number))
        counts.put(f"only-{number - 1}", None)
        for store, changelog in ((counts, COUNTS), (windows, WINDOWS)):
            list(store.changelog_records())
            store.set_meta("number", str(number).encode())
            store.commit({INPUT: NextOffset(number), changelog: NextOffset(number)})
        if number % 7 == 0:
            counts.flush()
            windows.flush()
        print(f"committed {number}", flush=True)


def timed(number: int) -> object:
    """A value with its time."""
    return ValueAndTimestamp(number, number)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
