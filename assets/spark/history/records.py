"""Records of history as columns: between Spark's Arrow batches and the engine, and from the engine into Parquet files.

    rows of a stage     slot, partition, place, o1, o2, o3 · offset, timestamp, key, value, headers
    rows of a task      partition, place · offset, timestamp, key, value, headers

`place` is the number of the topic among those that the stage reads, -1 for the row that begins a task, which has one even without
records. `o1`, `o2`, `o3` order the records of a partition (docs/history.md); Spark sorts by them, and a task gets its rows without them.
`offset` is null where the order is all there is.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.assets.spark.history.errors import HistoryError
from penstock.assets.spark.seeds.partitioner import partitions_of
from penstock.runtime.input.columns import RawColumns
from penstock.runtime.model.ids import TopicPartition
from penstock.runtime.model.record import Headers
from penstock.runtime.snapshots.places import Place

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_RECORD = [("timestamp", pa.int64()), ("key", pa.binary()), ("value", pa.binary()), ("headers", HEADERS)]
ORDER = ("o1", "o2", "o3")
ROWS = pa.schema(
    [
        ("slot", pa.int32()),
        ("partition", pa.int32()),
        ("place", pa.int32()),
        *[(name, pa.int64()) for name in ORDER],
        ("offset", pa.int64()),
        *_RECORD,
    ]
)
BEGIN = -1
"""`place` of the row that begins a task."""
REPARTITIONED = pa.schema([("partition", pa.int32()), *[(name, pa.int64()) for name in ORDER], *_RECORD])
_UTC_MS = pa.timestamp("ms", tz="UTC")
OUTPUTS = pa.schema([("partition", pa.int32()), ("task", pa.string()), ("sequence", pa.int64()), ("timestamp", _UTC_MS), *_RECORD[1:]])
REJECTED = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", _UTC_MS),
        *_RECORD[1:],
        ("reason", pa.string()),
        ("error_type", pa.string()),
        ("error", pa.string()),
    ]
)
_BLOCK_ROWS = 20_000
_BLOCK_BYTES = 16 * 1024 * 1024
_PIECE = 8 * 1024 * 1024


def raw_columns(topic: str, rows: pa.RecordBatch, partition: int, last: int | None) -> RawColumns:
    """Return a run of records. `last`: the offset before this run, None for the first one. Rows without an offset are numbered.

    Raises HistoryError for a record without a timestamp, and for an offset that occurs twice.
    """
    if nulls := rows.column("timestamp").null_count:
        raise HistoryError(f"input of topic {topic}: {nulls} records of partition {partition} have no timestamp")
    begin = 0 if last is None else last + 1
    offsets: Sequence[int] = range(begin, begin + rows.num_rows)
    if not rows.column("offset").null_count:
        given = np.asarray(rows.column("offset"))
        steps = np.diff(given, prepend=-1 if last is None else last)
        if (steps <= 0).any():
            twice = int(given[np.flatnonzero(steps <= 0)[0]])
            raise HistoryError(f"input of topic {topic}: partition {partition} has more than one record at offset {twice}")
        first = int(given[0])
        offsets = range(first, first + len(given)) if given[-1] - first == len(given) - 1 else given.tolist()
    return RawColumns(
        topic,
        partition,
        offsets,
        rows.column("key").to_pylist(),
        rows.column("value").to_pylist(),
        rows.column("timestamp").to_pylist(),
        _headers(rows.column("headers"), topic, partition),
    )


def _headers(column: pa.Array, topic: str, partition: int) -> list[Headers | None] | None:
    if not len(column.flatten()):
        return None
    if pc.any(pc.is_null(pc.struct_field(column.flatten(), "key"))).as_py():
        raise HistoryError(f"input of topic {topic}: a record of partition {partition} has a header without a key")
    return [[(each["key"], each["value"]) for each in row] if row else None for row in column.to_pylist()]


Begins = Mapping[TopicPartition, int]
"""Offset of the first record of each partition, where records without offsets do not begin with 0: those of a task with a state."""


class TaskInput:
    """Rows of one task, ordered by place, as a source per topic.

    The engine needs all topics at the same time to merge them by time, and the rows come topic by topic. So all topics but the last one
    are put on the local disk first, as they come.
    """

    def __init__(self, topics: Sequence[str], batches: Iterable[pa.RecordBatch], folder: Path) -> None:
        """Reads up to the last topic. Raises HistoryError if the rows of a task do not begin as they should."""
        self._topics = topics
        self._slices = _slices(batches)
        first = next(self._slices, None)
        if first is None or first[0] != BEGIN:
            raise HistoryError("the rows of a task do not begin with its first row: Spark's shuffle has put tasks together")
        self.partition = int(first[1].column("partition")[0].as_py())
        self._spools = {place: _Spool(folder / f"{place}.arrow") for place in range(len(topics) - 1)}
        self._waiting: pa.RecordBatch | None = None
        for place, rows in self._slices:
            if place not in self._spools:
                self._waiting = rows
                break
            self._spools[place].add(rows)

    def sources(self, begins: Begins) -> dict[TopicPartition, Iterator[RawColumns]]:
        """Return the records of each topic, each to be read once."""
        found = {self._at(place): _numbered(self._at(place), spool.rows(), begins) for place, spool in self._spools.items()}
        if self._topics:
            last = self._at(len(self._topics) - 1)
            found[last] = _numbered(last, self._of_last(), begins)
        return found

    def _at(self, place: int) -> TopicPartition:
        return TopicPartition(self._topics[place], self.partition)

    def _of_last(self) -> Iterator[pa.RecordBatch]:
        if self._waiting is not None:
            yield self._waiting
        for _, rows in self._slices:
            yield rows


class PartitionInput:
    """Rows of one task that reads one topic, and whose rows Spark reads in their order (`Input.in_order`)."""

    def __init__(self, topic: str, batches: Iterable[pa.RecordBatch]) -> None:
        """`batches` has rows. Reads the first of them."""
        self._topic = topic
        self._batches = (batch for batch in batches if batch.num_rows)
        self._first = next(self._batches)
        self.partition = int(self._first.column("partition")[0].as_py())

    def sources(self, begins: Begins) -> dict[TopicPartition, Iterator[RawColumns]]:
        """Return the records, to be read once. It raises HistoryError if they are not those of one partition."""
        at = TopicPartition(self._topic, self.partition)
        return {at: _numbered(at, self._of_one_partition(), begins)}

    def _of_one_partition(self) -> Iterator[pa.RecordBatch]:
        for batch in chain([self._first], self._batches):
            if (np.asarray(batch.column("partition")) != self.partition).any():
                raise HistoryError(f"Spark has read partition {self.partition} of topic {self._topic} together with another")
            yield batch


class CircleInput:
    """Rows of all tasks of a circle, ordered by partition and place, as a source per topic and partition. They are put on the local disk
    first: the tasks need all of them at the same time."""

    def __init__(self, topics: Sequence[str], batches: Iterable[pa.RecordBatch], folder: Path) -> None:
        """Reads all rows."""
        self._spools: dict[TopicPartition, _Spool] = {}
        for batch in batches:
            for number, of_partition in runs_by(batch, "partition"):
                for place, rows in runs_by(of_partition, "place"):
                    if place != BEGIN:
                        at = TopicPartition(topics[place], number)
                        self._spools.setdefault(at, _Spool(folder / f"{place}-{number}.arrow")).add(rows)

    def sources(self, begins: Begins) -> dict[TopicPartition, Iterator[RawColumns]]:
        """Return the records of each partition that has some, each to be read once."""
        return {at: _numbered(at, spool.rows(), begins) for at, spool in self._spools.items()}


def _numbered(at: TopicPartition, batches: Iterable[pa.RecordBatch], begins: Begins) -> Iterator[RawColumns]:
    last = begins[at] - 1 if at in begins else None
    for rows in batches:
        run = raw_columns(at.topic, rows, at.partition, last)
        last = run.offsets[-1]
        yield run


def _slices(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield consecutive rows of one place."""
    return (found for batch in batches for found in runs_by(batch, "place"))


