"""Check of a store's files when it is opened: are they usable, and from which offset?

Penstock's stores keep their offsets with their entries (KIP-892). The `.checkpoint` file serves readers of closed stores and is never
compared with an open one. It is read here in one case: a store that has entries but no offset, written by Kafka Streams before it kept
offsets in stores (KIP-1035), or a custom store. Then

    .checkpoint has the offset       it is written into the store, once
    .checkpoint has none (-4)        the store is emptied and restored from the changelog's start, since its position is unknown

A new or emptied store never gets an offset: it would count as complete while it is empty.

Kafka Streams' windows and sessions are databases of their own under `<task>/<store>/`. They are not read but
removed, and the store is restored.

A store whose layout no longer matches the program is refused, because its entries would be misread. Two kinds are emptied and restored
instead: a store filled from a user's topic (a global store, a table that reuses its source topic), and one whose changelog was deleted
since. Files of a changelog that is gone are emptied by the restore anyway (rules.md, 13), so deleting the changelog is how an operator
begins a store that has changed, on all machines at once.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

from penstock.runtime.changelog.checkpoint import FILE_NAME, read_checkpoint
from penstock.runtime.changelog.staleness import known_until
from penstock.runtime.changelog.store_metadata import stored_topic_id
from penstock.runtime.model.errors import StateDirectoryError, StoreChangedError, by_reset
from penstock.runtime.model.ids import TopicPartition
from penstock.runtime.stores.base import EngineStore
from penstock.runtime.stores.layout import LAYOUT_META, changes, decode_layout, layout_with_versions
from penstock.runtime.stores.store_format import files_change

logger = logging.getLogger(__name__)


def take_up(
    directory: Path,
    store: EngineStore,
    belongs: Callable[[TopicPartition], bool] | None,
    remedy: str,
    *,
    of_source: bool = False,
    topic_id: Callable[[], str | None] = lambda: None,
) -> None:
    """Check a store just opened in `directory` (the task's, or `global`) and prepare it to be restored from its offset.

    `belongs`: whether the store is built from a partition, None for a store without a log; `of_source`: its log is a topic of the
    user's. `remedy`: for the message of a refusal. `topic_id` returns the id of the store's changelog now, None if that is unknown; it is
    called only for a store that has changed.
    Raises StoreChangedError, StateDirectoryError, and what `topic_id` raises.
    """
    if not store.persistent:
        return
    ours = store.layout.kind != "custom"
    if ours:
        _check_layout(store, remedy, topic_id, logged=belongs is not None, of_source=of_source)
        _remove_java_segments(directory, store.name)
    if belongs is not None and not any(belongs(partition) for partition in store.committed_offsets()) and store.has_entries():
        _migrate(directory, store, belongs)
    if ours:
        store.commit({})  # the layout, if it was not recorded yet


def _migrate(directory: Path, store: EngineStore, belongs: Callable[[TopicPartition], bool]) -> None:
    offsets = {partition: offset for partition, offset in read_checkpoint(directory).items() if belongs(partition)}
    known = {partition: offset for partition, offset in offsets.items() if offset is not None}
    if not offsets or len(known) < len(offsets):
        logger.warning("store %s in %s has entries of which no offset is known: it is emptied and restored", store.name, directory)
        store.wipe()
        return
    # Deletions on the changelog after the file was written are unknown.
    known_until(store, (directory / FILE_NAME).stat().st_mtime_ns // 1_000_000)
    store.commit(known)
    logger.info("store %s continues from %s", store.name, ", ".join(f"{each}@{offset} (.checkpoint)" for each, offset in known.items()))


def _remove_java_segments(directory: Path, name: str) -> None:
    folder = directory / name
    if not folder.is_dir() or not any(path.name.startswith(f"{name}.") for path in folder.iterdir()):
        return
    logger.warning("%s holds segments of store %s in Kafka Streams' form, which is not read: removed, the store is restored", folder, name)
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise StateDirectoryError(f"{folder}, which Kafka Streams left, cannot be removed: {error}") from error


def _check_layout(store: EngineStore, remedy: str, topic_id: Callable[[], str | None], *, logged: bool, of_source: bool) -> None:
    data = store.get_meta(LAYOUT_META)
    kept = None if data is None else decode_layout(data)
    if data is None or kept is None:
        return
    wanted, differences = store.layout, changes(data, store)
    # Segments are half a retention long, and found by their length.
    change = files_change(retention=kept.retention_ms != wanted.retention_ms, headers=kept.headers != wanted.headers)
    if change is not None and not logged:
        differences.append(f"{change}, so its files must be made again, and it has no changelog to make them from")
    # Opened as another kind of store it may look empty although it is not; its offsets show that.
    holds = store.has_entries() or any(store.committed_offsets().values())
    if differences and holds and not of_source and (reason := _changelog_gone(store, topic_id)) is not None:
        logger.warning("store %s has changed (%s) and is emptied, because its %s", store.name, ", and ".join(differences), reason)
        store.wipe()
    elif differences and holds and not of_source:
        raise StoreChangedError(f"store {store.name} has changed: {', and '.join(differences)}. What it holds would be misread. {remedy}")
    elif differences or change is not None:
        logger.warning("store %s is emptied and restored: its layout is another one now (%s, was %s)", store.name, wanted, kept)
        store.wipe()
    elif (now := layout_with_versions(store, data)) != data:
        store.set_meta(LAYOUT_META, now)


def _changelog_gone(store: EngineStore, topic_id: Callable[[], str | None]) -> str | None:
    """Return a message if the changelog that the store's files belong to was deleted since, else None."""
    known = stored_topic_id(store.get_meta)
    now = None if known is None else topic_id()
    return None if known is None or now is None or known == now else f"changelog was deleted: its topic id was {known} and is {now}"


def store_remedies(application_id: str, store: str, changelog: TopicPartition | None, directory: Path) -> str:
    """Return the remedies for a changed store of a task's folder, for messages."""
    kept = f"{directory / 'rocksdb' / store} on every machine" if changelog is None else f"its changelog {changelog.topic}"
    return (
        "Take the change back; or, where only a serde is called otherwise, name it as before (Serde(…, name=…)); or "
        "give the store another name, under which it begins empty; or begin this store empty: stop every instance "
        f"(penstock stop {application_id}), delete {kept}, and start; or build all state again: {by_reset(application_id)}"
    )
