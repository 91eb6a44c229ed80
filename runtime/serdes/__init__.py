"""Serdes: conversion between objects and bytes. Primitive serdes, windowed keys and lists have the same bytes as in Java."""

from penstock.runtime.serdes.primitive import (
    BOOLEAN,
    BYTES,
    DOUBLE,
    FLOAT,
    INTEGER,
    JSON,
    LONG,
    NULL,
    SHORT,
    STRING,
    UUID,
    json,
    list_of,
    nullable,
)
from penstock.runtime.serdes.serde import Serde
from penstock.runtime.serdes.windowed import session_windowed, time_windowed

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
    "json",
    "list_of",
    "nullable",
    "session_windowed",
    "time_windowed",
]
