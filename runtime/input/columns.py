"""Raw records by column, as Arrow and Parquet have them, for the queues of a task.

A batch of history arrives as columns and is decoded as columns. Between the two no object per record is made: `Decoder` takes the columns
whole, and a row becomes a record only where one is looked at, for an error or a rejected record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

from penstock.runtime.model.record import Headers

_CREATE_TIME = 1


@dataclass(frozen=True, slots=True)
class ColumnRecord:
    """One row, as a `RawMessage`."""

    columns: RawColumns
    row: int

    def topic(self) -> str:
        return self.columns.topic

    def partition(self) -> int:
        return self.columns.partition

    def offset(self) -> int:
        return self.columns.offsets[self.row]

    def key(self) -> bytes | None:
        return self.columns.keys[self.row]

    def value(self) -> bytes | None:
        return self.columns.values[self.row]

    def timestamp(self) -> tuple[int, int]:
        return _CREATE_TIME, self.columns.timestamps[self.row]

    def headers(self) -> Headers | None:
        return None if self.columns.headers is None else self.columns.headers[self.row]


@dataclass(frozen=True, slots=True)
class RawColumns(Sequence[ColumnRecord]):
    """Consecutive records of one partition. `offsets` rise; `headers` is None if no record has any."""

    topic: str
    partition: int
    offsets: Sequence[int]
    keys: list[bytes | None]
    values: list[bytes | None]
    timestamps: list[int]
    headers: list[Headers | None] | None

    def __len__(self) -> int:
        return len(self.timestamps)

    @overload
    def __getitem__(self, at: int) -> ColumnRecord: ...

    @overload
    def __getitem__(self, at: slice) -> RawColumns: ...

    def __getitem__(self, at: int | slice) -> ColumnRecord | RawColumns:
        if isinstance(at, slice):
            headers = None if self.headers is None else self.headers[at]
            return RawColumns(self.topic, self.partition, self.offsets[at], self.keys[at], self.values[at], self.timestamps[at], headers)
        return ColumnRecord(self, range(len(self))[at])
