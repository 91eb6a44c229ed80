"""Raw messages without a broker, for tests where order must be controlled."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Raw:
    """The fields of a confluent-kafka `Message` that the engine reads."""

    at: int
    raw_key: bytes | None = b"k"
    raw_value: bytes | None = b"v"
    time: int = 0
    raw_headers: list[tuple[str, bytes]] | None = None
    of: str = "t"
    number: int = 0

    def topic(self) -> str:
        return self.of

    def partition(self) -> int:
        return self.number

    def offset(self) -> int:
        return self.at

    def key(self) -> bytes | None:
        return self.raw_key

    def value(self) -> bytes | None:
        return self.raw_value

    def timestamp(self) -> tuple[int, int]:
        return (1, self.time)

    def headers(self) -> list[tuple[str, bytes]] | None:
        return self.raw_headers
