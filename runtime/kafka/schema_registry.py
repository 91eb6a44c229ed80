"""Serdes with schemas in a Schema Registry: Avro, Protobuf and JSON Schema, in Confluent's wire format.

    0 · schema id, int32 · the value

The serdes wrap Confluent's own serializers, which are part of the Kafka client. They are imported when the first such serde is created,
because that takes a second and most programs have none.

If a registry does not answer, or rejects this client, the record is not the cause. So handlers are not called, which might skip a good
record: the work since the last commit is rolled back and retried until the registry answers. An unknown or incompatible schema is an error
of the record, and handlers decide.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import msgspec

from penstock.runtime.kafka.unreadable import AvroPlaces, place_in_protobuf
from penstock.runtime.model.error_details import position, with_place
from penstock.runtime.model.errors import SchemaRegistryUnavailableError, StreamsConfigError
from penstock.runtime.model.extras import require
from penstock.runtime.model.secrets import redacted
from penstock.runtime.model.type_variables import T
from penstock.runtime.serdes.json_types import check_json_type
from penstock.runtime.serdes.primitive import is_frozen
from penstock.runtime.serdes.serde import CurrentHeaders, RegistrySchema, Serde
from penstock.runtime.serdes.serde_format import SerdeFormat
from penstock.runtime.serdes.type_schemas import json_schema_of, type_schema

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import RegisteredSchema, Schema, SchemaRegistryClient
    from confluent_kafka.schema_registry.serde import SchemaId
    from confluent_kafka.serialization import SerializationContext

Registry: TypeAlias = "str | Mapping[str, object] | SchemaRegistryClient"
"""A registry's URL (`mock://name`: one in this process's memory, for tests), the settings of Confluent's client, or such a client."""
M = TypeVar("M")

_LEAST_OF_AVRO = 5
"""Confluent's deserializer of Avro refuses this many bytes or fewer."""
_BUILT_IN = (bytes, bytearray)
_NOT_FOUND = 404
_OF_SUBJECTS = frozenset({"subject.name.strategy", "subject.name.strategy.type", "subject.name.strategy.conf"})
"""Settings of a deserializer that do not change how it reads a value: the id in the bytes determines the schema."""
_OF_FRAMING = frozenset({"schema.id.serializer"})
"""Settings of a serializer that put the id of the schema elsewhere."""
_REFUSED = frozenset({401, 403, 407, 408, 425, 429})
"""HTTP status codes that concern the client or a temporary condition, not the schema. So do all from 500."""


def avro(
    registry: Registry,
    schema: str | None = None,
    *,
    kind: type[T] | None = None,
    is_key: bool = False,
    serializer_config: Mapping[str, object] | None = None,
    deserializer_config: Mapping[str, object] | None = None,
) -> Serde[T]:
    """Return a serde of Avro.

    `schema` is the writer's schema, and the reader's schema to which records of other versions are resolved. Without one, records are read
    with their writers' schemas, and writing needs `{"auto.register.schemas": False, "use.latest.version": True}`. Values are dicts, lists,
    str, int, float, bytes; with `kind`, objects of that type (a dataclass, `msgspec.Struct` or TypedDict). `is_key`: the schema's subject
    is `<topic>-key`, not `<topic>-value`. The two configurations are those of Confluent's `AvroSerializer` and `AvroDeserializer`.
    """

    def make_writer(client: SchemaRegistryClient, config: dict[str, object]) -> _Function:
        from confluent_kafka.schema_registry.avro import AvroSerializer

        return cast(_Function, AvroSerializer(client, schema, conf=config))

    def make_reader(client: SchemaRegistryClient, config: dict[str, object]) -> _Function:
        from penstock.runtime.kafka.avro_reader import AvroReader  # imports fastavro

        return cast(_Function, AvroReader(client, schema, conf=config).read)

    known = None if schema is None else RegistrySchema("AVRO", schema, type=None if kind is None else json_schema_of(kind))
    return _RegistrySerde("avro", registry, make_writer, make_reader, kind, is_key, serializer_config, deserializer_config, known)


