"""Serdes of windowed keys on topics (Kafka Streams' `TimeWindowedSerializer`, `SessionWindowedSerializer`)."""

from __future__ import annotations

from datetime import timedelta

from runtime.durations import to_ms
from runtime.record import Window, Windowed
from runtime.serdes import keys
from runtime.serdes.serde import CurrentHeaders, Deserializer, Serde, Serializer


def time_windowed(inner: Serde, window_size: timedelta | int) -> Serde:
    """Keys of time windows: the inner key's bytes, then the window's start as int64. The end is `start + window_size` (ms or timedelta);
    it is not in the bytes."""
    return _WindowedSerde("time_windowed", inner, to_ms(window_size))


class _WindowedSerde(Serde):
    __slots__ = ("_inner", "_size")

    def __init__(self, name: str, inner: Serde, size: int) -> None:
        full_name = f"{name}({inner.name})"
        super().__init__(self._write_with, self._read_with, immutable=inner.immutable, declares=inner.declares, name=full_name)
        self._inner = inner
        self._size = size

    def serializer(self, topic: str, headers: CurrentHeaders | None = None) -> Serializer:
        write = self._inner.serializer(topic, headers)

        def windowed(key: object) -> bytes:
            if not isinstance(key, Windowed):
                raise TypeError(f"{self!r} takes a Windowed key, not {type(key).__name__}")
            data = write(key.key)
            if data is None:
                raise ValueError(f"{self!r}: the inner serde made null of the key {key.key!r}")
            return keys.windowed_key(data, key.window.start)

        return windowed

    def deserializer(self, topic: str, headers: CurrentHeaders | None = None) -> Deserializer:
        read, size = self._inner.deserializer(topic, headers), self._size

        def windowed(data: bytes) -> object:
            key, start = keys.split_windowed_key(data)
            return Windowed(read(key), Window(start, start + size))

        return windowed

    def _write_with(self, topic: str, headers: object, data: object) -> bytes | None:
        return self.serializer(topic)(data)

    def _read_with(self, topic: str, headers: object, data: bytes) -> object:
        return self.deserializer(topic)(data)
