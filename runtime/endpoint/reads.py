"""Reads of stores for the endpoint: local partitions, single keys, and rows in pages.

A page of a key-value store ends with the bytes of its last key, and the next one begins behind it, so that writes in between neither repeat
nor hide an unchanged row. Windows, sessions and versioned stores cannot be read from behind a row; their pages count rows.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import dropwhile, islice, takewhile
from typing import cast

import msgspec

from penstock.runtime import serdes
from penstock.runtime.endpoint.answers import Refusal, later
from penstock.runtime.endpoint.forms import key_bytes, row
from penstock.runtime.model.errors import InvalidStateStoreError
from penstock.runtime.model.states import TaskKind
from penstock.runtime.serdes.serde import Serde
from penstock.runtime.topology.catalogue import KnownStore
from penstock.runtime.worker.queries import IsolationLevel, QueryableStoreTypes, StoreQuery, StoreQueryParameters

Row = tuple[object, object]
MOST_ROWS = 1_000
MOST_BYTES = 4 << 20
"""Limit of a page in bytes. (A single value is returned whole, whatever its size.)"""

_TIMED = {
    "key_value": QueryableStoreTypes.timestamped_key_value_store(),
    "window": QueryableStoreTypes.timestamped_window_store(),
}


@dataclass(frozen=True, slots=True)
class Part:
    """Local partition of a store, -1 for a global one. `lag` in records, None if unknown."""

    partition: int
    kind: TaskKind
    lag: int | None

    def shown(self) -> dict[str, object]:
        return {"partition": self.partition, "kind": self.kind.value, "lag": self.lag}


class Page(msgspec.Struct, frozen=True):
    """Start of a page: behind a number of rows of a partition, or behind a key (base64)."""

    partition: int
    skip: int = 0
    behind: str | None = None

    @classmethod
    def read(cls, text: str) -> Page:
        """Raises Refusal (400)."""
        try:
            return msgspec.json.decode(key_bytes(text), type=cls)
        except msgspec.DecodeError as error:
            raise Refusal(
                400, f"page = {text!r} is not a page: give `next` of the answer before as it is, or nothing for the first"
            ) from error

    def text(self) -> str:
        return base64.urlsafe_b64encode(msgspec.json.encode(self)).decode()


@dataclass(frozen=True, slots=True)
class Scan:
    """Requested rows: of a key-value store a range of keys or a prefix; of windows and sessions one key (`key`) or all, in a time range
    (ms, both inclusive)."""

    key: object = None
    from_key: object = None
    to_key: object = None
    prefix: bytes | None = None
    time_from: int = 0
    time_to: int = (1 << 63) - 1
    backward: bool = False


class StoreReads:
    """Reads of one store. They raise Refusal (503) if the store cannot answer now."""

    def __init__(
        self,
        store: KnownStore,
        topic: str,
        stale: bool,
        isolation: IsolationLevel | None,
        read: Callable[[StoreQueryParameters], StoreQuery],
    ) -> None:
        """`topic`: passed to serdes. `isolation`: None for the client's. `read`: `KafkaStreams.store`."""
        assert store.key_serde is not None and store.value_serde is not None
        self._store = store
        self._key: Serde = store.key_serde
        self._value: Serde = store.value_serde
        self._topic = topic
        self._stale = stale
        self._isolation = isolation
        self._read = read

    def _query(self, partition: int) -> StoreQuery:
        store = self._store
        wanted = StoreQueryParameters(store.name, None if partition < 0 else partition, self._stale, isolation_level=self._isolation)
        try:
            return self._read(replace(wanted, store_type=_TIMED[store.kind]) if store.timestamped else wanted)
        except InvalidStateStoreError as error:
            raise self._later(error) from error

    def _later(self, error: InvalidStateStoreError) -> Refusal:
        """Return the refusal of a restoring store. (The error's remedy is for programs; HTTP has another parameter.)"""
        return later(f"{error}; over HTTP that is stale=true" if "enable_stale_stores" in str(error) else str(error))

    def get(self, part: Part, key: object, as_of: int | None) -> object:
        """Return the value of a key, None if absent; for a versioned store as of a time (ms)."""
        query = self._query(part.partition)
        try:
            return query.get(key) if as_of is None else query.get(key, as_of)
        except InvalidStateStoreError as error:
            raise self._later(error) from error

    def window(self, part: Part, key: object, start: int) -> object:
        """Return the value of one window, None if absent."""
        try:
            return self._query(part.partition).fetch(key, start)
        except InvalidStateStoreError as error:
            raise self._later(error) from error

    def page(self, parts: Sequence[Part], scan: Scan, page: Page | None, limit: int) -> tuple[list[msgspec.Raw], Page | None]:
        """Return at most `limit` rows of these parts, one part after the other, and the start of the next page; None after the last."""
        rows: list[msgspec.Raw] = []
        size = 0
        begin = page or Page(parts[0].partition if parts else -1)
        for part in parts:
            if part.partition < begin.partition:
                continue
            at = begin if part.partition == begin.partition else Page(part.partition)
            try:
                for key, value in self._rows(self._query(part.partition), scan, at):
                    if len(rows) >= limit or size >= MOST_BYTES:
                        return rows, at
                    encoded = msgspec.json.encode(row(key, value, self._key, self._value, self._topic))
                    rows.append(msgspec.Raw(encoded))
                    size += len(encoded)
                    at = self._behind(at, key)
            except InvalidStateStoreError as error:
                raise self._later(error) from error
        return rows, None

    def _behind(self, at: Page, key: object) -> Page:
        if self._store.kind != "key_value":
            return Page(at.partition, at.skip + 1)
        return Page(at.partition, behind=base64.b64encode(self._bytes(key)).decode())

    def _bytes(self, key: object) -> bytes:
        return self._key.serializer(self._topic)(key) or b""

    def _rows(self, query: StoreQuery, scan: Scan, page: Page) -> Iterator[Row]:
        match self._store.kind:
            case "key_value":
                return self._key_values(query, scan, page)
            case "versioned":
                found: Iterator[Row] = query.all()
            case "window":
                found = self._windows(query, scan)
            case _:
                found = self._sessions(query, scan)
        return islice(found, page.skip, None)

    def _key_values(self, query: StoreQuery, scan: Scan, page: Page) -> Iterator[Row]:
        """Yield rows behind the last key of the previous page."""
        last = None if page.behind is None else key_bytes(page.behind)
        begin = None if last is None else self._key.deserializer(self._topic)(last)
        if scan.prefix is not None:
            prefix = scan.prefix
            if begin is None:
                return query.prefix_scan(prefix, serdes.BYTES)
            rows: Iterator[Row] = takewhile(lambda found: self._bytes(found[0]).startswith(prefix), query.range(begin, None))
        elif scan.backward:
            rows = query.reverse_range(scan.from_key, scan.to_key if begin is None else begin)
        else:
            rows = query.range(scan.from_key if begin is None else begin, scan.to_key)
        return rows if last is None else dropwhile(lambda found: self._bytes(found[0]) == last, rows)

    def _windows(self, query: StoreQuery, scan: Scan) -> Iterator[Row]:
        if scan.key is None:
            fetch_all = query.backward_fetch_all if scan.backward else query.fetch_all
            return cast(Iterator[Row], fetch_all(scan.time_from, scan.time_to))
        fetch = query.backward_fetch if scan.backward else query.fetch
        return cast(Iterator[Row], fetch(scan.key, scan.key, scan.time_from, scan.time_to))

    def _sessions(self, query: StoreQuery, scan: Scan) -> Iterator[Row]:
        """Yield the sessions that overlap the time range; over all keys, those that end in it."""
        find = query.backward_find_sessions if scan.backward else query.find_sessions
        times = (scan.time_from, scan.time_to)
        return cast(Iterator[Row], find(*times) if scan.key is None else find(scan.key, *times))
