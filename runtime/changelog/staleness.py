"""Staleness of a store's content.

A compacted topic serves every fetch of an old offset without an error, even if tombstones in between were removed: a reader that was away
for longer than `delete.retention.ms` never sees these deletions and keeps keys forever that the topic no longer has. A topic that was
deleted and created again gives no error either, once it is longer than the reader's offset. So each store keeps, with its offsets, the id
of their topic and the last time at which it had read everything (rules.md, 13).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.runtime.changelog.store_metadata import AT_END_MS, encode_changelog_end, stage, stored_topic_id
from penstock.runtime.model.ids import NextOffset, TopicPartition
from penstock.runtime.stores.base import EngineStore

if TYPE_CHECKING:
    from penstock.runtime.input.deserialization import Decoder


@dataclass(frozen=True, slots=True)
class Changelog:
    """A partition that a store is restored from, at one point in time.

    `end` is the offset to restore up to; for a changelog it is taken after the previous owner was fenced (rules.md, 22).
    `delete_retention_ms` is None where the topic is not compacted.

    `source` is for a source topic that serves as changelog: how its records are read. Its `end` is the committed offset, since
    records beyond it are the task's input; it has no retention, because the task itself looks for missed deletions.
    """

    partition: TopicPartition
    end: NextOffset
    topic_id: str
    delete_retention_ms: int | None
    source: Callable[[], Decoder] | None = None


def mark_at_end(store: EngineStore, topic_id: str, now_ms: int) -> None:
    """Record that the store holds everything on the topic at `now_ms`; written with its next commit."""
    stage(store, encode_changelog_end(topic_id, now_ms))


def known_until(store: EngineStore, at_ms: int) -> None:
    """Record that the store had seen all deletions at `at_ms`, of a topic with unknown id; written with its next commit."""
    store.set_meta(AT_END_MS, b"%d" % at_ms)


def recreation_reason(log: Changelog, known_id: str) -> str | None:
    """Return a message if `log` is another topic than the one of `known_id`, else None."""
    if known_id == log.topic_id:
        return None
    return f"topic {log.partition.topic} was deleted and created again: its id was {known_id} and is {log.topic_id}"


def stale_reason(store: EngineStore, log: Changelog, now_ms: int) -> str | None:
    """Return a message why the store must be wiped and restored from the log's start; None if it can continue at its offset."""
    start = store.committed_offset(log.partition)
    return None if start is None else stale_reason_of(start, store.get_meta, log, now_ms)


def stale_reason_of(start: NextOffset, meta: Callable[[str], bytes | None], log: Changelog, now_ms: int) -> str | None:
    """Return `stale_reason` for content at offset `start`, with its metadata by name."""
    known_id = stored_topic_id(meta)
    if known_id is not None and (reason := recreation_reason(log, known_id)) is not None:
        return reason
    if start > log.end:
        return f"the store is at offset {start} of {log.partition}, which ends at {log.end}"
    at_end = meta(AT_END_MS)
    # Nothing was appended since, so nothing was deleted either.
    if start == log.end or at_end is None or log.delete_retention_ms is None:
        return None
    age_ms = now_ms - int(at_end)
    if age_ms > log.delete_retention_ms:
        return (
            f"the store was last at the end of {log.partition} {age_ms} ms ago, longer than the topic's delete.retention.ms of "
            f"{log.delete_retention_ms}: deletions since then may have been cleaned away"
        )
    return None
