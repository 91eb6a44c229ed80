"""Bytes and objects. The bytes of the primitive serdes equal Java's."""

from runtime.serdes.primitive import BYTES, DOUBLE, FLOAT, INTEGER, JSON, LONG, NULL, SHORT, STRING, UUID, json
from runtime.serdes.serde import Serde
from runtime.serdes.windowed import session_windowed, time_windowed

__all__ = [
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
    "json",
    "session_windowed",
    "time_windowed",
]