def runs_by(batch: pa.RecordBatch, column: str) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Split a batch where a column of integers changes; yield its value and the rows."""
    values = np.asarray(batch.column(column))
    bounds = [0, *(np.flatnonzero(values[1:] != values[:-1]) + 1).tolist(), len(values)]
    for start, end in pairwise(bounds):
        if end > start:
            yield int(values[start]), batch.slice(start, end - start)


class _Spool:
    """Batches on the local disk, to be read again once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] | None = None
        self._writer: pa.RecordBatchStreamWriter | None = None

    def add(self, rows: pa.RecordBatch) -> None:
        if self._writer is None:
            self._file = self._path.open("wb")
            self._writer = pa.ipc.new_stream(self._file, rows.schema)
        self._writer.write_batch(rows)

    def rows(self) -> Iterator[pa.RecordBatch]:
        if self._writer is None or self._file is None:
            return
        self._writer.close()
        self._file.close()
        with self._path.open("rb") as file, pa.ipc.open_stream(file) as reader:
            yield from reader
        self._path.unlink()


def header_array(headers: Sequence[Headers | None] | None, count: int) -> pa.Array:
    """Return a column of headers."""
    if headers is None:
        return pa.nulls(count, HEADERS)
    return pa.array([None if not row else [{"key": key, "value": value} for key, value in row] for row in headers], HEADERS)


