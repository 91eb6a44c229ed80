"""RocksDB stores written by Kafka Streams: which can be taken over, and from which offset.

Keys and values are the same bytes, and so are the families of key-value stores (`default`, `keyValueWithTimestamp`). The rest differs:

- Up to Kafka Streams 4.2 there is no family `offsets`; `.checkpoint` contains the offset (`runtime/changelog/adoption.py`).
- From 4.3 on (KIP-1035) there is one of the same format as ours, but it contains the offset that was *applied* last (of a global store: the
  next one), a `status` whether the store was closed, and a `position` for queries. Read as ours it would have one record applied twice. It
  is converted once, in one batch.
- Versioned stores have all their segments in `default`, with a prefix that ours do not have; window and session stores are elsewhere.
  Opened as they are, such stores would look empty, but be at the changelog's end. They are refused, so that they are restored.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from struct import Struct

from rocksdict import ColumnFamily, Rdict, WriteBatch

logger = logging.getLogger(__name__)

_STATUS, _POSITION = b"status", b"position"
_OFFSET = Struct(">q")
_CLOSED = 0


def take_over(
    db: Rdict, families: Mapping[str, Rdict], offsets: str, handle: ColumnFamily, read_here: Collection[str], *, next_offsets: bool
) -> str | None:
    """Check a store that was just opened, and convert one that Kafka Streams closed. Return why it cannot be taken over, or None.

    `offsets` names the family of offsets and `handle` is its handle; `read_here` names the families whose entries are read; `next_offsets`:
    offsets were written as the next one (global stores).
    """
    stored = dict(families[offsets].items())
    status = stored.get(_STATUS)
    if stored and status is None:
        return None
    unread = sorted(name for name, family in families.items() if name != offsets and name not in read_here and _has_entries(family))
    if unread:
        return f"Kafka Streams wrote it in a form that is not read here (column family {', '.join(unread)})"
    if status is None:
        return None
    if _OFFSET.unpack(status)[0] != _CLOSED:
        return "Kafka Streams did not close it, so what it holds is not known"
    batch = WriteBatch(raw_mode=True)
    for key, value in stored.items():
        offset = _OFFSET.unpack(value)[0] if key not in (_STATUS, _POSITION) else -1
        if offset >= 0:
            batch.put(key, _OFFSET.pack(offset if next_offsets else offset + 1), handle)
        else:
            batch.delete(key, handle)
    db.write(batch)
    logger.info("the store in %s was written by Kafka Streams and is taken over", db.path())
    return None


def _has_entries(family: Rdict) -> bool:
    return next(family.keys(), None) is not None
