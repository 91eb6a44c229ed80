"""The serde: conversion between objects and the bytes of topics and stores.

`Serde.serializer` and `Serde.deserializer` are called once per topic and return a function of one argument, which the hot path calls per
record. For primitive types it is the C function itself (`struct.Struct.pack`, `bytes.decode`), without a wrapper. A user's serde is a pair
of functions of topic, headers and data, as Kafka Streams' `Serializer.serialize(topic, headers, data)`. The returned function gets the
current record's headers from a callable, so that operators need not pass headers on.

The engine never calls a serde with None: a null key or value stays null on every path (as in Kafka Streams).

A serde that depends on the configuration's default serdes is a `PendingSerde` until the configuration is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, Literal, Never

import msgspec

from penstock.runtime.model.errors import TopologyError
from penstock.runtime.model.record import Headers
from penstock.runtime.model.type_variables import T
from penstock.runtime.serdes.serde_format import SerdeFormat

CurrentHeaders = Callable[[], Headers | None]
"""Returns the headers of the record that is being processed, or None if it has none."""

Serializer = Callable[[object], bytes | None]
Deserializer = Callable[[bytes], object]


def _no_headers() -> Headers | None:
    return None


class RegistrySchema(msgspec.Struct, frozen=True, omit_defaults=True):
    """The reader's schema of a Schema Registry's serde: its language and its text (Protobuf: the file descriptor in base64, as in the
    registry; `message`: the full name of the message; `imports`: the files that its file imports, in base64 and by name, without Protobuf's
    own).

    A value's bytes begin with 0 and the id (int32) of the schema with which it was written, followed in Protobuf by the message's indexes.
    `writers`: the texts of such schemas, by id, as far as they were requested (`Serde.schema_with_writers`); empty in JSON, which is read
    without them. `type`: the JSON Schema of the Python type to which values are converted (`json_schema_of`); None: they are not.
    """

    kind: Literal["AVRO", "JSON", "PROTOBUF"]
    text: str
    message: str = ""
    writers: dict[int, str] = {}
    imports: dict[str, str] = {}
    type: Mapping[str, object] | None = None


class Serde(Generic[T]):
    """A pair of functions for objects of the type T: `serialize(topic, headers, data) -> bytes | None` and `deserialize(topic, headers,
    data) -> object`.

    `immutable`: objects of this type cannot be changed in place, so stores may hold the object itself between two commits instead of its
    bytes. `declares`: the configuration keys that the serde reads, which the configuration then accepts. `schema`: the JSON Schema of the
    bytes; None if they are not JSON or no schema is declared. `registry_schema`: the schema of a Schema Registry's serde. A serde around
    another one (`list_of`, `time_windowed`, …) has the inner serde's schemas.

    An exception of `deserialize` becomes a DeserializationError; one of `serialize` becomes the error of the node that writes.
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
        """Return the serialize function for one topic. `headers` returns the current record's headers (default: none)."""
        serialize, current = self._serialize, headers or _no_headers
        return lambda data: serialize(topic, current(), data)

    def deserializer(self, topic: str, headers: CurrentHeaders | None = None) -> Callable[[bytes], T]:
        """Return the deserialize function for one topic. `headers` returns the current record's headers (default: none)."""
        deserialize, current = self._deserialize, headers or _no_headers
        return lambda data: deserialize(topic, current(), data)

    def format(self) -> SerdeFormat:
        """Return the format of the bytes, which is recorded with a store and compared with that of later versions of the program.

        By default it is the serde's name, with its JSON Schema if it declares one.
        """
        if self.schema is None:
            return SerdeFormat(name=self.name)
        return SerdeFormat(name=self.name, language="json", text=msgspec.json.encode(self.schema, order="sorted").decode())

    def schema_with_writers(self, topics: Sequence[str]) -> RegistrySchema | None:
        """Return `registry_schema` with the schemas that the registry has for data of these topics, for readers without a registry. Raises
        SchemaRegistryUnavailableError."""
        return self.registry_schema

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


class WrappingSerde(Serde[T]):
    """A serde around others, named by `name(inner, …)`. Its format has those of the inner serdes as parts; `detail`: what a reader needs to
    know that is not in the bytes; `registry_schema`: that of the first inner serde, where data of both are the same to a reader of the
    schema. Subclasses define `serializer` and `deserializer`."""

    __slots__ = ("_detail", "_format_name", "_parts")

    def __init__(
        self,
        name: str,
        *inner: Serde,
        immutable: bool = False,
        detail: str = "",
        schema: Mapping[str, object] | None = None,
        registry_schema: RegistrySchema | None = None,
    ) -> None:
        super().__init__(
            lambda topic, headers, data: self.serializer(topic)(data),
            lambda topic, headers, data: self.deserializer(topic)(data),
            immutable=immutable,
            declares=[key for each in inner for key in each.declares],
            name=f"{name}({', '.join(each.name for each in inner)})",
            schema=schema,
            registry_schema=registry_schema,
        )
        self._format_name, self._detail, self._parts = name, detail, inner

    def schema_with_writers(self, topics: Sequence[str]) -> RegistrySchema | None:
        return None if self.registry_schema is None else self._parts[0].schema_with_writers(topics)

    def format(self) -> SerdeFormat:
        return SerdeFormat(name=self._format_name, detail=self._detail, parts=tuple(each.format() for each in self._parts))


class PendingSerde(Serde):
    """Placeholder for a serde around a default serde, until the configuration is known (`Topology.resolved`).

    `of_key`: it wraps the default serde of keys, although it may itself be a serde of values.
    """

    __slots__ = ("of_key", "wrap")

    def __init__(self, wrap: Callable[[Serde], Serde], *, of_key: bool = False) -> None:
        super().__init__(_never, _never, name="pending")
        self.wrap = wrap
        self.of_key = of_key


def _never(_topic: str, _headers: object, data: object) -> Never:
    raise AssertionError(f"a serde that is not resolved from the configuration yet was called with {data!r}")


def wrapped(inner: Serde | None, wrap: Callable[[Serde], Serde], *, of_key: bool = False) -> Serde:
    """Return `wrap(inner)`, or a `PendingSerde` where the inner serde is or wraps a default serde (that of keys, if `of_key`)."""
    if isinstance(inner, PendingSerde):
        wrap_inner = inner.wrap
        return PendingSerde(lambda default: wrap(wrap_inner(default)), of_key=of_key)
    return PendingSerde(wrap, of_key=of_key) if inner is None else wrap(inner)


def required_serde(serde: Serde | None, what: str, where: str) -> Serde:
    """Return the serde. Raises TopologyError, naming the place and the remedy, if it is None."""
    if serde is None:
        raise TopologyError(
            f"{where} has no {what} serde: give it one ({what}=…, or in its Consumed, Produced, Grouped or Materialized), "
            f"or set default.{what}.serde"
        )
    return serde


def resolved_serde(serde: Serde | None, default: Serde | None, what: str, where: str) -> Serde:
    """Return the serde, with the default serde in its place or inside it. Raises TopologyError if a default is needed and not set."""
    if isinstance(serde, PendingSerde):
        return serde.wrap(required_serde(default, what, where))
    return required_serde(serde or default, what, where)
