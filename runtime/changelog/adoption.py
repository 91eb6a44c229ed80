"""What is found of a store when it is opened: may it be gone on with, and from which offset?

Our stores keep their offsets with their entries (KIP-892), so nothing has to be asked for them: the `.checkpoint` file is written for
those who look at closed stores, and an open store is never compared with it. It is read here in one case, a store that has entries but no
offset: one that Kafka Streams wrote before it kept offsets in stores (KIP-1035), or one of a user's own. Then

    .checkpoint knows the offset     it is taken into the store, once: the store returns it from then on
    .checkpoint does not (-4)        the store is emptied and restored from the changelog's start: what it holds is not known

A store that is new, or that was emptied, is never given an offset: it would count as full with nothing in it.

Kafka Streams' windows and sessions are databases of their own under `<task>/<store>/`. They are not read here; they are removed, since
otherwise nobody would, and the store is restored.

A store whose program has changed, so that its entries would be misread, is refused: it knows its own layout.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

from runtime.changelog.checkpoint import FILE_NAME, read_checkpoint
from runtime.changelog.staleness import known_until
from runtime.errors import StateDirectoryError, StoreChangedError
from runtime.ids import Partition
from runtime.stores.base import EngineStore
from runtime.stores.layout import KEPT_LAYOUT, decode_layout, differences

logger = logging.getLogger(__name__)


def take_up(directory: Path, store: EngineStore, belongs: Callable[[Partition], bool] | None, way_out: str) -> None:
    """Looks at a store that was just opened in `directory` (the task's, or `global`) and makes it fit to be restored from its offset.

    `belongs` tells which partitions the store is built from, None for a store without a log; `way_out` is told when it is refused.
    Raises StoreChangedError, StateDirectoryError.
    """
    if not store.persistent:
        return
    ours = store.layout.kind != "custom"
    if ours:
        _check_layout(store, way_out)
        _remove_java_segments(directory, store.name)
    if belongs is not None and not any(belongs(partition) for partition in store.committed_offsets()) and store.has_entries():
        _migrate(directory, store, belongs)
    if ours:
        store.commit({})  # the layout, where it was not kept yet


def _migrate(directory: Path, store: EngineStore, belongs: Callable[[Partition], bool]) -> None:
    offsets = {partition: offset for partition, offset in read_checkpoint(directory).items() if belongs(partition)}
    known = {partition: offset for partition, offset in offsets.items() if offset is not None}
    if not offsets or len(known) < len(offsets):
        logger.warning("store %s in %s has entries of which no offset is known: it is emptied and restored", store.name, directory)
        store.wipe()
        return
    # What was deleted from the changelog after the file was written is not known here.
    known_until(store, (directory / FILE_NAME).stat().st_mtime_ns // 1_000_000)
    store.commit(known)
    logger.info("store %s goes on from %s", store.name, ", ".join(f"{each}@{offset} (.checkpoint)" for each, offset in known.items()))


def _remove_java_segments(directory: Path, name: str) -> None:
    folder = directory / name
    if not folder.is_dir() or not any(path.name.startswith(f"{name}.") for path in folder.iterdir()):
        return
    logger.warning("%s holds segments of store %s in Kafka Streams' form, which is not read: removed, the store is restored", folder, name)
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise StateDirectoryError(f"{folder}, which Kafka Streams left, cannot be removed: {error}") from error


def _check_layout(store: EngineStore, way_out: str) -> None:
    data = store.get_meta(KEPT_LAYOUT)
    kept = None if data is None else decode_layout(data)
    if kept is None:
        return
    wanted = store.layout
    changes = differences(kept, wanted)
    # As another kind of store it may look empty although it is not; its offsets tell.
    if changes and (store.has_entries() or any(store.committed_offsets().values())):
        raise StoreChangedError(f"store {store.name} has changed: {', and '.join(changes)}. What it holds would be misread. {way_out}")
    if changes or kept.retention_ms != wanted.retention_ms:  # segments are half a retention long, and found by their length
        logger.warning("store %s is emptied and restored: its layout is another one now (%s, was %s)", store.name, wanted, kept)
        store.wipe()


def reset_hint(application_id: str, servers: object, topic: str | None) -> str:
    """The ways out of a store that has changed. `topic`: its changelog, if it has one."""
    delete = "" if topic is None else f", delete its changelog (kafka-topics --bootstrap-server {servers} --delete --topic {topic})"
    return (
        "Give the store another name; or, where only a serde is called otherwise, name it as before (Serde(…, name=…)); or take the "
        "change back; or build it anew: stop every instance, delete the local state "
        f"(KafkaStreams.clean_up()){delete}, and set the input back with kafka-consumer-groups --bootstrap-server {servers} "
        f"--group {application_id} --reset-offsets --to-earliest"
    )
