"""Layouts of composite keys and values, all big-endian, byte for byte Kafka Streams'.

    window store key      key · int64 window start · int32 sequence number     WindowKeySchema
    windowed key          key · int64 window start                             TimeWindowedSerializer
    session key           key · int64 session end · int64 session start        SessionKeySchema, SessionWindowedSerializer
    value with time       int64 timestamp · value; null stays null             ValueAndTimestampSerializer

On the right is the class of Kafka Streams that defines the layout.
"""

from __future__ import annotations

from struct import Struct

_START = Struct(">q")
_SUFFIX = Struct(">qi")
_SESSION = Struct(">qq")
WINDOW_SUFFIX = _SUFFIX.size
"""Bytes that a window store key has after the record's key."""
SESSION_SUFFIX = _SESSION.size
"""Bytes that a session key has after the record's key."""
TIMESTAMP = _START.size
"""Bytes of a timestamp before a value."""

pack_timestamp = _START.pack
"""The 8 bytes of a time in ms."""
pack_window_suffix = _SUFFIX.pack
"""The 12 bytes after the key in a window store: start in ms, sequence number."""
pack_session_suffix = _SESSION.pack
"""The 16 bytes after the key in a session store: end and start in ms."""


def windowed_key(key: bytes, start: int) -> bytes:
    """A windowed key as it stands on a topic."""
    return key + _START.pack(start)


def split_windowed_key(data: bytes) -> tuple[bytes, int]:
    """Key and window start in ms. Raises ValueError when there are not even the 8 bytes of the start."""
    if len(data) < TIMESTAMP:
        raise ValueError(f"a windowed key has at least {TIMESTAMP} bytes, this one has {len(data)}")
    return data[:-TIMESTAMP], _START.unpack_from(data, len(data) - TIMESTAMP)[0]


def window_store_key(key: bytes, start: int, sequence: int = 0) -> bytes:
    """A key of a window store and its changelog."""
    return key + _SUFFIX.pack(start, sequence)


def window_start(store_key: bytes) -> int:
    """The window's start in ms, of a window store key."""
    start: int = _SUFFIX.unpack_from(store_key, len(store_key) - WINDOW_SUFFIX)[0]
    return start


def split_window_store_key(store_key: bytes) -> tuple[bytes, int]:
    """Record key and window start in ms. Raises ValueError when the bytes are too few to be a window store key."""
    if len(store_key) < WINDOW_SUFFIX:
        raise ValueError(f"a window store key has at least {WINDOW_SUFFIX} bytes, this one has {len(store_key)}")
    return store_key[:-WINDOW_SUFFIX], window_start(store_key)


def session_key(key: bytes, start: int, end: int) -> bytes:
    """A key of a session store, its changelog, and topics of sessions."""
    return key + _SESSION.pack(end, start)


def split_session_key(data: bytes) -> tuple[bytes, int, int]:
    """Record key, start and end in ms. Raises ValueError when the bytes are too few to be a session key."""
    if len(data) < SESSION_SUFFIX:
        raise ValueError(f"a session key has at least {SESSION_SUFFIX} bytes, this one has {len(data)}")
    end, start = _SESSION.unpack_from(data, len(data) - SESSION_SUFFIX)
    return data[:-SESSION_SUFFIX], start, end


def with_timestamp(value: bytes, timestamp: int) -> bytes:
    """A value as a timestamped store keeps it."""
    return _START.pack(timestamp) + value


def split_timestamp(data: bytes) -> tuple[int, bytes]:
    """Timestamp in ms and value, of a timestamped store's value. Raises struct.error when there are not 8 bytes."""
    return _START.unpack_from(data)[0], data[TIMESTAMP:]


def upper_range(key: bytes, suffix: bytes) -> bytes:
    """The inclusive upper bound of composite keys whose record key is at most `key` and whose suffix is at most `suffix`.

    A record key that is a prefix of `key` has its suffix where `key` goes on, so the bound is the largest of them all. (Kafka Streams'
    `OrderedBytes.upperRange` guesses from the suffix's first byte and leaves out keys that hold zero bytes.)
    """
    return max(key[:length] + suffix for length in range(len(key) + 1))
