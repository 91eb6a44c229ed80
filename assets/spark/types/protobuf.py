"""Decoding of Protobuf messages by the schema in a manifest (`RegistrySchema`), without the classes that `protoc` generates."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FileDescriptor
from google.protobuf.message import DecodeError, Message


class MessageReader:
    """Reads values of the wire format that follow the schema's id: the message's indexes, then the message."""

    def __init__(self, schema: str, message: str = "", writers: Mapping[int, str] = MappingProxyType({})) -> None:
        """Build the messages. `schema`: the file's descriptor in base64. If it imports unknown files, only the indexes can be read.
        `message`: the full name of the program's message, as which it reads all values; if empty, the indexes name it. `writers`: the files
        of other versions, by their ids."""
        file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(schema))
        self._file = _described(file)
        self._message = message
        self._writers = {number: file for number, text in writers.items() if (file := _parsed(text)) is not None}

    def read(self, schema_id: int, data: bytes) -> Message | None:
        """Parse a message; None if the file is unknown. Raises ValueError for bytes that are not a message of it, or, if the writer's file
        is known, for indexes that it does not have."""
        indexes, at = _indexes(data)
        if (writer := self._writers.get(schema_id)) is not None:
            _require_message(writer, indexes)
        if self._file is None:
            return None
        kind = message_factory.GetMessageClass(self._program_message() if self._message else _message(self._file, indexes))
        try:
            return kind.FromString(data[at:])
        except DecodeError as error:
            raise ValueError(f"it is no {kind.DESCRIPTOR.full_name}: {error}") from error

    def _program_message(self) -> Descriptor:
        assert self._file is not None
        found: Descriptor = self._file.pool.FindMessageTypeByName(self._message)
        return found


def _parsed(text: str) -> descriptor_pb2.FileDescriptorProto | None:
    """Return a file; None for a text in another form, which some registries give."""
    try:
        return descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (ValueError, DecodeError):
        return None


def _described(file: descriptor_pb2.FileDescriptorProto) -> FileDescriptor | None:
    pool, known = descriptor_pool.DescriptorPool(), descriptor_pool.Default()
    try:
        for name in file.dependency:
            _add_with_imports(pool, known.FindFileByName(name), set())
        return pool.AddSerializedFile(file.SerializeToString()) or pool.FindFileByName(file.name)
    except (KeyError, TypeError):  # protobuf raises these for an unknown file, and for one that needs an unknown file
        return None


def _add_with_imports(pool: descriptor_pool.DescriptorPool, file: FileDescriptor, seen: set[str]) -> None:
    if file.name in seen:
        return
    seen.add(file.name)
    for needed in file.dependencies:
        _add_with_imports(pool, needed, seen)
    pool.AddSerializedFile(file.serialized_pb)


def _message(file: FileDescriptor, indexes: Sequence[int]) -> Descriptor:
    first, *rest = indexes
    messages = list(file.message_types_by_name.values())
    try:
        found = messages[first]
        for index in rest:
            found = found.nested_types[index]
    except IndexError:
        raise _no_message(indexes) from None
    return found


def _require_message(file: descriptor_pb2.FileDescriptorProto, indexes: Sequence[int]) -> None:
    """Raise ValueError if a file has no message with these indexes."""
    messages = file.message_type
    for index in indexes:
        if index >= len(messages):
            raise _no_message(indexes)
        messages = messages[index].nested_type


def _no_message(indexes: Sequence[int]) -> ValueError:
    return ValueError(f"the schema has no message with the indexes {list(indexes)}")


def _indexes(data: bytes) -> tuple[list[int], int]:
    """Return the message's index path in its file, and the position after it. Raises ValueError if it is malformed."""
    count, at = _varint(data, 0)
    if count == 0:
        return [0], at
    if not 0 < count <= len(data):
        raise ValueError(f"{len(data)} bytes cannot hold {count} indexes of a message")
    found = []
    for _ in range(count):
        index, at = _varint(data, at)
        if index < 0:
            raise ValueError(f"an index of a message is not negative, this one is {index}")
        found.append(index)
    return found, at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a zigzag varint, and the position after it."""
    rest = 0
    for place, byte in enumerate(data[at : at + 5]):
        rest |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return (rest >> 1) ^ -(rest & 1), at + place + 1
    raise ValueError("a value of Protobuf begins with the indexes of its message, which have no end here")
