"""Rows of a store as columns of Arrow and of Spark.

The state's files and the changelog must decode to the same rows, so both use this code.

    partition      the changelog's partition; -1 for a global store, which holds all partitions of its topic
    key            decoded by the key's serde
    window_start, window_end          windows and sessions
    sequence       windows of joins, which hold several values of one key and time
    valid_from, valid_to              versions; `valid_to` is null while a version is valid
    value          decoded by the value's serde
    timestamp      of the record that set the value, if the store keeps it
    _malformed     null, or the bytes that could not be read: key, value, and the reason

A malformed row is kept like any other. The cells that could not be read are null, and `_malformed` has the bytes. So
rows can be counted, written elsewhere and inspected, and none is lost silently.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_type

from penstock.assets.spark.types.ddl import shape_of_ddl
from penstock.assets.spark.types.json_schema import shape_of
from penstock.assets.spark.types.serde_formats import (
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
from penstock.assets.spark.types.shapes import Shape, Struct, Text, or_none
from penstock.runtime.model.errors import StateDirectoryError
from penstock.runtime.stores.base import StoreLayout, StoreSchemas
from penstock.runtime.stores.rows import ROW_KINDS, StoreRows

MALFORMED = "_malformed"
MALFORMED_TYPE = T.StructType(
    [T.StructField("key", T.BinaryType()), T.StructField("value", T.BinaryType()), T.StructField("reason", T.StringType())]
)
GLOBAL_PARTITION = -1
"""`partition` of the rows of a global store."""
NO_SCHEMAS = StoreSchemas()
_TIMES = ("window_start", "window_end", "valid_from", "valid_to", "timestamp")
Malformed = Callable[[bytes | None, str], None]
"""Called for a malformed row, with its key's bytes and the reason."""


def row_columns(layout: StoreLayout) -> list[str]:
    """Return the names of the columns of a store. Raises StateDirectoryError for a kind of store that has no rows."""
    if layout.kind not in ROW_KINDS:
        raise StateDirectoryError(f"no table can be made of a {layout.kind} store: only the program that wrote it can read its files")
    timestamp = ["timestamp"] if layout.timestamped or layout.kind == "buffer" else []
    until = {"window": ["window_end"], "session": [], "versioned": ["valid_to"]}.get(layout.kind, [])
    identity = key_columns(layout)
    if layout.kind == "window":
        identity.insert(identity.index("window_start") + 1, *until)
        until = []
    return [*identity, *until, "value", *timestamp, MALFORMED]


def key_columns(layout: StoreLayout) -> list[str]:
    """Return the columns that identify a row."""
    match layout.kind:
        case "window":
            return ["partition", "key", "window_start", *(["sequence"] if layout.duplicates else [])]
        case "session":
            return ["partition", "key", "window_start", "window_end"]
        case "versioned":
            return ["partition", "key", "valid_from"]
    return ["partition", "key"]


def row_schema(layout: StoreLayout, schemas: StoreSchemas = NO_SCHEMAS, value_schema: str | None = None) -> T.StructType:
    """Return the columns of a store. `value_schema`: the type of JSON values as Spark DDL, which replaces the serde's type. Raises
    StateDirectoryError for a kind of store without rows, ValueError for invalid DDL."""
    return Decoder.of(layout, schemas, value_schema).schema


def value_format(
    layout: StoreLayout, schemas: StoreSchemas, value_schema: str | None = None, fields: Sequence[str] = (), *, whole: bool = True
) -> Format:
    """Return the format of a store's values; `fields`: the object's fields that become columns, all by default. With `whole`, all of a
    value must fit; without it, only these fields. Raises ValueError for invalid DDL, for DDL if the values are not JSON, and for unknown
    fields."""
    json = is_json(layout.value_serde, schemas.value)
    if value_schema is not None and not json:
        raise ValueError(f"value-schema is for values in JSON; these are {layout.value_serde}")
    if not ((json and fields) or value_schema is not None):
        known = format_of(layout.value_serde, schemas.value, schemas.value_registry)
        if fields:
            raise ValueError(f"the value has no fields that can be read alone: it is {known.spark.simpleString()} ({layout.value_serde})")
        return known
    shape, nullable = (shape_of_ddl(value_schema), True) if value_schema is not None else shape_of(schemas.value or {})
    return json_format(_only(shape, fields, whole=whole) if fields else shape, nullable)


def _only(shape: Shape, fields: Sequence[str], *, whole: bool) -> Shape:
    """Reduce an object's shape to some of its fields."""
    there = {field.column: field for field in shape.fields} if isinstance(shape, Struct) else {}
    for name in fields:
        if name not in there:
            raise ValueError(f"there is no column 'value.{name}'; the value is {shape.spark.simpleString()}")
    return shape.with_columns(fields) if whole and isinstance(shape, Struct) else Struct([there[name] for name in fields])


def is_json(serde: str, schema: object) -> bool:
    """Return True for a serde whose bytes are plain JSON."""
    outer, inner = serde_parts(serde)
    if outer == "nullable":
        return is_json(inner, schema)
    return outer in ("JSON", "json") or (schema is not None and outer not in AROUND)


