"""Offsets that are written only if nobody else writes them at the same time (rules.md, 20).

The group of an application has no members, so anybody may set its offsets at any time: that is how an operator skips a record. When the
engine writes the offset of a partition that it does not process (to keep it from expiring, or for a run-book), it must not undo what was
set a moment before. Kafka has no compare-and-set of offsets, but its log of offsets has one order, and that is enough:

    read what is committed ─► send our offset into the open transaction ─► look again, and send what is found if it moved ─► commit

An offset in a transaction that is not committed yet hides nothing: a look sees what others have set. What they set before our write is
found by the look, and sent in its place; what they set after our write stands behind it on the log, and so it holds, even if our
transaction is committed later (measured: kafka-facts, B).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from runtime.commit.metadata import OffsetAndMetadata
from runtime.ids import Partition

Offsets = Mapping[Partition, OffsetAndMetadata]


class CompareAndSet:
    """Offsets to be written in the next commit, each only if what is `expected` is still committed."""

    def __init__(self, wanted: Offsets, expected: Offsets, look: Callable[[Iterable[Partition]], Offsets]) -> None:
        """`look` asks the broker for committed offsets, without those of open transactions."""
        self._wanted = wanted
        self._expected = dict(expected)
        self._look = look
        self.moved: dict[Partition, OffsetAndMetadata] = {}
        """What somebody else has set instead; it stands."""

    def __bool__(self) -> bool:
        return bool(self._wanted)

    def write(self, send: Callable[[Offsets], None]) -> None:
        """Sends into the open transaction what shall be committed. Raises what `send` and `look` do."""
        send(self._wanted)
        while moved := self._found_moved():
            self.moved.update(moved)
            self._expected.update(moved)
            send(moved)

    def _found_moved(self) -> dict[Partition, OffsetAndMetadata]:
        return {partition: at for partition, at in self._look(self._wanted).items() if at != self._expected.get(partition)}
