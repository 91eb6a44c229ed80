"""Rows of a store as columns of Arrow and of Spark.

The state's files and the changelog are read by two ways that must agree, so both turn bytes into columns here.

    partition      the changelog's partition; -1 for a global store, which holds all of its topic's
    key            by the key's serde
    window_start, window_end          windows and sessions
    sequence       windows of joins, which hold several values of one key and time
    valid_from, valid_to              versions; `valid_to` is null while a version holds
    value          by the value's serde
    timestamp      of the record that set the value, where the store keeps it
    _malformed     null, or what could not be read, as it stands in the store: key, value, and why

A row with bytes that do not fit is there as every other is. The cells that could not be read are null, and `_malformed` has the bytes: so
rows can be counted, put apart and looked at, and none is lost without a word.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_type

from assets.spark.ddl import shape_of_ddl
from assets.spark.schema import shape_of
from assets.spark.serde_formats import (
    AROUND,
    BINARY,
    EARLIEST_MS,
    LATEST_MS,
    Decoded,
    Format,
    format_of,
    json_format,
    milliseconds,
    serde_parts,
)
from assets.spark.shapes import TEXT, Shape, Struct
from runtime.errors import StateDirectoryError
from runtime.stores.base import StoreLayout, StoreSchemas
from runtime.stores.rows import ROW_KINDS, StoreRows

MALFORMED = "_malformed"
MALFORMED_TYPE = T.StructType(
    [T.StructField("key", T.BinaryType()), T.StructField("value", T.BinaryType()), T.StructField("reason", T.StringType())]
)
GLOBAL_PARTITION = -1
"""`partition` of the rows of a global store."""
NO_SCHEMAS = StoreSchemas()
_TIMES = ("window_start", "window_end", "valid_from", "valid_to", "timestamp")
Malformed = Callable[[bytes | None, str], None]
"""Told of a malformed row: its key's bytes, and why."""


def row_columns(layout: StoreLayout) -> list[str]:
    """The names of the columns of a store. Raises StateDirectoryError for a kind of store that has no rows."""
    if layout.kind not in ROW_KINDS:
        raise StateDirectoryError(f"no table can be made of a {layout.kind} store: only who wrote it can read its files")
    timestamp = ["timestamp"] if layout.timestamped or layout.kind == "buffer" else []
    until = {"window": ["window_end"], "session": [], "versioned": ["valid_to"]}.get(layout.kind, [])
    identity = key_columns(layout)
    if layout.kind == "window":
        identity.insert(identity.index("window_start") + 1, *until)
        until = []
    return [*identity, *until, "value", *timestamp, MALFORMED]


def key_columns(layout: StoreLayout) -> list[str]:
    """The columns that name a row."""
    match layout.kind:
        case "window":
            return ["partition", "key", "window_start", *(["sequence"] if layout.duplicates else [])]
        case "session":
            return ["partition", "key", "window_start", "window_end"]
        case "versioned":
            return ["partition", "key", "valid_from"]
    return ["partition", "key"]


def row_schema(layout: StoreLayout, schemas: StoreSchemas = NO_SCHEMAS, value_schema: str | None = None) -> T.StructType:
    """The columns of a store. `value_schema`: the type of JSON values as Spark's DDL, in place of what the serde tells. Raises
    StateDirectoryError for a store of a kind that has no rows, ValueError for DDL that is none."""
    return Decoder.of(layout, schemas, value_schema).schema


def value_format(layout: StoreLayout, schemas: StoreSchemas, value_schema: str | None = None, fields: Sequence[str] = ()) -> Format:
    """The format of a store's values; `fields`: those that are read of objects, all by default. Raises ValueError for DDL that is none,
    where the values are no JSON, and for fields that are not there."""
    json = is_json(layout.value_serde, schemas.value)
    if value_schema is not None and not json:
        raise ValueError(f"value-schema is for values in JSON; these are {layout.value_serde}")
    if not ((json and fields) or value_schema is not None):
        known = format_of(layout.value_serde, schemas.value, schemas.value_registry)
        if fields:
            raise ValueError(f"the value has no fields that can be read alone: it is {known.spark.simpleString()} ({layout.value_serde})")
        return known
    shape, nullable = (shape_of_ddl(value_schema), True) if value_schema is not None else shape_of(schemas.value or {})
    return json_format(_only(shape, fields) if fields else shape, nullable)


