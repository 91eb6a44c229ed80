"""Incremental changelog tables: a run reads the records since the last run and merges them into its rows.

The state that a run needs from the last one is kept in the folder of the table's version, so the step that makes the version current
makes its state current too:

    <version>/_changelog/rows/         the rows as they were decoded, with their raw keys; of versions the deletions too (Parquet)
                         state.json    `KeptState`: offsets, stream times, the topic's id, when; written last

A version without `state.json` has no state, whatever other files exist. A run that fails or is killed leaves a folder beside the
versions, which the next run removes; the current version stays unchanged.

Merging is by raw key: the last record of each key replaces the earlier row, a tombstone removes it. So only new records are decoded.
The result equals that of reading the whole topic if the topic still contains all changes since the last run. In these cases it does
not, and the run reads the whole topic again:

  - the topic was created again: it has another id, or ends before the last run's offsets;
  - its start is beyond those offsets: records in between were deleted;
  - the last run is older than `delete.retention.ms`, and there are new records: tombstones may already be gone (rules.md, 13);
  - the store is a different one, or is to be decoded differently.

Rejected: merging into the table itself, without separate state. The table has no deletions, without which a version that arrives late
has no end, and no bytes of malformed keys; and users may rename its columns.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock.assets.spark.changelog import fold
from penstock.assets.spark.changelog.kafka_options import connector_options
from penstock.assets.spark.changelog.log_range import LogRange, log_range, require_whole
from penstock.assets.spark.changelog.store_log import StoreLog
from penstock.assets.spark.types.formats import MALFORMED
from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.model.clock import Clock, SystemClock
from penstock.runtime.model.errors import StateDirectoryError
from penstock.runtime.stores.base import StoreSchemas

FOLDER = "_changelog"
"""Folder in that of a table's version. Spark ignores names that start with an underscore."""
_STATE, _ROWS = "state.json", "rows"
_NO_VERSION = "there is no version to build upon"


class KeptState(msgspec.Struct, frozen=True, kw_only=True):
    """Position at which a run stopped. `offsets`: the next one per partition; `stream_times` and `at_ms` are ms; `at_ms` is a time before
    the end offsets were requested. `schemas` are those that decoded the rows: for undeclared JSON, the inferred ones."""

    version: Literal[2] = 2
    log: StoreLog
    schemas: StoreSchemas
    topic_id: str
    offsets: dict[int, int]
    stream_times: dict[int, int]
    at_ms: int


@dataclass(slots=True)
class ChangelogRun:
    """Result of a run. `kind`: the whole topic was read; or new records were merged; or there were none, and there is nothing to
    write. `reason` explains the kind. `rows`: lazy, as `formats.row_schema`; read them before `save`. The other fields are as in
    `ChangelogTable`. A context manager: on exit, it removes what was not saved."""

    kind: Literal["full", "merged", "unchanged"]
    reason: str
    rows: DataFrame
    offsets: Mapping[int, int]
    stream_times: Mapping[int, int]
    notes: tuple[str, ...]
    state: KeptState
    _written: Path | None
    """Location of the run's state; None if nothing was written."""
    _version: Path
    """Version that the state belongs to: the new one, or the last one if there are no new records."""

    def save(self, version: Path) -> None:
        """Put the run's state into the folder of the new version, which must exist. Call it before that version becomes the current one."""
        assert self._written is not None, "nothing came: there is no new version"
        place = version / FOLDER
        shutil.rmtree(place, ignore_errors=True)
        self._written.rename(place)
        self._written = None

    def confirm(self) -> None:
        """If there were no new records, record the present time in the state of the current version."""
        _write(self._version / FOLDER, self.state)

    def __enter__(self) -> ChangelogRun:
        return self

    def __exit__(self, *_: object) -> None:
        """Remove files of the run that were not saved."""
        if self._written is not None:
            shutil.rmtree(self._written, ignore_errors=True)