def _schema_of(kind: type) -> dict[str, object]:
    try:
        return msgspec.json.schema(kind)
    except KeyError as error:
        raise TypeError(
            f"no JSON Schema can be derived from {kind}: two of its classes have the same name ({error}). Rename one, or give the schema"
        ) from error


def json_schema(
    registry: Registry,
    schema: str | None = None,
    *,
    kind: type[T] | None = None,
    is_key: bool = False,
    serializer_config: Mapping[str, object] | None = None,
    deserializer_config: Mapping[str, object] | None = None,
) -> Serde[T]:
    """Return a serde of JSON that is validated with a schema when it is written and read. As `avro`; with a `kind` and no `schema`, the
    schema is derived from the type. Raises TypeError for a type that has no JSON Schema."""
    text = schema
    if text is None and kind is not None:
        check_json_type(kind, "serdes.json_schema")
        text = msgspec.json.encode({"title": kind.__name__, **_schema_of(kind)}).decode()

    def make_writer(client: SchemaRegistryClient, config: dict[str, object]) -> _Function:
        from confluent_kafka.schema_registry.json_schema import JSONSerializer

        return cast(_Function, JSONSerializer(text, client, conf=config))

    def make_reader(client: SchemaRegistryClient, config: dict[str, object]) -> _Function:
        from confluent_kafka.schema_registry.json_schema import JSONDeserializer

        # The default is another parser, which reads less, if `orjson` happens to be installed.
        return cast(_Function, JSONDeserializer(text, schema_registry_client=client, conf=config, json_decode=json.loads))

    known = None if text is None else RegistrySchema("JSON", text, type=None if kind is None else json_schema_of(kind))
    return _RegistrySerde("json_schema", registry, make_writer, make_reader, kind, is_key, serializer_config, deserializer_config, known)


def protobuf(
    registry: Registry,
    message: type[M],
    *,
    is_key: bool = False,
    serializer_config: Mapping[str, object] | None = None,
    deserializer_config: Mapping[str, object] | None = None,
) -> Serde[M]:
    """Return a serde of Protobuf messages of one class, generated by `protoc`. Otherwise as `avro`."""

    def make_writer(client: SchemaRegistryClient, config: dict[str, object]) -> _Function:
        from confluent_kafka.schema_registry.protobuf import ProtobufSerializer

        return cast(_Function, ProtobufSerializer(cast(Any, message), client, conf=config))

    def make_reader(client: SchemaRegistryClient, config: dict[str, object]) -> _Function:
        from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer

        return cast(_Function, ProtobufDeserializer(cast(Any, message), config, client))

    file = cast(Any, message).DESCRIPTOR.file
    name = str(cast(Any, message).DESCRIPTOR.full_name)
    imported = _imported(file)
    known = RegistrySchema("PROTOBUF", base64.b64encode(file.serialized_pb).decode(), name, imports=imported)
    more = (serializer_config, deserializer_config, known, name, imported, cast(Any, message).DESCRIPTOR)
    return _RegistrySerde("protobuf", registry, make_writer, make_reader, None, is_key, *more)


def _imported(file: Any) -> dict[str, str]:  # noqa: ANN401  # protobuf's classes carry no types
    """Return the files that a Protobuf file imports, directly or not, in base64 and by name, without Protobuf's own, which never change."""
    found: dict[str, str] = {}
    for each in file.dependencies:
        if not each.name.startswith("google/protobuf/"):
            found |= {each.name: base64.b64encode(each.serialized_pb).decode(), **_imported(each)}
    return dict(sorted(found.items()))


_Function = Callable[[object, object], Any]
"""(data, `SerializationContext`) -> result."""
_Make = Callable[["SchemaRegistryClient", "dict[str, object]"], _Function]


