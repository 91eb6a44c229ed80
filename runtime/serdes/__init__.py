"""Bytes and objects. The bytes of the primitive serdes, of windowed keys and of lists equal Java's."""

from runtime.serdes.lists import list_of, nullable
from runtime.serdes.primitive import BOOLEAN, BYTES, DOUBLE, FLOAT, INTEGER, JSON, LONG, NULL, SHORT, STRING, UUID, json
from runtime.serdes.schema_registry import avro, json_schema, protobuf
from runtime.serdes.serde import Serde
from runtime.serdes.windowed import session_windowed, time_windowed

__all__ = [
    "BOOLEAN",
    "BYTES",
    "DOUBLE",
    "FLOAT",
    "INTEGER",
    "JSON",
    "LONG",
    "NULL",
    "SHORT",
    "STRING",
    "UUID",
    "Serde",
    "avro",
    "json",
    "json_schema",
    "list_of",
    "nullable",
    "protobuf",
    "session_windowed",
    "time_windowed",
]