def _only(shape: Shape, fields: Sequence[str]) -> Shape:
    """An object with some of its fields."""
    there = {field.column: field for field in shape.fields} if isinstance(shape, Struct) else {}
    for name in fields:
        if name not in there:
            raise ValueError(f"there is no column 'value.{name}'; the value is {shape.spark.simpleString()}")
    return Struct([there[name] for name in fields])


def is_json(serde: str, schema: object) -> bool:
    """True for a serde whose bytes are plain JSON."""
    outer, inner = serde_parts(serde)
    if outer == "nullable":
        return is_json(inner, schema)
    return outer in ("JSON", "json") or (schema is not None and outer not in AROUND)


def key_format(layout: StoreLayout, schemas: StoreSchemas) -> Format:
    """The format of a store's keys. Spark cannot group or join by maps: keys with some in them are text, or binary where they are not
    JSON."""
    found = format_of(layout.key_serde, schemas.key, schemas.key_registry)
    if not _has_map(found.spark):
        return found
    return json_format(TEXT, nullable=False) if is_json(layout.key_serde, schemas.key) else BINARY


def _has_map(found: T.DataType) -> bool:
    match found:
        case T.MapType():
            return True
        case T.ArrayType():
            return _has_map(found.elementType)
        case T.StructType():
            return any(_has_map(field.dataType) for field in found.fields)
    return False


@dataclass(frozen=True)
class Decoder:
    """Makes rows of a store to batches of Arrow with the columns of `schema`. It cannot be sent to another process: it is made where it
    works."""

    layout: StoreLayout
    key: Format
    value: Format
    schema: T.StructType

    @classmethod
    def of(
        cls,
        layout: StoreLayout,
        schemas: StoreSchemas = NO_SCHEMAS,
        value_schema: str | None = None,
        columns: Sequence[str] | None = None,
    ) -> Decoder:
        """`columns`: those that are wanted, in their order; all by default. `value.delay` is the field of an object: `value` has those that
        are named so. What is not among them is not decoded, so bytes that do not fit are seen only where `_malformed` or their own
        column is wanted. Raises as `row_schema`, and ValueError for a column that is not there."""
        there = row_columns(layout)
        wanted = list(dict.fromkeys(base_column(name) for name in columns)) if columns is not None else there
        for name in wanted:
            if name not in there:
                raise ValueError(f"there is no column {name!r}; there are {', '.join(there)}")
        of_value = (
            [] if columns is None or "value" in columns else [name.removeprefix("value.") for name in columns if name != base_column(name)]
        )
        key, value = key_format(layout, schemas), value_format(layout, schemas, value_schema, list(dict.fromkeys(of_value)))
        fields = [_field(name, key, value) for name in wanted]
        return cls(layout, key, value, T.StructType(fields))

    def batch(self, partition: int | pa.Int32Array, rows: StoreRows, malformed: Malformed | None = None) -> pa.RecordBatch:
        """Rows as a batch: in their order, those whose serde's bytes do not fit among them; at the end what is too short to be an entry.
        `partition`: of all rows, or of each, without the broken ones, which have none then. `malformed` is told of every row of which a
        wanted column cannot be read."""
        wanted = set(self.schema.names)
        decoded = {
            name: form.decode(data)
            for name, form, data in (("key", self.key, rows.keys), ("value", self.value, rows.values))
            if wanted & {name, MALFORMED}
        }
        wrong = _reasons(decoded, rows, [name for name in row_columns(self.layout) if name in _TIMES and wanted & {name, MALFORMED}])
        if malformed is not None:
            for place, reason in wrong.items():
                malformed(rows.keys[place].as_py(), reason)
            for key, reason in zip(rows.broken.keys, rows.broken.reasons, strict=True) if rows.broken is not None else ():
                malformed(key.as_py(), reason)
        columns = [self._column(field, partition, rows, decoded, wrong) for field in self.schema.fields]
        if rows.broken is not None:
            broken = rows.broken
            told = [_malformed(key, value, why) for key, value, why in zip(broken.keys, broken.values, broken.reasons, strict=True)]
            columns = [
                pa.concat_arrays([column, _beside(field, partition, told)])
                for column, field in zip(columns, self.schema.fields, strict=True)
            ]
        return pa.RecordBatch.from_arrays(columns, names=self.schema.names)

    def _column(
        self, field: T.StructField, partition: int | pa.Int32Array, rows: StoreRows, decoded: dict[str, Decoded], wrong: dict[int, str]
    ) -> pa.Array:
        match field.name:
            case "key" | "value":
                return decoded[field.name].column
            case "partition":
                return pa.array([partition] * len(rows), pa.int32()) if isinstance(partition, int) else partition
            case "sequence":
                return rows.sequences
            case name if name == MALFORMED:
                if not wrong:
                    return pa.nulls(len(rows), to_arrow_type(MALFORMED_TYPE))
                told = [_malformed(rows.keys[at], rows.values[at], wrong[at]) if at in wrong else None for at in range(len(rows))]
                return pa.array(told, to_arrow_type(MALFORMED_TYPE))
        return milliseconds(pc.if_else(_in_range(times := _times(rows, field.name)), times, None))