class _RegistrySerde(Serde[Any]):
    __slots__ = (
        "_descriptor",
        "_imported",
        "_is_key",
        "_kind",
        "_make_reader",
        "_make_writer",
        "_message",
        "_reading",
        "_registry",
        "_schema",
        "_writing",
    )

    def __init__(
        self,
        name: str,
        registry: Registry,
        make_writer: _Make,
        make_reader: _Make,
        kind: type[object] | None,
        is_key: bool,
        writing: Mapping[str, object] | None,
        reading: Mapping[str, object] | None,
        schema: RegistrySchema | None = None,
        message: str = "",
        imported: Mapping[str, str] = MappingProxyType({}),
        descriptor: object = None,
    ) -> None:
        """`message`: the full name of a Protobuf message; `imported`: the files that its file imports; `descriptor`: its descriptor."""
        require("registry", f"serdes.{name}", "authlib", "cachetools", "httpx2", *_PACKAGES[name])
        if kind is not None:
            check_json_type(kind, f"serdes.{name}")
        immutable = kind is not None and is_frozen(kind)
        # With other settings, such as "use.latest.version", the schema is not enough to read values as the deserializer does.
        as_declared = not set(reading or {}) - _OF_SUBJECTS and not set(writing or {}) & _OF_FRAMING
        super().__init__(self._write, self._read, immutable=immutable, name=name, registry_schema=schema if as_declared else None)
        self._schema = schema
        self._registry = registry
        self._make_writer = make_writer
        self._make_reader = make_reader
        self._kind = kind
        self._message = message
        self._imported = imported
        self._descriptor = descriptor
        self._is_key = is_key
        # Confluent's own default requests associations from the registry first, which many registries do not support.
        self._writing = {"subject.name.strategy.type": "TOPIC", **(writing or {})}
        self._reading = {"subject.name.strategy.type": "TOPIC", **(reading or {})}

    def format(self) -> SerdeFormat:
        """Return the reader's format. The writer's schema is identified by each record."""
        known, kind = self._schema, None if self._kind is None else type_schema(self._kind)
        language, text = _LANGUAGES[self.name], "" if known is None else known.text
        files = tuple(SerdeFormat(name=name, language=language, text=file) for name, file in self._imported.items())
        return SerdeFormat(name=self.name, detail=self._message, parts=files, language=language, text=text, kind=kind)

    def schema_with_writers(self, topics: Sequence[str]) -> RegistrySchema | None:
        """Return the schema with all versions that the registry has for the topics, including deleted ones: their ids are in the bytes."""
        if self.registry_schema is None:
            return None
        subjects = {subject for topic in topics for subject in self._subjects(topic)}
        found = [each for subject in sorted(subjects) for each in self._versions(subject)]
        readable = [each for each in found if each.schema.rule_set is None and (self.name != "avro" or not each.schema.references)]
        in_json = self.name == "json_schema"  # read without its writer's schema, whose id must be known all the same
        writers = {each.schema_id: "" if in_json else each.schema.schema_str or "" for each in readable if each.schema_id is not None}
        return msgspec.structs.replace(self.registry_schema, writers=writers)

    def _subjects(self, topic: str) -> Iterator[str]:
        """Yield the subjects under which a writer may have registered a schema, by the usual strategies and the serde's own."""
        from confluent_kafka.schema_registry import record_subject_name_strategy, topic_record_subject_name_strategy
        from confluent_kafka.schema_registry import topic_subject_name_strategy as of_topic
        from confluent_kafka.serialization import MessageField, SerializationContext

        context = SerializationContext(topic, MessageField.KEY if self._is_key else MessageField.VALUE)
        name = self._message or _record_name(self.registry_schema)
        yield cast(str, of_topic(context, None))
        if name:
            yield cast(str, record_subject_name_strategy(context, name))
            yield cast(str, topic_record_subject_name_strategy(context, name))
        own = self._writing.get("subject.name.strategy")
        if callable(own):
            yield cast(str, own(context, name))

    def _versions(self, subject: str) -> list[RegisteredSchema]:
        """Return all versions of a subject; none if it does not exist."""
        from confluent_kafka.schema_registry import SchemaRegistryError

        client, form = _client(self._registry), "serialized" if self.name == "protobuf" else None
        try:
            versions = client.get_versions(subject, deleted=True)
            return [client.get_version(subject, version, deleted=True, fmt=form) for version in versions]
        except Exception as error:
            if isinstance(error, SchemaRegistryError) and error.http_status_code == _NOT_FOUND:
                return []
            if isinstance(error, SchemaRegistryError) or _is_away(error):
                raise SchemaRegistryUnavailableError(
                    f"the Schema Registry does not list the schemas of subject {subject}: {type(error).__name__}: {error}"
                ) from error
            raise

    def serializer(self, topic: str, headers: CurrentHeaders | None = None) -> Callable[[Any], bytes | None]:
        call = self._bound(self._make_writer(_client(self._registry), self._writing), topic, headers)
        if self._kind is None:
            return call
        return lambda data: cast("bytes | None", call(msgspec.to_builtins(data, builtin_types=_BUILT_IN)))

    def deserializer(self, topic: str, headers: CurrentHeaders | None = None) -> Callable[[bytes], Any]:
        read, kind = self._make_reader(_client(self._registry), self._reading), self._kind
        if kind is None:
            return self._bound(read, topic, headers)
        return self._bound(lambda data, context: msgspec.convert(read(data, context), kind), topic, headers)

    def _bound(self, function: _Function, topic: str, headers: CurrentHeaders | None) -> Callable[[Any], Any]:
        """Return the function for one topic. It passes the record's headers, and distinguishes an unavailable registry from a bad
        record."""
        from confluent_kafka.serialization import MessageField, SerializationContext

        context = SerializationContext(topic, MessageField.KEY if self._is_key else MessageField.VALUE)

        def call(data: object) -> object:
            if headers is not None:
                context.headers = cast(Any, headers())
            try:
                return function(data, context)
            except Exception as error:
                if _is_away(error):
                    raise SchemaRegistryUnavailableError(
                        f"the Schema Registry does not answer a request about topic {topic}: {type(error).__name__}: {error}"
                    ) from error
                if isinstance(data, bytes):  # it was read
                    self._note_place(error, data, context)
                raise

        return call

    def _note_place(self, error: Exception, data: bytes, context: SerializationContext) -> None:
        """Note on the error of a deserializer the field and the byte at which the data cannot be read, if they can be found."""
        try:
            field, byte = self._place(error, data, context)
        except Exception:  # noqa: BLE001 (another error would hide the one that is explained)
            return
        if field is not None or byte is not None:
            with_place(error, data, byte, field)

    def _place(self, error: Exception, data: bytes, context: SerializationContext) -> tuple[str | None, int | None]:
        from confluent_kafka.schema_registry import dual_schema_id_deserializer
        from confluent_kafka.schema_registry.serde import SchemaId

        framing, own = SchemaId(_LANGUAGES[self.name]), cast(Any, self._reading.get("schema.id.deserializer"))
        try:
            payload = (own or dual_schema_id_deserializer)(data, context, framing)
        except Exception:  # noqa: BLE001 (the framing is what cannot be read)
            at_once = own or data[:1] in (b"\x00", b"\x01")
            return None, (None if own else len(data)) if at_once else 0
        rest = payload if isinstance(payload, bytes) else payload.read()
        start = len(data) - len(rest) if data.endswith(rest) else None
        if self.name == "avro" and len(data) <= _LEAST_OF_AVRO:
            return None, len(data)
        field, byte = self._place_in(rest, error, framing, context)
        return field, None if byte is None or start is None else start + byte

    def _place_in(self, data: bytes, error: Exception, framing: SchemaId, context: SerializationContext) -> tuple[str | None, int | None]:
        """Return field and byte in the data without their framing."""
        if self.name == "json_schema":
            return position(error, data)
        client, form = _client(self._registry), "serialized" if self.name == "protobuf" else None
        subject = f"{context.topic}-{'key' if self._is_key else 'value'}"
        by_id = framing.id is not None
        schema = client.get_schema(cast(int, framing.id), subject, form) if by_id else client.get_schema_by_guid(str(framing.guid), form)
        rules = schema.rule_set
        if rules is not None and rules.encoding_rules:  # the data may have been decoded by them before it was read
            return None, None
        if any(
            name.startswith("use.latest.") for name in self._reading
        ):  # the data is converted to another version, perhaps by migration rules
            return None, None
        if self.name == "protobuf":
            return place_in_protobuf(data, 0, self._descriptor) or (None, None)
        places = AvroPlaces(data, schema.schema_str or "", _referenced(client, schema), None if self._schema is None else self._schema.text)
        if isinstance(error, msgspec.ValidationError):  # read, but not of the kind
            field, _ = position(error, b"")
            return field, places.byte_of(field or "$")
        return places.unreadable(error) or (None, None)

    def _write(self, topic: str, headers: object, data: object) -> bytes | None:
        return self.serializer(topic, lambda: cast(Any, headers))(data)

    def _read(self, topic: str, headers: object, data: bytes) -> object:
        return self.deserializer(topic, lambda: cast(Any, headers))(data)