class ParquetPart:
    """A Parquet file of one task, written in blocks on the local disk and moved to its place when it is complete."""

    def __init__(self, local: Path, schema: pa.Schema) -> None:
        self.rows = 0
        self._local = local
        self._schema = schema
        self._writer: pq.ParquetWriter | None = None

    def write(self, columns: Sequence[pa.Array]) -> None:
        """Append a block."""
        if self._writer is None:
            self._local.parent.mkdir(parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(self._local, self._schema, compression="zstd")
        self._writer.write_batch(pa.RecordBatch.from_arrays(list(columns), schema=self._schema))
        self.rows += len(columns[0])

    def finish(self, target: Place) -> int:
        """Move the file to its place. Return its size in bytes."""
        assert self._writer is not None
        self._writer.close()
        size = self._local.stat().st_size
        with self._local.open("rb") as file:
            target.write(iter(lambda: file.read(_PIECE), b""))
        os.unlink(self._local)
        return size


class TopicWriter:
    """Outputs of one task to one topic, in the order of the task."""

    def __init__(self, local: Path, topic: str, task: str, producer: int, partitions: int | None, *, repartitions: bool) -> None:
        """`partitions`: number of the topic's partitions, if known. `repartitions`: a later stage reads them."""
        self.topic = topic
        self.part = ParquetPart(local, REPARTITIONED if repartitions else OUTPUTS)
        self._task = task
        self._producer = producer
        self._partitions = partitions
        self._repartitions = repartitions
        self._sequence = 0
        self._latest: dict[int, int] = {}
        self._bytes = 0
        self._keys: list[bytes | None] = []
        self._values: list[bytes | None] = []
        self._times: list[int] = []
        self._headers: list[Headers | None] = []
        self._chosen: list[int | None] = []

    def add(self, key: bytes | None, value: bytes | None, timestamp: int, headers: Headers | None, partition: int | None) -> None:
        """Append an output. `partition` None: by the key's hash."""
        self._keys.append(key)
        self._values.append(value)
        self._times.append(timestamp)
        self._headers.append(headers)
        self._chosen.append(partition)
        self._bytes += len(key or b"") + len(value or b"")
        if len(self._keys) >= _BLOCK_ROWS or self._bytes >= _BLOCK_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what is held in memory."""
        count = len(self._keys)
        if not count:
            return
        partitions, sequence = self._assigned(), range(self._sequence, self._sequence + count)
        headers = header_array(self._headers if any(self._headers) else None, count)
        record = [pa.array(self._keys, pa.binary()), pa.array(self._values, pa.binary()), headers]
        if self._repartitions:
            numbers = np.asarray(partitions, np.int32)
            order = [self._running(numbers), np.full(count, self._producer), np.arange(sequence.start, sequence.stop)]
            times = pa.array(self._times, pa.int64())
            self.part.write([pa.array(numbers, pa.int32()), *(pa.array(each, pa.int64()) for each in order), times, *record])
        else:
            times = pa.array(self._times, pa.int64()).cast(_UTC_MS)
            self.part.write(
                [pa.array(partitions, pa.int32()), pa.array([self._task] * count), pa.array(sequence, pa.int64()), times, *record]
            )
        self._sequence += count
        self._bytes = 0
        for column in (self._keys, self._values, self._times, self._headers, self._chosen):
            column.clear()

    def _assigned(self) -> list[int | None]:
        """Return the partition of each output; None if it cannot be known. A null key has no partition of its own in the stream either; for
        a repartition topic they take turns."""
        if self._partitions is None:
            return self._chosen
        found = list(self._chosen)
        hashed = [row for row, (chosen, key) in enumerate(zip(found, self._keys, strict=True)) if chosen is None and key is not None]
        if hashed:
            keys = [self._keys[row] or b"" for row in hashed]
            for row, number in zip(hashed, partitions_of(keys, self._partitions).tolist(), strict=True):
                found[row] = number
        if self._repartitions:
            start = self._producer + self._sequence
            found = [(start + row) % self._partitions if number is None else number for row, number in enumerate(found)]
        return found

    def _running(self, partitions: np.ndarray) -> np.ndarray:
        """Return the largest timestamp so far of each output's partition."""
        times, found = np.asarray(self._times, np.int64), np.empty(len(partitions), np.int64)
        for number in np.unique(partitions).tolist():
            rows = partitions == number
            running = np.maximum(np.maximum.accumulate(times[rows]), self._latest.get(number, -1))
            found[rows] = running
            self._latest[number] = int(running[-1])
        return found
