"""Conversion of a store's columns (`formats.row_schema`) to those of a table, and descriptions of columns.

    the key, window_start, window_end, sequence, valid_from, valid_to, the value's fields or the value, timestamp, partition, day

If a field of the value has the name of another column, it becomes `value_<name>`. Only tables by days have `day`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructType

from penstock.assets.spark.tables.files import DAY
from penstock.assets.spark.tables.request import ColumnText
from penstock.orchestration.tables import WrongTableError

_WINDOW = ("window_start", "window_end")
_BEFORE = (*_WINDOW, "sequence", "valid_from", "valid_to")
_AFTER = ("timestamp", "partition")
_KEYS = ("partition", "key", *_WINDOW, "sequence", "valid_from")
_TEXTS = {
    "window_start": "Start of the window",
    "window_end": "End of the window",
    "sequence": "Which of several records of one key and time",
    "valid_from": "From when on the value held",
    "valid_to": "Until when it held; null: it still does",
    "timestamp": "Time of the record that wrote the row",
    "partition": "Partition of the changelog, and number of the task",
    DAY: "Day (UTC) of window_start",
}


@dataclass(frozen=True, slots=True)
class Shape:
    """Conversion of a store's rows to rows of a table. `value_schema`: the value's fields, None if it is one column."""

    key_column: str
    value_column: str
    by_day: bool
    columns: Sequence[str]
    """Schema of the store's rows."""
    value_schema: StructType | None = field(default=None)

    @classmethod
    def of(cls, rows: DataFrame, key_column: str, value_column: str, by_day: bool) -> Shape:
        """Create it for these rows. Raises WrongTableError if the declaration does not fit them."""
        if by_day and "window_start" not in rows.columns:
            raise WrongTableError("partitions by day are for stores with windows, and this one has none: leave `partitions` away")
        value = rows.schema["value"].dataType
        return cls(key_column, value_column, by_day, rows.columns, value if isinstance(value, StructType) else None)

    @property
    def key_columns(self) -> list[str]:
        """Columns of the table's key."""
        return [self.key_column if name == "key" else name for name in _KEYS if name in self.columns]

    def table(self, rows: DataFrame) -> DataFrame:
        """Convert rows of the store to rows of the table."""
        columns = [F.col("key").alias(self.key_column)]
        columns += [F.col(name) for name in _BEFORE if name in self.columns]
        columns += self._values()
        columns += [F.col(name) for name in _AFTER if name in self.columns]
        if self.by_day:
            columns.append(F.to_date("window_start").alias(DAY))
        return rows.select(*columns)

    def store(self, table: DataFrame) -> DataFrame:
        """Convert rows of the table back to rows of the store."""
        value = F.col(f"`{self.value_column}`")
        if self.value_schema is not None:
            value = F.struct(*[F.col(f"`{as_}`").alias(name) for name, as_ in self._names()])
        known = {"key": F.col(f"`{self.key_column}`"), "value": value}
        return table.select(*[known.get(name, F.col(name)).alias(name) for name in self.columns])

    def _values(self) -> list[Column]:
        if self.value_schema is None:
            return [F.col("value").alias(self.value_column)]
        return [F.col("value").getField(name).alias(as_) for name, as_ in self._names()]

    def _names(self) -> list[tuple[str, str]]:
        """Return the value's fields and the columns that they become."""
        assert self.value_schema is not None  # checked by the callers
        taken = {name.lower() for name in (self.key_column, *_BEFORE, *_AFTER, DAY)}
        return [(name, f"value_{name}" if name.lower() in taken else name) for name in self.value_schema.fieldNames()]


def ddl(kind: DataType) -> str:
    """Return a type as Spark DDL, with quoted names."""
    if isinstance(kind, StructType):
        fields = [f"`{column.name.replace('`', '``')}`: {ddl(column.dataType)}" for column in kind.fields]
        return f"STRUCT<{', '.join(fields)}>"
    if isinstance(kind, ArrayType):
        return f"ARRAY<{ddl(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"MAP<{ddl(kind.keyType)}, {ddl(kind.valueType)}>"
    return kind.simpleString()


def column_texts(
    schema: StructType, shape: Shape, descriptions: Mapping[str, str], value_json: Mapping[str, object] | None
) -> list[ColumnText]:
    """Return the columns of a table with their descriptions: declared ones, else those of the value's type (its JSON Schema), else the
    general one for such a column. Raises WrongTableError for a description of an unknown column."""
    unknown = sorted(set(descriptions) - set(schema.fieldNames()))
    if unknown:
        raise WrongTableError(f"columns.{unknown[0]}: the table has no such column; there are {', '.join(schema.fieldNames())}")
    known: dict[str, str] = {**_TEXTS, shape.key_column: "The key", shape.value_column: "The value", **_of_type(value_json), **descriptions}
    return [ColumnText(column.name, column.dataType.simpleString(), known.get(column.name)) for column in schema.fields]


def _of_type(schema: Mapping[str, object] | None) -> dict[str, str]:
    """Return the descriptions of an object's properties in a JSON Schema, as `msgspec.Meta(description=…)` writes them."""
    if schema is None:
        return {}
    reference, definitions = schema.get("$ref"), schema.get("$defs")
    if isinstance(reference, str) and isinstance(definitions, Mapping):
        schema = definitions.get(reference.rpartition("/")[2], {})
        assert isinstance(schema, Mapping)
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return {}
    return {name: str(entry["description"]) for name, entry in properties.items() if isinstance(entry, Mapping) and "description" in entry}


def preview(table: DataFrame, rows: int = 10) -> str:
    """Return a few rows as a Markdown table."""
    names = table.columns
    shown = table.limit(rows).select(*[F.col(name).cast(StringType()).alias(name) for name in names]).collect()
    lines = [f"| {' | '.join(names)} |", f"| {' | '.join('---' for _ in names)} |"]
    lines += [f"| {' | '.join(_cell(value) for value in row)} |" for row in shown]
    return "\n".join(lines)


def _cell(value: str | None) -> str:
    text = "" if value is None else value.replace("|", "\\|").replace("\n", " ")
    return text if len(text) <= 200 else f"{text[:199]}…"
