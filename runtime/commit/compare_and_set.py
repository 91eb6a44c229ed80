"""Compare-and-set for committed offsets: write an offset only if no other client changes it at the same time (rules.md, 20).

The group of an application has no members, so any client may set its offsets at any time: that is how an operator skips a record. When the
engine writes the offset of a partition that it does not process (to keep it from expiring, or for a run-book), it must not undo such a
change. Kafka has no compare-and-set of offsets, but its log of offsets has one order, and that is enough:

    read the committed offset ─► send our offset into the open transaction ─► read again; if it moved, send the one found ─► commit

An offset in an open transaction hides nothing: the second read returns what others have set. An offset that they set before our write is
found by that read, and sent in place of ours. One that they set after our write follows it on the log, and so it holds, even if our
transaction is committed later (measured).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from penstock.runtime.model.ids import TopicPartition
from penstock.runtime.model.offsets import OffsetAndMetadata

Offsets = Mapping[TopicPartition, OffsetAndMetadata]


class CompareAndSet:
    """Offsets for the next commit, each written only if `expected` is still the committed one."""

    def __init__(self, wanted: Offsets, expected: Offsets, read_committed: Callable[[Iterable[TopicPartition]], Offsets]) -> None:
        """`read_committed` reads committed offsets from the broker, without those of open transactions."""
        self._wanted = wanted
        self._expected = dict(expected)
        self._read_committed = read_committed
        self.moved: dict[TopicPartition, OffsetAndMetadata] = {}
        """Offsets that were set from outside in the meantime; they stay."""

    def __bool__(self) -> bool:
        return bool(self._wanted)

    def write(self, send: Callable[[Offsets], None]) -> None:
        """Send the wanted offsets into the open transaction. Raises what `send` and `read_committed` raise."""
        send(self._wanted)
        while moved := self._found_moved():
            self.moved.update(moved)
            self._expected.update(moved)
            send(moved)

    def _found_moved(self) -> dict[TopicPartition, OffsetAndMetadata]:
        return {partition: at for partition, at in self._read_committed(self._wanted).items() if at != self._expected.get(partition)}
