"""Input of a history run: a table or the topic itself, up to the offsets from which the stream goes on.

A table has the topic's records, a row each: `key`, `value` (bytes as on the topic), `timestamp`, and if they are known `partition`,
`offset` and `headers`.

    with offsets        rows below the end of the run; the stream goes on after the last one, so nothing is lost or counted twice
    without offsets     rows before a time; the stream goes on at the topic's first record of that time, as seeds do (docs/seeding.md)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, LongType, NullType, ShortType, StructField, StructType

from penstock.assets.spark.changelog.kafka_options import connector_options
from penstock.assets.spark.history.errors import HistoryError, spark_errors
from penstock.assets.spark.history.records import HEADERS
from penstock.assets.spark.seeds.job import milliseconds
from penstock.assets.spark.seeds.partitioner import partitions_of
from penstock.assets.spark.seeds.plan import SeedApplication
from penstock.assets.spark.seeds.rows import written_bytes
from penstock.orchestration.declarations.backfills import ALL, DELTA, SERIALIZED, BackfillInput
from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.serdes.serde import Serde

Offsets = Mapping[str, Mapping[int, int]]
"""Next offsets by topic and partition."""

_READ = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
    ]
)
_COLUMNS = tuple(_READ.names)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Where the run begins and ends: next offsets of every partition of every input. `until_ms`: the time that determined the ends; None if
    it was none. `starts` are those of the topics, unless the run `continues` another one, which has processed what is before `starts`, in
    tables without offsets what is before `since_ms`; `topic_starts` are those of the topics then."""

    starts: Offsets
    ends: Offsets
    until_ms: int | None = None
    since_ms: int | None = None
    continues: bool = False
    topic_starts: Offsets | None = None

    def begins_at(self, topic: str) -> Mapping[int, int]:
        """Return where a topic begins."""
        return (self.starts if self.topic_starts is None else self.topic_starts)[topic]


@dataclass(frozen=True, slots=True)
class Input:
    """Records of one topic, with the columns of `_READ`. `ordered`: by offset; else by time. `next_offsets`: where the stream goes on.
    `in_order`: each Spark partition of `rows` has the records of one partition of the topic, by offset, so that they need not be sorted."""

    topic: str
    rows: DataFrame
    ordered: bool
    next_offsets: Mapping[int, int]
    notes: tuple[str, ...] = ()
    in_order: bool = False


def load_table(spark: SparkSession, topic: str, given: BackfillInput) -> DataFrame:
    """Return the rows of a table as it is now, whatever is written to it later: of Parquet the files that are there, of Delta the newest
    version (else each action would read the newest one of its own). Raises HistoryError."""
    with spark_errors(f"input of topic {topic}"):
        reader = spark.read.format(given.format)
        if given.format == DELTA:
            named = given.location.replace("`", "``")
            newest = spark.sql(f"DESCRIBE HISTORY delta.`{named}` LIMIT 1").select("version").collect()
            reader = reader.option("versionAsOf", newest[0].version)
        return reader.load(given.location)


def read_input(
    spark: SparkSession,
    topic: str,
    given: BackfillInput,
    table: DataFrame | None,
    partitions: int,
    bounds: Bounds,
    application: SeedApplication,
    topics: Sequence[str],
) -> Input:
    """Return the input of a topic: of a `table`, or of the topic itself. `topics`: all that have an input. Raises HistoryError for a table
    that does not fit."""
    if table is None:
        return _of_topic(spark, topic, bounds, application.config)
    with spark_errors(f"input of topic {topic}"):
        frame = _mapped(topic, table, given.columns, application, tuple(topics)) if given.columns else table
        _check_columns(topic, frame)
        return _by_offset(topic, frame, partitions, bounds) if "offset" in frame.columns else _by_time(topic, frame, partitions, bounds)


