"""Entries of stores and records of sinks as text, decoded with a build's own serdes. What they cannot read is shown as bytes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from struct import Struct, error

import msgspec

from penstock.orchestration.rehearsals.messages import Entry, Text
from penstock.runtime.model.user_errors import pass_ctrl_c
from penstock.runtime.serdes.keys import WINDOW_SUFFIX, split_session_key, split_window_store_key
from penstock.runtime.serdes.serde import Serde
from penstock.runtime.stores.base import StoreLayout
from penstock.runtime.stores.buffer import BufferValue
from penstock.runtime.stores.headers import split_stored, without_headers
from penstock.runtime.stores.rocks_segments import LATEST
from penstock.runtime.stores.suppliers import Builder
from penstock.runtime.topology.topology import Topology

MOST_CHARACTERS = 200
_TIME = Struct(">q")
_SPAN = Struct(">qq")
_FOREVER = 2**63 - 1

Read = Callable[[bytes], str]


def store_texts(topology: Topology, store: str, topic: str, entries: list[Entry]) -> list[Text]:
    """Return entries of a store's files as text. `topic`: the name that the serdes get."""
    builders = [builder for part in topology.sub_topologies() for builder in part.stores if builder.name == store]
    if not builders or not isinstance(builders[0], Builder):
        return [Text(_bytes(entry.key), _bytes(entry.value)) for entry in entries]
    settings = builders[0].settings
    layout, key, value = settings.layout(), _reader(settings.key_serde, topic), _reader(settings.value_serde, topic)
    return [_entry(layout, entry, key, value) for entry in entries]


def sink_texts(topology: Topology, topic: str, entries: list[Entry]) -> list[Text]:
    """Return records of an output topic as text."""
    sinks = [sink for part in topology.sub_topologies() for sink in part.sinks]
    fixed = [sink for sink in sinks if sink.topic == topic] or [sink for sink in sinks if not isinstance(sink.topic, str)]
    if not fixed or fixed[0].key_serde is None or fixed[0].value_serde is None:
        return [Text(_bytes(entry.key), _bytes(entry.value)) for entry in entries]
    key, value = _reader(fixed[0].key_serde, topic), _reader(fixed[0].value_serde, topic)
    return [Text(_optional(entry.key, key), _optional(entry.value, value)) for entry in entries]


def _reader(serde: Serde, topic: str) -> Read:
    deserialize = serde.deserializer(topic)

    def read(data: bytes) -> str:
        try:
            return _cut(_text(deserialize(data)))
        except BaseException as failed:  # noqa: BLE001  # a user's serde may raise anything; the bytes are shown then
            pass_ctrl_c(failed, "an entry that is shown")
            return _bytes(data)

    return read


def _entry(layout: StoreLayout, entry: Entry, key: Read, value: Read) -> Text:
    """Return an entry as text; its bytes if they are not as the layout says."""
    with suppress(ValueError, error, IndexError):
        return Text(_key(layout, entry.family, entry.key or b"", key), _value(layout, entry, value))
    return Text(_bytes(entry.key), _bytes(entry.value))


def _key(layout: StoreLayout, family: str, data: bytes, key: Read) -> str:
    match layout.kind:
        case "window" if len(data) >= WINDOW_SUFFIX:
            bare, start = split_window_store_key(data)
            return f"{key(bare)} from {time_text(start)}"
        case "session":
            bare, start, end = split_session_key(data)
            return f"{key(bare)} from {time_text(start)} to {time_text(end)}"
        case "versioned" if family != LATEST:
            until, since = _SPAN.unpack_from(data, len(data) - _SPAN.size)
            ends = "" if until == _FOREVER else f" to {time_text(until)}"
            return f"{key(data[: -_SPAN.size])} from {time_text(since)}{ends}"
    return key(data)


def _value(layout: StoreLayout, entry: Entry, value: Read) -> str:
    data = entry.value
    if data is None:
        return "null"
    match layout.kind:
        case "buffer":
            return _optional(BufferValue.from_bytes(data).new, value)
        case "versioned":
            if entry.family == LATEST:
                return value(data[_TIME.size :])
            return value(data[1:]) if data[:1] == b"\x01" else "null"
    at = ""
    if layout.timestamped:
        if layout.headers:
            timestamp, data = split_stored(data)
        else:
            timestamp, data = _TIME.unpack_from(data)[0], data[_TIME.size :]
        at = f" at {time_text(timestamp)}"
    if layout.headers:
        data = without_headers(data)
    return value(data) + at


def time_text(at_ms: int) -> str:
    """Return a time in UTC as text; its number where there is no such date."""
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return f"{at_ms} ms"


def _optional(data: bytes | None, read: Read) -> str:
    return "null" if data is None else read(data)


def _text(found: object) -> str:
    if isinstance(found, str):
        return found
    try:
        return msgspec.json.encode(found).decode()
    except (TypeError, ValueError, OverflowError):
        return repr(found)


def _cut(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}… ({len(text)} characters)"


def _bytes(data: bytes | None) -> str:
    return "null" if data is None else _cut(repr(data))
