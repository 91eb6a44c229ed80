"""May what a store holds still be built upon?

A compacted topic answers every fetch of an old offset without an error, even when tombstones in between have been cleaned away: a
reader that was gone for longer than `delete.retention.ms` never hears of the deletions, and keeps keys for ever that the topic no
longer has. Nor does a topic that was deleted and made anew give an error, once it is longer than the reader's offset. So each store
keeps, beside its offsets, the id of the topic that they belong to and the last moment at which it had read all of it (rules.md, 13).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from runtime.ids import NextOffset, Partition

if TYPE_CHECKING:
    from runtime.intake.verdict import Decoder

ChangelogRecord = tuple[bytes, bytes | None, int]
"""Key, value (None is a tombstone), timestamp in ms: as they stand on the changelog."""

_TOPIC_ID = "topic.id"
_AT_END_MS = "at.end.ms"


class RestorableStore(Protocol):
    """What reading a log into a store needs of it; every engine store has it."""

    @property
    def name(self) -> str: ...

    @property
    def folded_by_key(self) -> bool:
        """True if only the last record of a key counts."""
        ...

    def restore(self, records: Sequence[ChangelogRecord], offsets: Mapping[Partition, NextOffset]) -> None: ...

    def committed_offset(self, partition: Partition) -> NextOffset | None: ...

    def get_meta(self, name: str) -> bytes | None: ...

    def set_meta(self, name: str, value: bytes) -> None: ...

    def commit(self, offsets: Mapping[Partition, NextOffset]) -> None: ...

    def wipe(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Changelog:
    """A partition that a store is built from, as it was at one moment.

    `end` is the offset to restore up to; for a changelog it is taken after the previous owner was fenced (rules.md, 22).
    `delete_retention_ms` is None where the topic is not compacted.

    `source` is for a source topic that serves as changelog: how its records are read. Its `end` is the committed offset, since what
    lies beyond is the task's input; and it tells no retention, because the task itself looks for deletions that it has missed.
    """

    partition: Partition
    end: NextOffset
    topic_id: str
    delete_retention_ms: int | None
    source: Callable[[], Decoder] | None = None


def mark_at_end(store: RestorableStore, topic_id: str, now_ms: int) -> None:
    """Notes that at `now_ms` the store holds all that the topic has; written with the store's next commit. The only writer of a
    changelog is at its end at each commit, without reading."""
    for name, value in metas_at_end(topic_id, now_ms).items():
        store.set_meta(name, value)


def metas_at_end(topic_id: str, now_ms: int) -> dict[str, bytes]:
    """What `mark_at_end` writes."""
    return {_TOPIC_ID: topic_id.encode(), _AT_END_MS: b"%d" % now_ms}


def kept_topic_id(metas: Mapping[str, bytes]) -> str | None:
    """The id of the topic to which a store's offsets belong, of its metas."""
    known = metas.get(_TOPIC_ID)
    return None if known is None else known.decode()


def known_until(store: RestorableStore, at_ms: int) -> None:
    """Notes that the store knew of all deletions at `at_ms`, of a topic whose id is not known; written with its next commit."""
    store.set_meta(_AT_END_MS, b"%d" % at_ms)


def made_anew(log: Changelog, known_id: str) -> str | None:
    """Why what was read under `known_id` says nothing of `log`, in words; None if the topic is the same."""
    if known_id == log.topic_id:
        return None
    return f"topic {log.partition.topic} was deleted and created again: its id was {known_id} and is {log.topic_id}"


def stale_reason(store: RestorableStore, log: Changelog, now_ms: int) -> str | None:
    """Why the store has to be wiped and restored from the log's start, in words; None if it can go on from its offset."""
    start = store.committed_offset(log.partition)
    return None if start is None else stale_reason_of(start, store.get_meta, log, now_ms)


def stale_reason_of(start: NextOffset, meta: Callable[[str], bytes | None], log: Changelog, now_ms: int) -> str | None:
    """`stale_reason` of what is at offset `start`; `meta` gives what is known beside it, by name."""
    known_id = meta(_TOPIC_ID)
    if known_id is not None and (reason := made_anew(log, known_id.decode())) is not None:
        return reason
    if start > log.end:
        return f"the store is at offset {start} of {log.partition}, which ends at {log.end}"
    at_end = meta(_AT_END_MS)
    # Nothing was appended since: then nothing was deleted either, however long ago that is.
    if start == log.end or at_end is None or log.delete_retention_ms is None:
        return None
    age_ms = now_ms - int(at_end)
    if age_ms > log.delete_retention_ms:
        return (
            f"the store was last at the end of {log.partition} {age_ms} ms ago, longer than the topic's delete.retention.ms of "
            f"{log.delete_retention_ms}: deletions since then may have been cleaned away"
        )
    return None