def _of_topic(spark: SparkSession, topic: str, bounds: Bounds, config: Mapping[str, object]) -> Input:
    starts, ends = bounds.starts[topic], bounds.ends[topic]
    spans = {number: (starts[number], end) for number, end in sorted(ends.items()) if starts[number] < end}
    notes = tuple(
        f"{topic}-{number} begins at offset {start}: earlier records were deleted, and are not part of the history"
        for number, start in sorted(starts.items())
        if start and not bounds.continues
    )
    if not spans:
        return Input(topic, spark.createDataFrame([], from_arrow_schema(_READ)), True, ends, notes)

    def offsets(side: int) -> str:
        return json.dumps({topic: {str(number): span[side] for number, span in spans.items()}})

    records = (
        spark.read.format("kafka")
        .options(**connector_options(StreamsConfig(config)))
        .option("assign", json.dumps({topic: list(spans)}))
        .option("startingOffsets", offsets(0))
        .option("endingOffsets", offsets(1))
        .option("includeHeaders", "true")
        .option("failOnDataLoss", "true")
        .load()
    )
    time = F.unix_millis("timestamp").alias("timestamp")
    rows = records.select("partition", "offset", time, "key", "value", never_null(F.col("headers")).alias("headers"))
    return Input(topic, rows, True, ends, notes, in_order=True)  # the connector reads each span in one task


def never_null(headers: Column) -> Column:
    """Return a column of headers with an empty array for null: Spark writes batches for Python in a time that is quadratic in the number of
    arrays that are null, ten times that of all other columns (Arrow's `ListVector.setNull` goes back to the last one that is not)."""
    kind = from_arrow_schema(_READ)["headers"].dataType
    return F.coalesce(headers.cast(kind), F.array().cast(kind))


# --- tables --------------------------------------------------------------------------------------------------------------------------


def _mapped(
    topic: str, frame: DataFrame, columns: Mapping[str, Sequence[str]], application: SeedApplication, topics: Sequence[str]
) -> DataFrame:
    """Return a table with the columns of `_READ` that it has, of the columns that are declared for them. Keys and values that are not bytes
    are written by the source's serdes. Raises HistoryError for columns that the table does not have."""
    named = {name for given in columns.values() for name in given} - {ALL}
    if missing := sorted(named - set(frame.columns)):
        raise HistoryError(
            f"the input of topic {topic} does not fit: it has no column {', '.join(missing)}; there are {', '.join(frame.columns)}"
        )
    itself = {name for name in _COLUMNS if name in frame.columns and name not in columns}
    others = [name for name in frame.columns if name not in named | itself]
    selected = []
    for name in _COLUMNS:
        given = columns.get(name, [name] if name in frame.columns else [])
        given = [each for one in given for each in (others if one == ALL else [one])]
        if len(given) == 1 and columns.get(name) != [ALL]:
            selected.append(F.col(f"`{given[0]}`").alias(name))
        elif given:
            selected.append(F.struct(*[F.col(f"`{each}`") for each in given]).alias(name))
    found = frame.select(*selected)
    typed = tuple(
        name
        for name in SERIALIZED
        if name in columns and name in found.columns and not isinstance(found.schema[name].dataType, BinaryType | NullType)
    )
    if not typed:
        return found
    schema = StructType([StructField(each.name, BinaryType() if each.name in typed else each.dataType) for each in found.schema.fields])
    return found.mapInArrow(_serializing(application, topic, tuple(topics), typed), schema)


