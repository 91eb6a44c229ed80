"""Serdes of windowed keys on topics (Kafka Streams' `TimeWindowedSerializer`, `SessionWindowedSerializer`)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from penstock.runtime.model.clock import to_ms
from penstock.runtime.model.error_details import note_place_in
from penstock.runtime.model.record import SessionWindow, Window, Windowed
from penstock.runtime.model.type_variables import K
from penstock.runtime.serdes.keys import session_key, split_session_key, split_windowed_key, windowed_key
from penstock.runtime.serdes.serde import CurrentHeaders, Serde, WrappingSerde

_LAST = 2**63 - 1
"""The largest timestamp, and the end of windows that have no end."""


def time_windowed(inner: Serde[K], window_size: timedelta | int) -> Serde[Windowed[K]]:
    """Return a serde of keys of time windows: the inner key's bytes, then the window's start as int64.

    The end is not in the bytes; it is `start + window_size` (ms or timedelta).
    """
    size = to_ms(window_size)

    def read(data: bytes) -> tuple[bytes, Window]:
        key, start = split_windowed_key(data)
        return key, Window(start, min(start + size, _LAST))

    return _WindowedSerde("time_windowed", inner, _write_start, read, 8, f"{size} ms")


def _write_start(key: bytes, window: Window) -> bytes:
    return windowed_key(key, window.start)


def session_windowed(inner: Serde[K]) -> Serde[Windowed[K]]:
    """Return a serde of keys of sessions: the inner key's bytes, then the session's end and start as int64 (ms, both inclusive)."""
    return _WindowedSerde("session_windowed", inner, _write_session, _read_session, 16)


def _write_session(key: bytes, window: Window) -> bytes:
    return session_key(key, window.start, window.end)


def _read_session(data: bytes) -> tuple[bytes, Window]:
    key, start, end = split_session_key(data)
    return key, SessionWindow(start, end)


def window_bytes(serde: Serde) -> int:
    """Return the number of bytes that a serde writes after the inner key; 0 if it is not a serde of windowed keys."""
    return serde.window_bytes if isinstance(serde, _WindowedSerde) else 0


class _WindowedSerde(WrappingSerde[Windowed[K]]):
    __slots__ = ("_inner", "_join", "_split", "window_bytes")

    def __init__(
        self,
        name: str,
        inner: Serde[K],
        join: Callable[[bytes, Window], bytes],
        split: Callable[[bytes], tuple[bytes, Window]],
        window_bytes: int,
        detail: str = "",
    ) -> None:
        super().__init__(name, inner, immutable=inner.immutable, detail=detail, schema=inner.schema, registry_schema=inner.registry_schema)
        self._inner = inner
        self._join = join
        self._split = split
        self.window_bytes = window_bytes

    def serializer(self, topic: str, headers: CurrentHeaders | None = None) -> Callable[[Windowed[K]], bytes | None]:
        write, join = self._inner.serializer(topic, headers), self._join

        def windowed(key: Windowed[K]) -> bytes:
            if not isinstance(key, Windowed):
                raise TypeError(f"{self!r} takes a Windowed key, not {type(key).__name__}")
            data = write(key.key)
            if data is None:
                raise ValueError(f"{self!r}: the inner serde returned null for the key {key.key!r}")
            return join(data, key.window)

        return windowed

    def deserializer(self, topic: str, headers: CurrentHeaders | None = None) -> Callable[[bytes], Windowed[K]]:
        read, split = self._inner.deserializer(topic, headers), self._split

        def windowed(data: bytes) -> Windowed[K]:
            key, window = split(data)
            try:
                return Windowed(read(key), window)
            except Exception as error:
                note_place_in(data, 0, key, error)
                raise

        return windowed
