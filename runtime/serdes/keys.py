"""Layouts of composite keys and values, all big-endian, with the same bytes as in Kafka Streams.

    window store key      key · int64 window start · int32 sequence number     WindowKeySchema
    windowed key          key · int64 window start                             TimeWindowedSerializer
    session key           key · int64 session end · int64 session start        SessionKeySchema, SessionWindowedSerializer
    value with time       int64 timestamp · value; null stays null             ValueAndTimestampSerializer

The right column names the class of Kafka Streams that defines the layout.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import cast

from penstock.runtime.model.error_details import with_place

_START = Struct(">q")
_SUFFIX = Struct(">qi")
_SESSION = Struct(">qq")
WINDOW_SUFFIX = _SUFFIX.size
"""Bytes after the record's key in a window store key."""
SESSION_SUFFIX = _SESSION.size
"""Bytes after the record's key in a session key."""
TIMESTAMP = _START.size
"""Bytes of a timestamp before a value."""

pack_timestamp = _START.pack
"""The 8 bytes of a time in ms."""
pack_window_suffix = _SUFFIX.pack
"""The 12 bytes after the key in a window store: start in ms, sequence number."""
pack_session_suffix = _SESSION.pack
"""The 16 bytes after the key in a session store: end and start in ms."""
unpack_session_suffix = cast("Callable[[bytes], tuple[int, int]]", _SESSION.unpack)
"""End and start in ms."""


def windowed_key(key: bytes, start: int) -> bytes:
    """Return a windowed key as it is written to a topic."""
    return key + _START.pack(start)


def split_windowed_key(data: bytes) -> tuple[bytes, int]:
    """Return key and window start in ms. Raises ValueError for fewer than the 8 bytes of the start."""
    if len(data) < TIMESTAMP:
        raise with_place(ValueError(f"a windowed key has at least {TIMESTAMP} bytes, this one has {len(data)}"), data, len(data))
    return data[:-TIMESTAMP], _START.unpack_from(data, len(data) - TIMESTAMP)[0]


def window_store_key(key: bytes, start: int, sequence: int = 0) -> bytes:
    """Return a key of a window store and its changelog."""
    return key + _SUFFIX.pack(start, sequence)


def window_start(store_key: bytes) -> int:
    """Return the window's start in ms from a window store key."""
    start: int = _SUFFIX.unpack_from(store_key, len(store_key) - WINDOW_SUFFIX)[0]
    return start


def split_window_store_key(store_key: bytes) -> tuple[bytes, int]:
    """Return record key and window start in ms. Raises ValueError when the bytes are too few for a window store key."""
    if len(store_key) < WINDOW_SUFFIX:
        raise ValueError(f"a window store key has at least {WINDOW_SUFFIX} bytes, this one has {len(store_key)}")
    return store_key[:-WINDOW_SUFFIX], window_start(store_key)


def session_key(key: bytes, start: int, end: int) -> bytes:
    """Return a key of a session store, of its changelog, and of topics of sessions."""
    return key + _SESSION.pack(end, start)


def split_session_key(data: bytes) -> tuple[bytes, int, int]:
    """Return record key, start and end in ms. Raises ValueError when the bytes are too few for a session key."""
    if len(data) < SESSION_SUFFIX:
        raise with_place(ValueError(f"a session key has at least {SESSION_SUFFIX} bytes, this one has {len(data)}"), data, len(data))
    end, start = _SESSION.unpack_from(data, len(data) - SESSION_SUFFIX)
    return data[:-SESSION_SUFFIX], start, end


def upper_range(key: bytes, suffix: bytes) -> bytes:
    """Return the inclusive upper bound of composite keys whose record key is at most `key` and whose suffix is at most `suffix`.

    In the composite key of a prefix of `key`, the suffix stands where `key` continues, so the bound is the largest over all prefixes.
    (Kafka Streams' `OrderedBytes.upperRange` guesses from the suffix's first byte and leaves out keys that contain zero bytes.)
    """
    return max(key[:length] + suffix for length in range(len(key) + 1))
