"""An application with a store of each kind, and seeds made from its state on disk."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Literal

import msgspec

from penstock import serdes
from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.dsl.builder import StreamsBuilder
from penstock.runtime.dsl.options import Consumed, Grouped, Materialized
from penstock.runtime.dsl.windows import SessionWindows, TimeWindows
from penstock.runtime.model.ids import NextOffset, TaskId, TopicPartition, changelog_topic
from penstock.runtime.snapshots.local import write_snapshot
from penstock.runtime.snapshots.manifest import (
    MANIFEST,
    SNAPSHOT,
    ApplicationManifest,
    PartitionOffset,
    PartitionTime,
    SnapshotFile,
    StoreManifest,
    TaskManifest,
    encoded,
    files_in,
    read_manifest,
)
from penstock.runtime.stores import Stores
from penstock.runtime.stores.base import EngineStore, StoreContext, StoreLayout
from penstock.runtime.stores.custom import build_store
from penstock.runtime.stores.rocks_files import read_files, write_files
from penstock.runtime.topology.topology import Topology

MINUTE_MS = 60_000
STORES = ("tallies", "windows", "sessions", "versions")


class Tally(msgspec.Struct, frozen=True):
    """State of a key."""

    count: int = 0
    last: str = ""


def topology_of(source: str, table: str, *, more: bool = False) -> Topology:
    """Return sub-topology 0: a tally in JSON, tumbling windows and sessions of one topic, and `more`; and 1: the versions of another."""
    builder = StreamsBuilder()
    grouped = builder.stream(source, Consumed(serdes.STRING, value=serdes.STRING)).group_by_key(Grouped(serdes.STRING, value=serdes.STRING))
    grouped.aggregate(
        Tally, lambda _key, value, tally: Tally(tally.count + 1, value), Materialized("tallies", value=serdes.json(Tally), caching=False)
    )
    grouped.windowed_by(TimeWindows.of_size_and_grace(timedelta(minutes=1), timedelta(minutes=1))).count(
        Materialized("windows", retention=timedelta(hours=1), caching=False)
    )
    grouped.windowed_by(SessionWindows.of_inactivity_gap_and_grace(timedelta(seconds=20), timedelta(minutes=1))).count(
        Materialized("sessions", retention=timedelta(hours=1), caching=False)
    )
    if more:
        grouped.count(Materialized("more"))
    supplier = Stores.persistent_versioned_key_value_store("versions", timedelta(minutes=10))
    builder.table(table, Consumed(serdes.STRING, value=serdes.STRING), Materialized(supplier))
    return builder.build()


def build() -> Topology:
    """Return the topology of the processes."""
    return topology_of(os.environ["TEST_SOURCE"], os.environ["TEST_TABLE"])


def config_of(application_id: str, bootstrap_servers: str, state_dir: Path, settings: Mapping[str, object] | None = None) -> StreamsConfig:
    known = {"application.id": application_id, "bootstrap.servers": bootstrap_servers, "state.dir": str(state_dir), "client.id": "one"}
    return StreamsConfig({**known, **(settings or {})})


def make_seed(
    root: Path,
    seed: str,
    topology: Topology,
    former: StreamsConfig,
    inputs: Mapping[TopicPartition, int],
    *,
    kind: Literal["snapshot", "seed"] = "seed",
    stream_time: int = 0,
) -> Path:
    """Make a seed with the store entries that the closed application `former` has on its disk, without any other metadata of its stores,
    as if Spark had written them. `inputs`: next offsets."""
    parts, places = [], {}
    for part in topology.resolved(former).sub_topologies():
        partitions = sorted({partition.partition for partition in inputs if partition.topic in part.source_topics})
        for number in partitions:
            task = TaskId(part.id, number)
            own = {
                each: NextOffset(offset) for each, offset in inputs.items() if each.topic in part.source_topics and each.partition == number
            }
            place = root / seed / str(task)
            place.mkdir(parents=True)
            stores = [_write_store(place, former, task, build_store(builder).layout, builder.name) for builder in part.stores]
            files = [SnapshotFile(str(path.relative_to(place)), path.stat().st_size) for path in place.rglob("*") if path.is_file()]
            manifest = TaskManifest(
                application=former.application_id,
                snapshot=seed,
                task=str(task),
                at_ms=1_000,
                stream_time=stream_time,
                input_offsets=PartitionOffset.of(own),
                partition_times=[PartitionTime(each.topic, each.partition, stream_time) for each in own],
                stores=stores,
                files=files,
            )
            (place / MANIFEST).write_bytes(encoded(manifest))
            parts.append(manifest.summary)
            places[str(task)] = str(task)
    (root / seed / SNAPSHOT).write_bytes(encoded(ApplicationManifest.of(parts, places, kind=kind)))
    return root / seed


def seed_of_counts(root: Path, source: str, counts: dict[str, int], next_offset: int) -> Path:
    """Make a seed for a count of a topic of two partitions, in the store `counts`: all entries in partition 0, at this next offset."""
    parts = []
    for number in (0, 1):
        place = root / "seed" / f"0_{number}"
        place.mkdir(parents=True)
        rows = [(key.encode(), (1_000).to_bytes(8, "big") + count.to_bytes(8, "big")) for key, count in sorted(counts.items())]
        write_files(place / "counts", {"keyValueWithTimestamp": rows if number == 0 else []}, {}, {})
        store = StoreManifest(
            name="counts",
            kind="key_value",
            timestamped=True,
            persistent=True,
            directory="counts",
            key_format="STRING",
            value_format="LONG",
            changelog=None,
        )
        inputs = [PartitionOffset(source, number, next_offset if number == 0 else 0)]
        part = TaskManifest(
            application="spark",
            snapshot="s1",
            task=f"0_{number}",
            at_ms=1,
            stream_time=1_000,
            input_offsets=inputs,
            stores=[store],
            files=files_in(place),
        )
        (place / MANIFEST).write_bytes(encoded(part))
        parts.append(part.summary)
    (root / "seed" / SNAPSHOT).write_bytes(encoded(ApplicationManifest.of(parts, {part.task: part.task for part in parts}, kind="seed")))
    return root / "seed"


def take_snapshot(
    root: Path, snapshot: str, topology: Topology, config: StreamsConfig, inputs: Mapping[TopicPartition, int], at_ms: int
) -> Path:
    """Make a snapshot of a closed application: its stores as they are on its disk."""
    folder, parts, places = config.state_dir / config.application_id, [], {}
    for part in topology.resolved(config).sub_topologies():
        for number in sorted({partition.partition for partition in inputs if partition.topic in part.source_topics}):
            task = TaskId(part.id, number)
            stores: dict[EngineStore, TopicPartition | None] = {}
            for builder in part.stores:
                store, log = build_store(builder), TopicPartition(changelog_topic(config.application_id, builder.name), number)
                store.open(folder / str(task), StoreContext(config.application_id, folder / str(task), task, log))
                stores[store] = log
            own = {
                each: NextOffset(offset) for each, offset in inputs.items() if each.topic in part.source_topics and each.partition == number
            }
            place = write_snapshot(
                root, snapshot, application=config.application_id, task=task, stores=stores, input_offsets=own, stream_time=0, at_ms=at_ms
            )
            for store in stores:
                store.close()
            parts.append(read_manifest(place).summary)
            places[str(task)] = str(task)
    (root / snapshot / SNAPSHOT).write_bytes(encoded(ApplicationManifest.of(parts, places)))
    return root / snapshot


def _write_store(place: Path, former: StreamsConfig, task: TaskId, layout: StoreLayout, name: str) -> StoreManifest:
    families: dict[str, list[tuple[bytes, bytes]]] = {}
    for family, batch in read_files(former.state_dir / former.application_id / str(task) / "rocksdb" / name):
        families.setdefault(family, []).extend(batch)
    write_files(place / name, families, {}, {})
    return StoreManifest(
        name=name,
        kind=layout.kind,
        timestamped=layout.timestamped,
        persistent=True,
        directory=name,
        key_format=layout.key_serde,
        value_format=layout.value_serde,
        changelog=None,
        window_size_ms=layout.window_size_ms,
        retention_ms=layout.retention_ms,
        segment_ms=layout.segment_ms,
        duplicates=layout.duplicates,
    )


def entries(folder: Path) -> dict[str, dict[bytes, bytes]]:
    """Return the entries of a closed store by column family, without empty ones."""
    found: dict[str, dict[bytes, bytes]] = {}
    for family, batch in read_files(folder):
        found.setdefault(family, {}).update(batch)
    return {family: rows for family, rows in found.items() if rows}