def _times(rows: StoreRows, name: str) -> pa.Int64Array:
    """A column of times. Windows that never end do so with the last year that there is."""
    if name == "window_end":
        return pc.min_element_wise(rows.window_ends, LATEST_MS, skip_nulls=False)
    found = getattr(rows, name if name.startswith("valid") else f"{name}s")
    return pa.nulls(len(rows), pa.int64()) if found is None else found


def _in_range(times: pa.Int64Array) -> pa.BooleanArray:
    return pc.fill_null(pc.and_(pc.greater_equal(times, EARLIEST_MS), pc.less_equal(times, LATEST_MS)), True)


def base_column(column: str) -> str:
    """The column that `value.delay` is a part of."""
    return "value" if column.startswith("value.") else column


def _field(name: str, key: Format, value: Format) -> T.StructField:
    if name in _TIMES:
        return T.StructField(name, T.TimestampType())
    types = {"key": key.spark, "value": value.spark, MALFORMED: MALFORMED_TYPE}
    return T.StructField(name, types.get(name, T.IntegerType()))


def _reasons(decoded: dict[str, Decoded], rows: StoreRows, times: Sequence[str]) -> dict[int, str]:
    """Why a row's bytes do not fit, by its place. `times`: the columns of times that are looked at."""
    found: dict[int, str] = {}
    wrong = [(name, place, reason) for name, each in decoded.items() for place, reason in each.wrong.items()]
    for name in times:
        column = _times(rows, name)
        if not pc.all(kept := _in_range(column), min_count=0).as_py():
            places = pc.indices_nonzero(pc.invert(kept)).to_pylist()
            wrong += [(name, place, f"{column[place]} ms since the epoch is no time of the years 1 to 9999") for place in places]
    for name, place, reason in wrong:
        found[place] = f"{found[place]}; {name}: {reason}" if place in found else f"{name}: {reason}"
    return dict(sorted(found.items()))


def _malformed(key: pa.BinaryScalar, value: pa.BinaryScalar, reason: str) -> dict[str, object]:
    return {"key": key.as_py(), "value": value.as_py(), "reason": reason}


def _beside(field: T.StructField, partition: int | pa.Int32Array, told: list[dict[str, object]]) -> pa.Array:
    """Cells of entries that are too short to be rows."""
    if field.name == MALFORMED:
        return pa.array(told, to_arrow_type(MALFORMED_TYPE))
    if field.name == "partition" and isinstance(partition, int):
        return pa.array([partition] * len(told), pa.int32())
    return pa.nulls(len(told), to_arrow_type(field.dataType))