def run(
    spark: SparkSession,
    log: StoreLog,
    config: Mapping[str, object],
    previous: Path | None,
    version: Path,
    clock: Clock | None = None,
) -> ChangelogRun:
    """Return the store's rows at the current end of its topic.

    `previous` is the folder of the current version, None if there is none; `version` that of the new one. The rows are written beside
    it, and read from there. Raises like `read_changelog`, and StateDirectoryError if the disk cannot be written.
    """
    at_ms = (clock or SystemClock()).wall_ms()
    found = log_range(log, config)
    before = None if previous is None else read_state(previous)
    reason = rebuild_reason(before, log, found, at_ms)
    if before is None or previous is None or reason is not None:
        return _Run(spark, log, config, require_whole(log, found), version, at_ms).full(reason or _NO_VERSION)
    made = _Run(spark, log, config, found.since(before.offsets), version, at_ms).merged(before, previous)
    if made is not None:
        return made
    reason = "new values do not have the type found in earlier ones; declare the type, so that it is not derived from values"
    return _Run(spark, log, config, require_whole(log, found), version, at_ms).full(reason)


def read_state(version: Path) -> KeptState | None:
    """Read the state kept with a version; None if it has none, if it is incomplete, or if another version of Penstock wrote it."""
    try:
        state = msgspec.json.decode((version / FOLDER / _STATE).read_bytes(), type=KeptState)
        return state if (version / FOLDER / _ROWS).is_dir() else None
    except (FileNotFoundError, NotADirectoryError, msgspec.DecodeError):
        return None
    except OSError as error:
        raise StateDirectoryError(f"{version / FOLDER / _STATE} cannot be read: {error}") from error


def rebuild_reason(before: KeptState | None, log: StoreLog, found: LogRange, now_ms: int) -> str | None:
    """Return why the topic has to be read from its start; None if the records since `before` can be merged."""
    if before is None:
        return _NO_VERSION
    if before.log != log:
        return "the store, or how it is read, has changed"
    if before.topic_id != found.topic_id:
        return f"topic {found.topic} was deleted and created again: its id was {before.topic_id} and is {found.topic_id}"
    if set(before.offsets) != set(found.end):
        return f"topic {found.topic} has {len(found.end)} partitions and had {len(before.offsets)}"
    for partition, offset in sorted(before.offsets.items()):
        if found.end[partition] < offset:
            return f"{found.topic}-{partition} ends at offset {found.end[partition]}, and the last run was at {offset}"
        if found.start[partition] > offset:
            return f"{found.topic}-{partition} begins at offset {found.start[partition]}, and the last run was at {offset}"
    if before.offsets == dict(found.end):
        return None
    if _has_no_type(before):
        return "the last run found no value that shows the type of JSON without a declared type"
    age_ms = now_ms - before.at_ms
    if found.delete_retention_ms is not None and age_ms > found.delete_retention_ms:
        return (
            f"the last run was {age_ms} ms ago, longer than the delete.retention.ms of topic {found.topic} ({found.delete_retention_ms}): "
            "deletions since then may have been cleaned away"
        )
    return None


def _has_no_type(before: KeptState) -> bool:
    keys, values = fold.untyped(before.log)
    return (keys and before.schemas.key is None) or (values and before.schemas.value is None)


