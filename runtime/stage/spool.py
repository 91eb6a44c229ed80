"""Records of one partition on the local disk, between the brokers and a stage.

A file is a sequence of runs: length of the run (uint32, big-endian), then MessagePack of (offsets, keys, values, timestamps, headers).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from struct import Struct
from types import TracebackType

import msgspec

from penstock.runtime.input.columns import RawColumns
from penstock.runtime.input.deserialization import RawMessage
from penstock.runtime.model.ids import TopicPartition

RUN = 1_000
"""Records of a run."""
_LENGTH = Struct(">I")
_Columns = tuple[list[int], list[bytes | None], list[bytes | None], list[int], list[list[tuple[str, bytes | None]] | None] | None]


class SpoolWriter:
    """Writes a new file; a context manager."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("xb")
        self._encode = msgspec.msgpack.Encoder().encode
        self.records = 0

    def write(self, messages: Sequence[RawMessage]) -> None:
        """Append records, whose offsets rise."""
        for start in range(0, len(messages), RUN):
            run = messages[start : start + RUN]
            headers = [message.headers() or None for message in run]
            data = self._encode(
                (
                    [message.offset() for message in run],
                    [message.key() for message in run],
                    [message.value() for message in run],
                    [message.timestamp()[1] for message in run],
                    headers if any(headers) else None,
                )
            )
            self._file.write(_LENGTH.pack(len(data)) + data)
        self.records += len(messages)

    def __enter__(self) -> SpoolWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._file.close()


def spooled(path: Path, partition: TopicPartition) -> Iterator[RawColumns]:
    """Yield the runs of a file."""
    decode = msgspec.msgpack.Decoder(_Columns).decode
    with path.open("rb") as file:
        while head := file.read(_LENGTH.size):
            offsets, keys, values, timestamps, headers = decode(file.read(_LENGTH.unpack(head)[0]))
            yield RawColumns(*partition, offsets, keys, values, timestamps, headers)