def key_format(layout: StoreLayout, schemas: StoreSchemas) -> Format:
    """Return the format of a store's keys. Spark cannot group or join by maps: keys that contain maps become text, or binary if they are
    not JSON."""
    found = format_of(layout.key_serde, schemas.key, schemas.key_registry)
    if not _has_map(found.spark):
        return found
    if not is_json(layout.key_serde, schemas.key):
        return BINARY
    shape, nullable = shape_of(schemas.key or {})
    return json_format(Text(exact=or_none(shape.exact) if nullable else shape.exact), nullable)


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
    """Converts rows of a store to Arrow batches with the columns of `schema`. It cannot be pickled: create it in the process that uses
    it."""

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
        """Create a decoder. `columns`: the requested ones, in their order; all by default. `value.delay` is the field of an object: `value`
        then has only the fields named like this. Other columns are not decoded, so malformed bytes are detected only if `_malformed` or
        their own column is requested. Raises like `row_schema`, and ValueError for an unknown column."""
        there = row_columns(layout)
        wanted = list(dict.fromkeys(base_column(name) for name in columns)) if columns is not None else there
        for name in wanted:
            if name not in there:
                raise ValueError(f"there is no column {name!r}; there are {', '.join(there)}")
        of_value = (
            [] if columns is None or "value" in columns else [name.removeprefix("value.") for name in columns if name != base_column(name)]
        )
        key = key_format(layout, schemas)
        value = value_format(layout, schemas, value_schema, list(dict.fromkeys(of_value)), whole=MALFORMED in wanted)
        fields = [_field(name, key, value) for name in wanted]
        return cls(layout, key, value, T.StructType(fields))

    def batch(self, partition: int | pa.Int32Array, rows: StoreRows, malformed: Malformed | None = None) -> pa.RecordBatch:
        """Convert rows to a batch: in their order, including rows with malformed bytes; at the end, entries too short for a row.
        `partition`: one for all rows, or one per row, without the short entries, which then have none. `malformed` is called for every row
        with a requested column that cannot be read."""
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
            cells = [_malformed(key, value, why) for key, value, why in zip(broken.keys, broken.values, broken.reasons, strict=True)]
            columns = [
                pa.concat_arrays([column, _beside(field, partition, cells)])
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
                cells = [_malformed(rows.keys[at], rows.values[at], wrong[at]) if at in wrong else None for at in range(len(rows))]
                return pa.array(cells, to_arrow_type(MALFORMED_TYPE))
        return milliseconds(pc.if_else(_in_range(times := _times(rows, field.name)), times, None))


def _times(rows: StoreRows, name: str) -> pa.Int64Array:
    """Return a column of times. Windows without an end, and versions valid beyond the year 9999, end with that year."""
    if name == "window_end":
        return pc.min_element_wise(rows.window_ends, LATEST_MS, skip_nulls=False)
    if name == "valid_to" and rows.valid_to is not None:
        return pc.min_element_wise(rows.valid_to, LATEST_MS, skip_nulls=False)
    found = getattr(rows, name if name.startswith("valid") else f"{name}s")
    return pa.nulls(len(rows), pa.int64()) if found is None else found


def _in_range(times: pa.Int64Array) -> pa.BooleanArray:
    return pc.fill_null(pc.and_(pc.greater_equal(times, EARLIEST_MS), pc.less_equal(times, LATEST_MS)), True)


def base_column(column: str) -> str:
    """Return the column that contains `value.delay`."""
    return "value" if column.startswith("value.") else column


def _field(name: str, key: Format, value: Format) -> T.StructField:
    if name in _TIMES:
        return T.StructField(name, T.TimestampType())
    types = {"key": key.spark, "value": value.spark, MALFORMED: MALFORMED_TYPE}
    return T.StructField(name, types.get(name, T.IntegerType()))


def _reasons(decoded: dict[str, Decoded], rows: StoreRows, times: Sequence[str]) -> dict[int, str]:
    """Return the reason for each malformed row, by row number. `times`: the columns of times to check."""
    found: dict[int, str] = {}
    wrong = [(name, place, reason) for name, each in decoded.items() for place, reason in each.wrong.items()]
    for name in times:
        column = _times(rows, name)
        if not pc.all(kept := _in_range(column), min_count=0).as_py():
            places = pc.indices_nonzero(pc.invert(kept)).to_pylist()
            wrong += [(name, place, f"{column[place]} ms since the epoch is not a time of the years 1 to 9999") for place in places]
    for name, place, reason in wrong:
        found[place] = f"{found[place]}; {name}: {reason}" if place in found else f"{name}: {reason}"
    return dict(sorted(found.items()))


def _malformed(key: pa.BinaryScalar, value: pa.BinaryScalar, reason: str) -> dict[str, object]:
    return {"key": key.as_py(), "value": value.as_py(), "reason": reason}


def _beside(field: T.StructField, partition: int | pa.Int32Array, cells: list[dict[str, object]]) -> pa.Array:
    """Return a column for entries that are too short to be rows."""
    if field.name == MALFORMED:
        return pa.array(cells, to_arrow_type(MALFORMED_TYPE))
    if field.name == "partition" and isinstance(partition, int):
        return pa.array([partition] * len(cells), pa.int32())
    return pa.nulls(len(cells), to_arrow_type(field.dataType))