class _Run:
    def __init__(
        self, spark: SparkSession, log: StoreLog, config: Mapping[str, object], found: LogRange, version: Path, at_ms: int
    ) -> None:
        self._spark, self._log, self._found = spark, log, found
        self._version, self._at_ms = version, at_ms
        options = connector_options(StreamsConfig({**config, "application.id": log.application}))
        self._entries = fold.latest(fold.read_records(spark, options, found), log)

    def full(self, reason: str) -> ChangelogRun:
        if not fold.read_once(self._log, None):
            self._entries.persist()
        try:
            times = fold.stream_times(self._entries, self._log)
            log = fold.typed(self._log, self._entries)
            return self._made("full", reason, fold.kept_rows(fold.alive(self._entries, log, fold.horizons(log, times)), log), times, log)
        finally:
            self._entries.unpersist()

    def merged(self, before: KeptState, previous: Path) -> ChangelogRun | None:
        """Return None if new values do not have the type inferred from the earlier ones, and none is declared."""
        self._entries.persist()  # used for the number of entries, their times, their keys and their rows
        try:
            came = self._entries.count()
            if not came:
                return self._unchanged(before, previous)
            times = _latest_of(before.stream_times, fold.stream_times(self._entries, self._log))
            old, log = self._spark.read.parquet(str(previous / FOLDER / _ROWS)), _as_before(self._log, before)
            came_rows = fold.kept_rows(fold.alive(self._entries, log, fold.horizons(log, times)), log)
            if before.schemas != self._log.schemas and not came_rows.where(F.col(MALFORMED).isNotNull()).isEmpty():
                return None
            kept = old.join(_keys(self._entries, log), _keys_of(log), "left_anti").unionByName(came_rows)
            return self._made("merged", f"{came} entries came since the last run", kept, times, log)
        finally:
            self._entries.unpersist()

    def _made(self, kind: Literal["full", "merged"], reason: str, kept: DataFrame, times: Mapping[int, int], log: StoreLog) -> ChangelogRun:
        found = self._found
        state = KeptState(
            log=self._log,
            schemas=log.schemas,
            topic_id=found.topic_id,
            offsets=dict(found.end),
            stream_times=dict(times),
            at_ms=self._at_ms,
        )
        place = self._version.with_name(f".{self._version.name}{FOLDER}")
        _remove_left(place)
        fold.unexpired(kept, log, fold.horizons(log, times)).write.mode("overwrite").parquet(str(place / _ROWS))
        _write(place, state)
        rows = fold.table_rows(self._spark.read.parquet(str(place / _ROWS)), log)
        return ChangelogRun(kind, reason, rows, state.offsets, times, found.notes, state, place, self._version)

    def _unchanged(self, before: KeptState, previous: Path) -> ChangelogRun:
        rows = fold.table_rows(self._spark.read.parquet(str(previous / FOLDER / _ROWS)), _as_before(self._log, before))
        state = msgspec.structs.replace(before, offsets=dict(self._found.end), at_ms=self._at_ms)
        reason = "nothing came since the last run"
        return ChangelogRun("unchanged", reason, rows, state.offsets, before.stream_times, (), state, None, previous)


def _as_before(log: StoreLog, before: KeptState) -> StoreLog:
    """Return the store with the types that the last run used."""
    return msgspec.structs.replace(log, schemas=before.schemas)


def _keys_of(log: StoreLog) -> list[str]:
    """Return the columns of kept rows that identify an entry."""
    return ["partition", fold.STORE_KEY, *([fold.SINCE] if log.layout.kind == "versioned" else [])]


def _keys(entries: DataFrame, log: StoreLog) -> DataFrame:
    """Select the kept rows that these entries replace."""
    return entries.select(*[F.col(name).alias(to) for name, to in zip(fold.entry_columns(log), _keys_of(log), strict=True)])


def _latest_of(before: Mapping[int, int], now: Mapping[int, int]) -> dict[int, int]:
    """Return the later time of each partition: stream time never goes back, even if the record that advanced it is gone."""
    return {partition: max(before.get(partition, -1), now.get(partition, -1)) for partition in {*before, *now}}


def _write(folder: Path, state: KeptState) -> None:
    """Write the state atomically: a reader finds the old one or the new one."""
    building = folder / f".{_STATE}.building"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        building.write_bytes(msgspec.json.format(msgspec.json.encode(state), indent=2))
        building.replace(folder / _STATE)
    except OSError as error:
        raise StateDirectoryError(f"{folder / _STATE} cannot be written: {error}") from error


def _remove_left(place: Path) -> None:
    """Remove what killed runs of this table left before they saved. Runs of one table never overlap."""
    for left in place.parent.glob(f".*{FOLDER}"):
        shutil.rmtree(left, ignore_errors=True)
