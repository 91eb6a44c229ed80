"""Spark DDL as shapes of columns: `flights BIGINT, delay DOUBLE`, or one type, `ARRAY<STRUCT<leg: INT>>`.

Spark's own parser is in its JVM, which is not available in the processes that plan and run a data source.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal

from pyspark.sql import types as T

from penstock.assets.spark.types.shapes import (
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    LONG,
    TEXT,
    TIMESTAMP,
    Field,
    ListOf,
    MapOf,
    Scalar,
    Shape,
    Struct,
    whole,
)

_TYPES: dict[str, Shape] = {
    "TINYINT": Scalar(whole(8), T.ByteType()),
    "SMALLINT": Scalar(whole(16), T.ShortType()),
    "INT": Scalar(whole(32), T.IntegerType()),
    "BIGINT": LONG,
    "FLOAT": Scalar(float, T.FloatType()),
    "DOUBLE": DOUBLE,
    "BOOLEAN": BOOLEAN,
    "STRING": TEXT,
    "BINARY": BINARY,
    "DATE": DATE,
    "TIMESTAMP": TIMESTAMP,
}
_ALSO = {"BYTE": "TINYINT", "SHORT": "SMALLINT", "INTEGER": "INT", "LONG": "BIGINT", "REAL": "FLOAT"}
_TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|('(?:[^'\\]|\\.)*')|(\w+)|(.))", re.DOTALL)
_EXAMPLE = "for example: flights BIGINT, delay DOUBLE"


def shape_of_ddl(ddl: str) -> Shape:
    """Return the shape that a user declares. Every field may be missing or null, and other fields are ignored. Raises ValueError
    for text that is not DDL, and for types without a JSON form."""
    return _Parser(ddl).whole()


class _Parser:
    def __init__(self, ddl: str) -> None:
        self._ddl = ddl
        self._tokens = list(_tokens(ddl))
        self._at = 0

    def whole(self) -> Shape:
        if not self._tokens:
            raise self._error("it is empty")
        following = self._tokens[1] if len(self._tokens) > 1 else ""
        single = following in ("", "<", "(")  # `BIGINT`, `ARRAY<…>`, `DECIMAL(9,2)`; a field has a name before its type
        shape = self._type() if single else Struct(self._fields(""))
        if self._at < len(self._tokens):
            raise self._error(f"{self._tokens[self._at]!r} is too much")
        return shape

    def _fields(self, end: str) -> list[Field]:
        fields: list[Field] = []
        while True:
            name = _unquoted(self._take("a name"))
            self._skip(":")
            shape = self._type()
            if self._skip("NOT"):
                self._expect("NULL")
            comment = _unquoted(self._take("a comment")) if self._skip("COMMENT") else None
            if name.lower() in {field.name.lower() for field in fields}:
                raise self._error(f"the field {name!r} is there twice")
            fields.append(Field(name, name, shape, nullable=True, required=False, comment=comment))
            if not self._skip(","):
                break
        if end:
            self._expect(end)
        return fields

    def _type(self) -> Shape:
        name = self._take("a type").upper()
        name = _ALSO.get(name, name)
        match name:
            case "ARRAY":
                self._expect("<")
                found: Shape = ListOf(self._type(), True)
                self._expect(">")
                return found
            case "MAP":
                self._expect("<")
                if self._take("a type").upper() != "STRING":
                    raise self._error("the names of a map in JSON are STRING")
                self._expect(",")
                found = MapOf(self._type(), True)
                self._expect(">")
                return found
            case "STRUCT":
                self._expect("<")
                return Struct(self._fields(">"))
            case "DECIMAL":
                return Scalar(Decimal, T.DecimalType(*self._digits()))
        if name not in _TYPES:
            raise self._error(f"there is no type {name!r}; there are {', '.join(_TYPES)}, DECIMAL(p,s), ARRAY<…>, MAP<STRING,…>, STRUCT<…>")
        return _TYPES[name]

    def _digits(self) -> tuple[int, int]:
        if not self._skip("("):
            return 10, 0
        precision, scale = int(self._take("a number")), 0
        if self._skip(","):
            scale = int(self._take("a number"))
        self._expect(")")
        return precision, scale

    def _take(self, what: str) -> str:
        if self._at == len(self._tokens):
            raise self._error(f"it ends where {what} is expected")
        self._at += 1
        return self._tokens[self._at - 1]

    def _skip(self, token: str) -> bool:
        found = self._at < len(self._tokens) and self._tokens[self._at].upper() == token
        self._at += found
        return found

    def _expect(self, token: str) -> None:
        if (found := self._take(repr(token))).upper() != token:
            raise self._error(f"{found!r} stands where {token!r} is expected")

    def _error(self, why: str) -> ValueError:
        return ValueError(f"{self._ddl!r} is not a schema in Spark's DDL: {why}; {_EXAMPLE}")


def _tokens(ddl: str) -> Iterator[str]:
    for found in _TOKEN.finditer(ddl.strip()):
        yield found.group(1) or found.group(2) or found.group(3) or found.group(4)


def _unquoted(token: str) -> str:
    if token.startswith("`"):
        return token[1:-1].replace("``", "`")
    return token[1:-1].replace("\\'", "'") if token.startswith("'") else token
