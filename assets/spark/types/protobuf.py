"""Decoding of Protobuf messages by the schema in a manifest (`RegistrySchema`), without the classes that `protoc` generates."""

from __future__ import annotations

import base64
from collections.abc import Sequence

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message

from penstock.runtime.serdes.serde import RegistrySchema


class MessageReader:
    """Reads values of the wire format that follow the schema's id: the message's indexes, then the message."""

    def __init__(self, registry: RegistrySchema) -> None:
        self._registry = registry
        self._kind: type[Message] | None = None
        self._writers: dict[int, descriptor_pb2.FileDescriptorProto] = {}

    def read(self, schema_id: int, data: bytes) -> Message:
        """Parse a message of a recorded id. Raises ValueError for bytes that are not the program's message, and for indexes that the file
        of this id does not have."""
        indexes, at = _indexes(data)
        _require_message(self._writer(schema_id), indexes)
        if self._kind is None:
            self._kind = _program_message(self._registry)
        try:
            return self._kind.FromString(data[at:])
        except DecodeError as error:
            raise ValueError(f"it is no {self._registry.message}: {error}") from error

    def _writer(self, schema_id: int) -> descriptor_pb2.FileDescriptorProto:
        found = self._writers.get(schema_id)
        if found is None:
            found = self._writers[schema_id] = _parsed(self._registry.writers[schema_id])
        return found


def _parsed(text: str) -> descriptor_pb2.FileDescriptorProto:
    """Return a file. Raises ValueError for a text in another form, which some registries give and no program can read."""
    try:
        return descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text))
    except DecodeError as error:
        raise ValueError(f"the recorded schema cannot be read: {error}") from error


def _program_message(registry: RegistrySchema) -> type[Message]:
    """Build the program's message, as which it reads all values. Raises ValueError if a file that its file imports is unknown."""
    pool, own, seen = descriptor_pool.DescriptorPool(), descriptor_pool.Default(), set[str]()
    imports = {name: base64.b64decode(text) for name, text in registry.imports.items()}
    file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(registry.text))

    def add(name: str, content: bytes) -> None:
        if name in seen:
            return
        seen.add(name)
        for needed in descriptor_pb2.FileDescriptorProto.FromString(content).dependency:
            add(needed, imports.get(needed) or own.FindFileByName(needed).serialized_pb)
        pool.AddSerializedFile(content)

    try:
        add(file.name, file.SerializeToString())
    except (KeyError, TypeError) as error:  # protobuf raises these for an unknown file, and for one that needs an unknown file
        raise ValueError(f"a file that {file.name} imports is not recorded: {error}. Take another snapshot") from error
    found: type[Message] = message_factory.GetMessageClass(pool.FindMessageTypeByName(registry.message))
    return found


def _require_message(file: descriptor_pb2.FileDescriptorProto, indexes: Sequence[int]) -> None:
    """Raise ValueError if a file has no message with these indexes."""
    messages = file.message_type
    for index in indexes:
        if not 0 <= index < len(messages):
            raise _no_message(indexes)
        messages = messages[index].nested_type


def _no_message(indexes: Sequence[int]) -> ValueError:
    return ValueError(f"the schema has no message with the indexes {list(indexes)}")


def _indexes(data: bytes) -> tuple[list[int], int]:
    """Return the message's index path in its file, and the position after it. Raises ValueError if it is malformed."""
    count, at = _varint(data, 0)
    if count == 0:
        return [0], at
    if not 0 < count <= len(data):  # also a bound of the next loop
        raise ValueError(f"{len(data)} bytes cannot hold {count} indexes of a message")
    found = []
    for _ in range(count):
        index, at = _varint(data, at)
        found.append(index)
    return found, at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a zigzag varint, and the position after it."""
    rest = 0
    for place, byte in enumerate(data[at:]):  # as in the program, it may have leading zeros
        rest |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return (rest >> 1) ^ -(rest & 1), at + place + 1
    raise ValueError("a value of Protobuf begins with the indexes of its message, which have no end here")
