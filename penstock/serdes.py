"""Serdes: objects to bytes and back. The bytes of the primitive serdes, of windowed keys and of lists equal Java's."""

from penstock.runtime import serdes as _serdes
from penstock.runtime.kafka.schema_registry import avro, json_schema, protobuf
from penstock.runtime.serdes import *  # noqa: F403

__all__ = ["avro", "json_schema", "protobuf"]
__all__ += _serdes.__all__
