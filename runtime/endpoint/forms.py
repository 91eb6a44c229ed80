"""Keys from text, and keys and values as JSON."""

from __future__ import annotations

import base64
import binascii
import uuid
from contextlib import suppress

import msgspec

from penstock.runtime.endpoint.answers import Refusal
from penstock.runtime.model.record import ValueAndTimestamp, VersionedRecord, Windowed
from penstock.runtime.model.user_errors import described
from penstock.runtime.serdes.serde import Serde

FORMATS = ("text", "json", "base64")


def key_of(text: str, form: str, serde: Serde, topic: str) -> object:
    """Return the key of a request. `text`: the text itself, or the number, boolean or UUID in it, whichever the serde can serialize first;
    `json`: any JSON; `base64`: the key's bytes. Raises Refusal (400)."""
    if form == "base64":
        return _read(key_bytes(text), serde, topic)
    write = serde.serializer(topic)
    for candidate in _from_json(text) if form == "json" else _candidates(text):
        try:
            data = write(candidate)
        except BaseException:  # noqa: BLE001 (a serde may raise anything; the next candidate is tried)
            continue
        if data is not None:
            return _read(data, serde, topic)
    raise Refusal(
        400, f"{text!r} ({form}) is not a key that serde {serde.name} can write: say format=json or format=base64, or another key"
    )


def key_bytes(text: str) -> bytes:
    """Decode base64 of either alphabet, with or without padding. Raises Refusal (400)."""
    bare = text.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(bare + "=" * (-len(bare) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise Refusal(400, f"{text!r} is not base64: {error}") from error


def _read(data: bytes, serde: Serde, topic: str) -> object:
    """Deserialize the key with the store's serde: a JSON object may stand for a user's class."""
    try:
        key = serde.deserializer(topic)(data)
    except BaseException as error:
        raise Refusal(400, f"these bytes are not a key that serde {serde.name} can read: {described(error)}") from error
    if key is None:
        raise Refusal(400, "a key must not be null: no store has a null key")
    return key


def _from_json(text: str) -> list[object]:
    try:
        return [msgspec.json.decode(text)]
    except (msgspec.DecodeError, RecursionError) as error:
        raise Refusal(400, f"{text!r} is not JSON: {error}") from error


def _candidates(text: str) -> list[object]:
    found: list[object] = [text]
    with suppress(msgspec.DecodeError, RecursionError):
        found.append(msgspec.json.decode(text))
    with suppress(ValueError):
        found.append(uuid.UUID(text))
    return [*found, text.encode()]


def shown(found: object, serde: Serde, topic: str) -> object:
    """Return a key or value for a response: as JSON if possible, else `{"base64": …}` of its bytes."""
    if isinstance(found, bytes | bytearray):
        return {"base64": base64.b64encode(found).decode()}
    try:
        return msgspec.Raw(msgspec.json.encode(found))
    except (TypeError, ValueError, OverflowError):
        return {"base64": base64.b64encode(serde.serializer(topic)(found) or b"").decode()}


def row(key: object, value: object, key_serde: Serde, value_serde: Serde, topic: str) -> dict[str, object]:
    """Return an entry of a store: `key`, `value`; `start` and `end` of a window or session, `timestamp` and `valid_to` if present."""
    found: dict[str, object] = {}
    if isinstance(key, Windowed):
        found.update(key=shown(key.key, key_serde, topic), start=key.window.start, end=key.window.end)
    else:
        found["key"] = shown(key, key_serde, topic)
    return {**found, **valued(value, value_serde, topic)}


def valued(value: object, serde: Serde, topic: str) -> dict[str, object]:
    """Return the value fields of an entry; null for none."""
    match value:
        case None:
            return {"value": None}
        case ValueAndTimestamp():
            return {"value": shown(value.value, serde, topic), "timestamp": value.timestamp}
        case VersionedRecord():
            return {"value": shown(value.value, serde, topic), "timestamp": value.timestamp, "valid_to": value.valid_to}
        case _:
            return {"value": shown(value, serde, topic)}