def _referenced(client: SchemaRegistryClient, schema: Schema) -> list[str]:
    """Return the texts of the schemas that a schema refers to, directly or not, those first that others need."""
    texts: dict[str, None] = {}
    for each in schema.references or []:
        found = client.get_version(cast(str, each.subject), cast(int, each.version), deleted=True).schema
        texts |= dict.fromkeys([*_referenced(client, found), found.schema_str or ""])
    return list(texts)


def _record_name(schema: RegistrySchema | None) -> str:
    """Return the full name of an Avro record, or the title of a JSON Schema; empty if the schema has none."""
    try:
        found = msgspec.json.decode("null" if schema is None else schema.text, type=dict[str, object])
    except msgspec.DecodeError:
        return ""
    if schema is not None and schema.kind == "JSON":
        return str(found.get("title") or "")
    name, space = str(found.get("name") or ""), str(found.get("namespace") or "")
    return f"{space}.{name}" if space and "." not in name else name


_PACKAGES = {"avro": ("fastavro",), "json_schema": ("jsonschema",), "protobuf": ("google",)}
_LANGUAGES = {"avro": "AVRO", "json_schema": "JSON", "protobuf": "PROTOBUF"}

_clients: dict[tuple[tuple[str, str], ...], SchemaRegistryClient] = {}
_clients_lock = threading.Lock()