def _serializing(
    application: SeedApplication, topic: str, topics: Sequence[str], typed: Sequence[str]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function that writes keys and values with the serdes of the topic's source. It raises HistoryError for rows that they cannot
    write."""

    def serialized(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        serdes = _serdes_of(application, topic, topics)
        for batch in batches:
            bad: dict[int, str] = {}
            columns = {name: batch.column(name) for name in batch.schema.names}
            for name in typed:
                columns[name] = pa.array(written_bytes(columns[name], serdes[name], topic, name, bad), pa.binary())
            if bad:
                first = next(iter(sorted(bad.items())))[1]
                raise HistoryError(
                    f"input of topic {topic}: {len(bad)} rows of a batch cannot be written by its serdes; the first: {first}"
                )
            yield pa.RecordBatch.from_pydict(columns)

    return serialized


def _serdes_of(application: SeedApplication, topic: str, topics: Sequence[str]) -> dict[str, Serde]:
    """Return the serdes of the source that reads a topic, for keys and values."""
    topology = application.topology().matched(tuple(topics))
    sources = [source for part in topology.sub_topologies() for source in part.sources if topic in source.topics]
    source = next(iter([*sources, *(entry.source for entry in topology.global_stores() if entry.topic == topic)]))
    assert source.key_serde is not None and source.value_serde is not None  # a resolved topology has them
    return {"key": source.key_serde, "value": source.value_serde}


def _check_columns(topic: str, frame: DataFrame) -> None:
    problems = [f"it has no column {name!r}" for name in ("key", "value", "timestamp") if name not in frame.columns]
    if others := [repr(name) for name in frame.columns if name not in (*_COLUMNS, *_OF_OUTPUTS)]:
        problems.append(
            f"column {', '.join(others)} is none of {', '.join(_COLUMNS)} (with --columns {topic}:key=…,value=…,timestamp=…, others are "
            "not read)"
        )
    for name in ("key", "value"):
        if name in frame.columns and not isinstance(kind := frame.schema[name].dataType, BinaryType | NullType):
            problems.append(
                f"column {name!r} is {kind.simpleString()}: expected are the bytes of the topic, as its serde writes them "
                f"(--columns {topic}:{name}={name} lets the serde write them)"
            )
    for name in ("partition", "offset"):
        if name in frame.columns and not isinstance(kind := frame.schema[name].dataType, ShortType | IntegerType | LongType):
            problems.append(f"column {name!r} is {kind.simpleString()}, not a whole number")
    if "timestamp" in frame.columns and milliseconds(frame, "timestamp") is None:
        problems.append(f"column 'timestamp' is {frame.schema['timestamp'].dataType.simpleString()}, not a timestamp or milliseconds")
    if "headers" in frame.columns and not _are_headers(frame.schema["headers"].dataType):
        problems.append("column 'headers' is not an array of (key string, value binary)")
    if "offset" in frame.columns and "partition" not in frame.columns:
        problems.append("it has offsets, but no column 'partition'")
    if problems:
        raise HistoryError(f"the input of topic {topic} does not fit: {'; '.join(problems)}")


_OF_OUTPUTS = ("task", "sequence")
"""Ignored columns of an output of another run."""


def _are_headers(kind: DataType) -> bool:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = [(field.name, field.dataType.simpleString()) for field in kind.elementType.fields]
    return fields == [("key", "string"), ("value", "binary")]


def _by_offset(topic: str, frame: DataFrame, partitions: int, bounds: Bounds) -> Input:
    rows = _checked(topic, frame, partitions, has_offset=True)
    rows = rows.where(F.col("offset") < _by_partition(bounds.ends[topic]))
    if bounds.continues:
        rows = rows.where(F.col("offset") >= _by_partition(bounds.starts[topic]))
    found = {row.partition: row.last + 1 for row in rows.groupBy("partition").agg(F.max("offset").alias("last")).collect()}
    starts = bounds.begins_at(topic)
    next_offsets = {number: found.get(number, bounds.starts[topic][number]) for number in range(partitions)}
    notes = tuple(
        f"the table ends before offset {offset} of {topic}-{number}, which begins at {starts[number]}: records between them were deleted, "
        "and neither the history nor the stream has them"
        for number, offset in sorted(next_offsets.items())
        if offset < starts[number]
    )
    return Input(topic, rows, True, next_offsets, notes)


def _by_partition(offsets: Mapping[int, int]) -> Column:
    """Return the offset of each row's partition."""
    column = F.array(*[F.lit(offsets[number]).cast("long") for number in sorted(offsets)])
    return F.element_at(column, F.col("partition").cast("int") + 1)


def rows_before_end(frame: DataFrame, topic: str, given: BackfillInput, bounds: Bounds) -> int:
    """Return the number of a table's rows that a run from the first record on reads. Only the columns that decide it are read."""

    def own(name: str) -> str:
        return given.columns.get(name, [name])[0]

    with spark_errors(f"input of topic {topic}"):
        if own("offset") in frame.columns:
            rows = frame.select(F.col(f"`{own('partition')}`").alias("partition"), F.col(f"`{own('offset')}`").alias("offset"))
            return rows.where(F.col("offset") < _by_partition(bounds.ends[topic])).count()
        time = milliseconds(frame, own("timestamp"))
        assert time is not None and bounds.until_ms is not None  # as the day before was read
        return frame.where(time < bounds.until_ms).count()


def _by_time(topic: str, frame: DataFrame, partitions: int, bounds: Bounds) -> Input:
    if bounds.until_ms is None:
        raise HistoryError(
            f"the input of topic {topic} has no column 'offset', so a time alone says where the stream goes on: --until 2026-01-31T00:00:00"
        )
    rows = _checked(topic, frame, partitions, has_offset=False).where(F.col("timestamp") < bounds.until_ms)
    if bounds.since_ms is not None:
        rows = rows.where(F.col("timestamp") >= bounds.since_ms)
    starts, ends = bounds.begins_at(topic), bounds.ends[topic]
    notes = tuple(
        f"{topic}-{number} begins at offset {start}, after the end of the history: if records between them were deleted, neither the "
        "history nor the stream has them"
        for number, start in sorted(starts.items())
        if 0 < start == ends[number]
    )
    return Input(topic, rows, False, ends, notes)


def _checked(topic: str, frame: DataFrame, partitions: int, *, has_offset: bool) -> DataFrame:
    """Return the columns of `_READ`. Rows that do not fit end the run."""

    def refuse(condition: Column, value: Column, text: str, after: str = "") -> Column:
        shown = F.coalesce(value.cast("string"), F.lit("null"))
        message = F.concat(F.lit(f"input of topic {topic}: {text} "), shown, F.lit(after))
        return F.when(condition, F.raise_error(message).cast("long")).otherwise(value)

    time = milliseconds(frame, "timestamp")
    assert time is not None  # checked before
    columns = [refuse(time.isNull(), time, "a record has the timestamp").alias("timestamp")]
    columns += [F.col(name).cast("binary").alias(name) for name in ("key", "value")]
    headers = F.col("headers") if "headers" in frame.columns else F.lit(None)
    columns.append(never_null(headers).alias("headers"))
    offset = F.col("offset").cast("long")
    if has_offset:
        offset = refuse(offset.isNull() | (offset < 0), offset, "a record has the offset")
    columns.append((offset if has_offset else F.lit(None).cast("long")).alias("offset"))
    if "partition" not in frame.columns:
        return frame.select(*columns).mapInArrow(_partitioning(topic, partitions), from_arrow_schema(_READ))
    number = F.col("partition").cast("long")
    beyond = number.isNull() | (number < 0) | (number >= partitions)
    last = f"; the topic has 0 to {partitions - 1}" if partitions > 1 else "; the topic has 0 alone"
    number = refuse(beyond, number, "a record has the partition", last).cast("int").alias("partition")
    return frame.select(number, *columns).select(*_COLUMNS)


def _partitioning(topic: str, partitions: int) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function that adds the partition to which Kafka's default partitioner sends each key. It raises HistoryError for a null
    key."""

    def partitioned(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            keys: Sequence[bytes | None] = batch.column("key").to_pylist()
            known = [key for key in keys if key is not None]
            if len(known) < len(keys):
                raise HistoryError(
                    f"input of topic {topic}: {len(keys) - len(known)} records have no key, and the table has no column 'partition': "
                    "only the topic knows where they are"
                )
            numbers = partitions_of(known, partitions) if known else np.zeros(0, np.int32)
            columns = {"partition": pa.array(numbers, pa.int32()), **{name: batch.column(name) for name in batch.schema.names}}
            yield pa.RecordBatch.from_arrays([columns[name].cast(_READ.field(name).type) for name in _COLUMNS], schema=_READ)

    return partitioned
