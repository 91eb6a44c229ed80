"""The format of a store's entries: the content of a store and its changelog, in every version that may have written them.

It is recorded for the whole application on the coordination topic, in each store's own files, and in seeds. All of them use
`store_changes`.
"""

from __future__ import annotations

import msgspec

from penstock.runtime.serdes.key_changes import key_changes
from penstock.runtime.serdes.serde_format import SerdeFormat, format_removals, versions_changes, with_version


class StoreFormat(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`keys`, `values`: the formats that entries may have, the last version's last. The rest is as in `StoreLayout`; `starts`: where
    windows start, empty if unknown; `ttl_ms`: time to live of entries, None if they do not expire."""

    timestamped: bool
    keys: tuple[SerdeFormat, ...]
    values: tuple[SerdeFormat, ...]
    window_size_ms: int | None = None
    retention_ms: int | None = None
    segment_ms: int | None = None
    duplicates: bool = False
    headers: bool = False
    starts: str = ""
    ttl_ms: int | None = None


def store_changes(written: StoreFormat, now: StoreFormat) -> list[str]:
    """Describe why entries of the first format cannot be read as the second, or mean something else there; empty if they can. Retention,
    time to live and headers are compared separately: they decide which entries are kept, and how in the files, not what they mean."""
    found = []
    if written.timestamped != now.timestamped:
        found.append(f"its values were kept {_time(written)} and would be read {_time(now)}")
    found += [_said("keys", text) for text in key_changes(written.keys, now.keys[-1])]
    found += [_said("values", text) for text in versions_changes(written.values, now.values[-1])]
    if written.window_size_ms != now.window_size_ms:
        found.append(f"its windows were of {written.window_size_ms} ms and are of {now.window_size_ms} ms now")
    if written.duplicates != now.duplicates:
        found.append("it is a window store of a join in one of the two versions, and not in the other")
    if written.starts and now.starts and written.starts != now.starts:
        found.append(f"its windows started {written.starts} and start {now.starts} now")
    return found


def retention_changed(written: StoreFormat, now: StoreFormat) -> bool:
    """Return True if the segments of the store are different now."""
    return (written.retention_ms, written.segment_ms) != (now.retention_ms, now.segment_ms)


def files_change(*, retention: bool, headers: bool) -> str | None:
    """Return a message if the store's files must be restored from the changelog, because one of the two has changed, else None."""
    if retention:
        return "its retention has changed"
    return "it keeps headers in one of the two versions, and not in the other" if headers else None


def accepted_changes(written: StoreFormat, now: StoreFormat) -> list[str]:
    """Return warnings about a change that is accepted."""
    found = []
    if written.values and now.values and (gone := format_removals(written.values[-1], now.values[-1])):
        found.append(f"field {', '.join(gone)} of its values is not read any more, and is gone where a value is written again")
    before, after = written.retention_ms, now.retention_ms
    if before is not None and after is not None and before < after:
        found.append(
            f"its retention was {before} ms and is {after} ms now: what has expired by the former is gone, so a late record for such a "
            "time begins it again"
        )
    elif before is not None and after is not None and before > after:
        found.append(f"its retention was {before} ms and is {after} ms now: what is older is gone")
    if written.ttl_ms != now.ttl_ms:
        found.append(f"its time to live was {_ttl(written)} and is {_ttl(now)} now: {_changed_ttl(written.ttl_ms, now.ttl_ms)}")
    if written.headers and not now.headers:
        found.append("its values had headers, which are not read any more, and are gone where a value is written again")
    return found


def _ttl(form: StoreFormat) -> str:
    return "unlimited" if form.ttl_ms is None else f"{form.ttl_ms} ms"


def _changed_ttl(before: int | None, after: int | None) -> str:
    if before is None or (after is not None and after < before):
        return "entries that are older expire"
    return "entries that have expired by the former stay gone"


def with_versions(written: StoreFormat, now: StoreFormat) -> StoreFormat:
    """Return the format of a store that holds entries of the first and receives entries of the second."""
    return msgspec.structs.replace(now, keys=with_version(written.keys, now.keys[-1]), values=with_version(written.values, now.values[-1]))


def _said(part: str, text: str) -> str:
    return f"its {part} {text}" if text.startswith("were ") else f"its {part}: {text}"


def _time(form: StoreFormat) -> str:
    return "with a timestamp" if form.timestamped else "without a timestamp"