def _client(registry: Registry) -> SchemaRegistryClient:
    """Return the client, the same one for the same settings, so that serdes share its cache, and the content of a mock registry."""
    from confluent_kafka.schema_registry import SchemaRegistryClient

    if isinstance(registry, SchemaRegistryClient):
        return registry
    settings: dict[str, object] = {"url": registry} if isinstance(registry, str) else dict(registry)
    key = tuple(sorted((name, repr(value)) for name, value in settings.items()))
    with _clients_lock:
        client = _clients.get(key)
        if client is None:
            client = _clients[key] = _made(settings)
    return client


def _made(settings: dict[str, object]) -> SchemaRegistryClient:
    """Return a new client. Raises StreamsConfigError, without values that may be secrets, if the settings cannot be used."""
    from confluent_kafka.schema_registry import SchemaRegistryClient

    try:
        return SchemaRegistryClient.new_client(settings)
    except Exception as error:  # noqa: BLE001 (settings of a wrong type fail in any way)
        why = redacted(f"{type(error).__name__}: {error}", settings)
    raise StreamsConfigError(f"the settings of the Schema Registry cannot be used: {why}")  # not from the error, which shows the values


def _is_away(error: BaseException | None) -> bool:
    """Return True if an unavailable registry is the cause of an error."""
    from confluent_kafka.schema_registry import SchemaRegistryError
    from httpx2 import TransportError

    while error is not None:
        if isinstance(error, TransportError):
            return True
        if isinstance(error, SchemaRegistryError):
            return error.http_status_code in _REFUSED or error.http_status_code >= 500
        error = error.__cause__ or error.__context__
    return False
