"""Confluent's deserializer of Avro, with the defaults of fields as values (`penstock.runtime.serdes.avro_defaults`)."""

from __future__ import annotations

from typing import Any

from confluent_kafka.schema_registry.avro import AvroDeserializer

from penstock.runtime.serdes.avro_defaults import parse, resolved


class AvroReader(AvroDeserializer):
    """A deserializer of Avro whose records have the values of defaults, and share no list or dict."""

    def __init__(self, *arguments: object, **named: object) -> None:
        self._parsed: dict[int, tuple[object, object]] = {}
        """Each schema as Confluent parses it, and as this class does, by `id` of the first."""
        self._resolves = False
        super().__init__(*arguments, **named)  # type: ignore[arg-type]

    def read(self, data: object, context: object) -> object:
        """Return the value of the data."""
        found: object = self(data, context)  # type: ignore[arg-type]
        return resolved(found) if self._resolves else found

    def _get_parsed_schema(self, schema: Any) -> Any:  # noqa: ANN401  # as in the base class
        theirs = super()._get_parsed_schema(schema)
        known = self._parsed.get(id(theirs))
        if known is None:
            ours, resolves = parse(theirs)
            known = self._parsed[id(theirs)] = theirs, ours
            self._resolves |= resolves
        return known[1]
