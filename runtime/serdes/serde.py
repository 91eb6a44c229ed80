"""The serde: how objects become the bytes that stand in topics and stores, and back.

A serde is asked once per topic for a function of one argument, which the hot path then calls per record: for the primitive types that
function is the C function itself (`struct.Struct.pack`, `bytes.decode`), with nothing of ours around it. A user's serde is a pair of
functions of topic, headers and data, as Kafka Streams' `Serializer.serialize(topic, headers, data)`; the bound function reads the current
record's headers through a callable, so that nobody passes them along the way.

The engine never calls a serde with None: a null key or value stays null on every path (as in Kafka Streams).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Generic, Literal

import msgspec

from runtime.record import Headers
from runtime.type_variables import T

CurrentHeaders = Callable[[], Headers | None]
"""Gives the headers of the record that is being processed, or None when it has none."""

Serializer = Callable[[object], bytes | None]
Deserializer = Callable[[bytes], object]


def _no_headers() -> Headers | None:
    return None


class RegistrySchema(msgspec.Struct, frozen=True):
    """A schema as a Schema Registry knows it: its language and its text (Protobuf: the file's descriptor in base64, as it is
    registered). The bytes begin with 0 and the schema's id (int32); those of Protobuf have the message's indexes after that."""

    kind: Literal["AVRO", "JSON", "PROTOBUF"]
    text: str


class Serde(Generic[T]):
    """`serialize(topic, headers, data) -> bytes | None` and `deserialize(topic, headers, data) -> object`, of objects of the type T.

    `immutable` says that nobody can change an object of this type in place, so that stores may keep the object itself between two commits
    instead of its bytes. `declares` names the configuration keys that the serde reads (they are then known keys). `schema` is the JSON
    Schema of bytes that are JSON, None where nothing is declared or they are something else; `registry_schema` is that of a Schema
    Registry's serde. A serde around another one (`list_of`, `time_windowed`, …) has the inner one's.
    Whatever the functions raise becomes a DeserializationError, or the error of the node that wrote.
    """

    __slots__ = ("_deserialize", "_serialize", "declares", "immutable", "name", "registry_schema", "schema")

    def __init__(
        self,
        serialize: Callable[[str, Headers | None, T], bytes | None],
        deserialize: Callable[[str, Headers | None, bytes], T],
        *,
        immutable: bool = False,
        declares: Iterable[str] = (),
        name: str | None = None,
        schema: Mapping[str, object] | None = None,
        registry_schema: RegistrySchema | None = None,
    ) -> None:
        self._serialize: Callable[[str, Headers | None, T], bytes | None] = serialize
        self._deserialize: Callable[[str, Headers | None, bytes], T] = deserialize
        self.immutable = immutable
        self.declares = tuple(declares)
        self.schema = schema
        self.registry_schema = registry_schema
        self.name: str = name or str(getattr(serialize, "__qualname__", type(serialize).__name__))

    def serializer(self, topic: str, headers: CurrentHeaders | None = None) -> Callable[[T], bytes | None]:
        """A function of the object alone, for one topic. `headers` gives the current record's headers (default: none)."""
        serialize, current = self._serialize, headers or _no_headers
        return lambda data: serialize(topic, current(), data)

    def deserializer(self, topic: str, headers: CurrentHeaders | None = None) -> Callable[[bytes], T]:
        """A function of the bytes alone, for one topic. `headers` gives the current record's headers (default: none)."""
        deserialize, current = self._deserialize, headers or _no_headers
        return lambda data: deserialize(topic, current(), data)

    def __repr__(self) -> str:
        return f"serdes.{self.name}"


class PlainSerde(Serde[T]):
    """A serde whose functions need neither topic nor headers; the hot path calls them directly.

    `size` is the number of bytes of every serialised value, where it is fixed.
    """

    __slots__ = ("_read", "_write", "size")

    def __init__(
        self,
        name: str,
        write: Callable[[T], bytes | None],
        read: Callable[[bytes], T],
        *,
        immutable: bool,
        size: int | None = None,
        schema: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(
            lambda topic, headers, data: write(data),
            lambda topic, headers, data: read(data),
            immutable=immutable,
            name=name,
            schema=schema,
        )
        self._write = write
        self._read = read
        self.size = size

    def serializer(self, topic: str, headers: CurrentHeaders | None = None) -> Callable[[T], bytes | None]:
        return self._write

    def deserializer(self, topic: str, headers: CurrentHeaders | None = None) -> Callable[[bytes], T]:
        return self._read
