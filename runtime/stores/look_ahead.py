"""Look-ahead: another thread reads the committed values that the next records need, while the records before them are processed.

A key that is in no cache costs a read from RocksDB, which takes longer than the rest of the work on its record, and `Rdict.get` holds the
GIL meanwhile. The read of many keys at once does not, and costs a fifth less per key.

So when a task begins a batch, it names the keys of the next batch. A thread reads those that are not in memory; `found` contains them when
their records are processed. A key that is being read or was read ahead is in no other map of the store; it moves from here into memory when
it is first used. So its committed value cannot change in between. A key that was read twice, or that a store knew to be new, can be in
memory too, and be written there: when it is evicted, its value here is dropped, and at a rollback all values are. (To drop all at each
eviction left many keys to be read one by one when the read cache was small.)

Nothing depends on it: keys that are not here are read one by one.
"""

from __future__ import annotations

from collections.abc import Callable, KeysView, Sequence
from concurrent.futures import Future, wait
from enum import Enum, auto
from typing import Final

MOST_BYTES = 2 << 20
"""Approximate size of the values of one read."""
_FIRST_KEYS = 64
_MOST_FOUND = 4_096
_MOST_READS = 4
"""Values of so many reads, and at most `_MOST_FOUND`, wait for their records. Those of records that were dropped before they reached the
store are never used."""


class _Missing(Enum):
    NOT_READ = auto()


NOT_READ: Final = _Missing.NOT_READ
"""Result instead of a value, or of None for an absent key, where the key was not read."""

Read = Callable[[Sequence[bytes]], "Future[list[bytes | None]] | None"]
"""`Backend.begin_get_all`."""


class LookAhead:
    """The values of one store that were read ahead. Used by the store's thread."""

    __slots__ = ("_keys", "_most", "_reading", "found")

    def __init__(self) -> None:
        self.found: dict[bytes, bytes | None] = {}
        """Values that were read; `pop` them."""
        self._keys: Sequence[bytes] = ()
        self._most = _FIRST_KEYS
        self._reading: Future[list[bytes | None]] | None = None

    def begin(self, keys: Sequence[bytes], read: Read) -> None:
        """Start to read keys, after the end of the previous read. Only as many as fit into `MOST_BYTES` by the size of the values so far.
        Raises nothing: a failed read is left to `collect`, and no other begins."""
        if self._reading is not None and self._reading.exception() is not None:
            return
        self.collect()
        if len(self.found) > min(_MOST_FOUND, _MOST_READS * self._most):
            self.found.clear()
        self._keys = keys if len(keys) <= self._most else keys[: self._most]
        self._reading = read(self._keys)

    def collect(self) -> bool:
        """Wait for the read under way and add its values to `found`. Return False if there is none. Raises as a read of one key."""
        reading, self._reading = self._reading, None
        if reading is None:
            return False
        values = reading.result()
        self.found.update(zip(self._keys, values, strict=True))
        size = sum(map(len, filter(None, values)))
        self._most = max(1, min(2 * self._most, MOST_BYTES * len(values) // (size + 1)))
        return True

    def forget_evicted(self, keys: KeysView[bytes]) -> None:
        """Drop the values of keys that leave memory; all values if one of them is being read."""
        if self._reading is not None and not keys.isdisjoint(self._keys):
            self.forget()
        for key in self.found.keys() & keys:
            del self.found[key]

    def forget(self) -> None:
        """Drop all values, and wait for the read under way, because the store must not be closed during it. A read that failed fails again
        when the key is needed."""
        if self._reading is not None:
            wait([self._reading])
            self._reading = None
        self.found.clear()
