"""Changelog tables that follow their topic: a run reads what came since the last one and merges it into what that one had.

What a run needs of the last one is kept with the table's version, in the same folder, so that whoever makes the version the one that counts
has made both so, in one step:

    <version>/_changelog/rows/         the rows as they were decoded, with their raw keys; of versions the deletions too (Parquet)
                         state.json    `KeptState`: offsets, stream times, the topic's id, when; written last

A version without `state.json` has no state, whatever else is there. A run that fails or is killed leaves a folder beside the versions that
the next one removes, and the version that counts as it was.

Merging goes by raw keys: the last record of each key since then replaces what there was, a tombstone removes it. So only what came is
decoded. It gives what reading all of the topic would give, as long as the topic still tells all that happened since then. It does not, and
the run reads all of it anew, when

  - the topic was made anew: it has another id, or ends before the last run's offsets;
  - its start is beyond those offsets: what came in between was deleted;
  - the last run is longer ago than `delete.retention.ms` and something came since: tombstones may have come and gone (rules.md, 13);
  - the store has become another one, or is to be read in another way.

Rejected: to merge into the table itself, and keep nothing. It has neither the deletions, without which a version that comes late has no
end, nor the bytes of keys that could not be read, and its columns are the user's to rename.
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

from assets.spark.fold import (
    STORE_KEY,
    alive,
    entry_columns,
    horizons,
    kept_rows,
    latest,
    read_once,
    read_records,
    stream_times,
    table_rows,
    typed,
    unexpired,
    untyped,
)
from assets.spark.formats import MALFORMED
from assets.spark.kafka_options import connector_options
from assets.spark.log_range import LogRange, look, require_whole
from assets.spark.store_log import StoreLog
from runtime.clock import Clock, SystemClock
from runtime.config import StreamsConfig
from runtime.errors import StateDirectoryError
from runtime.stores.base import StoreSchemas

FOLDER = "_changelog"
"""In the folder of a table's version. Spark passes over names that begin so."""
_STATE, _ROWS = "state.json", "rows"
_NO_VERSION = "there is no version to build upon"


class KeptState(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run has stopped. `offsets`: per partition the next one; `stream_times` and `at_ms` in ms: `at_ms` is before the ends of the
    topic were asked for. `schemas` are those by which the rows were decoded: of JSON that nobody has declared, what its bytes told."""

    version: Literal[1] = 1
    log: StoreLog
    schemas: StoreSchemas
    topic_id: str
    offsets: dict[int, int]
    stream_times: dict[int, int]
    at_ms: int


@dataclass(slots=True)
class ChangelogRun:
    """What a run has made. `kind`: all of the topic was read; or what came since was merged; or nothing came, and there is nothing to
    write. `reason` says why, in words. `rows`: lazy, as `formats.row_schema`, to be read before `save`. The rest is as in
    `ChangelogTable`. A context: what was not saved is gone behind it."""

    kind: Literal["full", "merged", "unchanged"]
    reason: str
    rows: DataFrame
    offsets: Mapping[int, int]
    stream_times: Mapping[int, int]
    notes: tuple[str, ...]
    state: KeptState
    _written: Path | None
    """Where the run's state is; None if nothing was written."""
    _version: Path
    """The version that the state belongs to: the new one, or the last one where nothing came."""

    def save(self, version: Path) -> None:
        """Puts the run's state into the folder of the new version, which must be there. Call it before that becomes the one that counts."""
        assert self._written is not None, "nothing came: there is no new version"
        place = version / FOLDER
        shutil.rmtree(place, ignore_errors=True)
        self._written.rename(place)
        self._written = None

    def confirm(self) -> None:
        """If nothing came: says in the version that counts that it is as of now."""
        _write(self._version / FOLDER, self.state)

    def __enter__(self) -> ChangelogRun:
        return self

    def __exit__(self, *_: object) -> None:
        """Removes what the run has written and did not save."""
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
    """The store's rows at its topic's end as of now.

    `previous` is the folder of the version that counts, None if there is none; `version` that of the new one. The rows are written beside
    it, and read from there. Raises as `read_changelog`, and StateDirectoryError where the disk refuses.
    """
    at_ms = (clock or SystemClock()).wall_ms()
    found = look(log, config)
    before = None if previous is None else read_state(previous)
    reason = why_anew(before, log, found, at_ms)
    if before is None or previous is None or reason is not None:
        return _Run(spark, log, config, require_whole(log, found), version, at_ms).full(reason or _NO_VERSION)
    made = _Run(spark, log, config, found.since(before.offsets), version, at_ms).merged(before, previous)
    if made is not None:
        return made
    reason = "values came that are not of the type that those before them told; declare it, and they need not tell it"
    return _Run(spark, log, config, require_whole(log, found), version, at_ms).full(reason)


def read_state(version: Path) -> KeptState | None:
    """What the run that made a version has kept; None if there is nothing, or not all of it, or another version of Penstock wrote it."""
    try:
        state = msgspec.json.decode((version / FOLDER / _STATE).read_bytes(), type=KeptState)
        return state if (version / FOLDER / _ROWS).is_dir() else None
    except (FileNotFoundError, NotADirectoryError, msgspec.DecodeError):
        return None
    except OSError as error:
        raise StateDirectoryError(f"{version / FOLDER / _STATE} cannot be read: {error}") from error


def why_anew(before: KeptState | None, log: StoreLog, found: LogRange, now_ms: int) -> str | None:
    """Why the topic has to be read from its start, in words; None if what came since `before` can be merged."""
    if before is None:
        return _NO_VERSION
    if before.log != log:
        return "the store, or how it is read, is not what it was"
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
    if _has_told_nothing(before):
        return "the last run found nothing that tells of what type JSON is that nobody has declared"
    age_ms = now_ms - before.at_ms
    if found.delete_retention_ms is not None and age_ms > found.delete_retention_ms:
        return (
            f"the last run was {age_ms} ms ago, longer than the delete.retention.ms of topic {found.topic} ({found.delete_retention_ms}): "
            "deletions since then may have been cleaned away"
        )
    return None


def _has_told_nothing(before: KeptState) -> bool:
    keys, values = untyped(before.log)
    return (keys and before.schemas.key is None) or (values and before.schemas.value is None)


class _Run:
    def __init__(
        self, spark: SparkSession, log: StoreLog, config: Mapping[str, object], found: LogRange, version: Path, at_ms: int
    ) -> None:
        self._spark, self._log, self._found = spark, log, found
        self._version, self._at_ms = version, at_ms
        options = connector_options(StreamsConfig({**config, "application.id": log.application}))
        self._entries = latest(read_records(spark, options, found), log)

    def full(self, reason: str) -> ChangelogRun:
        if not read_once(self._log, None):
            self._entries.persist()
        try:
            times = stream_times(self._entries, self._log)
            log = typed(self._log, self._entries)
            return self._made("full", reason, kept_rows(alive(self._entries, log, horizons(log, times)), log), times, log)
        finally:
            self._entries.unpersist()

    def merged(self, before: KeptState, previous: Path) -> ChangelogRun | None:
        """None: what came is not of the type that what was there has told, and nobody has declared."""
        self._entries.persist()  # for how many there are, for their times, their keys and their rows
        try:
            came = self._entries.count()
            if not came:
                return self._unchanged(before, previous)
            times = _latest_of(before.stream_times, stream_times(self._entries, self._log))
            old, log = self._spark.read.parquet(str(previous / FOLDER / _ROWS)), _as_before(self._log, before)
            came_rows = kept_rows(alive(self._entries, log, horizons(log, times)), log)
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
        unexpired(kept, log, horizons(log, times)).write.mode("overwrite").parquet(str(place / _ROWS))
        _write(place, state)
        rows = table_rows(self._spark.read.parquet(str(place / _ROWS)), log)
        return ChangelogRun(kind, reason, rows, state.offsets, times, found.notes, state, place, self._version)

    def _unchanged(self, before: KeptState, previous: Path) -> ChangelogRun:
        rows = table_rows(self._spark.read.parquet(str(previous / FOLDER / _ROWS)), _as_before(self._log, before))
        state = msgspec.structs.replace(before, offsets=dict(self._found.end), at_ms=self._at_ms)
        reason = "nothing came since the last run"
        return ChangelogRun("unchanged", reason, rows, state.offsets, before.stream_times, (), state, None, previous)


def _as_before(log: StoreLog, before: KeptState) -> StoreLog:
    """With the types by which the last run has read."""
    return msgspec.structs.replace(log, schemas=before.schemas)


def _keys_of(log: StoreLog) -> list[str]:
    """The columns of kept rows that name an entry."""
    return ["partition", STORE_KEY, *(["valid_from"] if log.layout.kind == "versioned" else [])]


def _keys(entries: DataFrame, log: StoreLog) -> DataFrame:
    """What these entries replace in kept rows."""
    named = {name: F.timestamp_millis(name) if name == "timestamp" else F.col(name) for name in entry_columns(log)}
    return entries.select(*[column.alias(to) for column, to in zip(named.values(), _keys_of(log), strict=True)])


def _latest_of(before: Mapping[int, int], now: Mapping[int, int]) -> dict[int, int]:
    """Time never goes back, even if the record that moved it has gone."""
    return {partition: max(before.get(partition, -1), now.get(partition, -1)) for partition in {*before, *now}}


def _write(folder: Path, state: KeptState) -> None:
    """In one step: whoever reads it finds the old one or the new one."""
    building = folder / f".{_STATE}.building"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        building.write_bytes(msgspec.json.format(msgspec.json.encode(state), indent=2))
        building.replace(folder / _STATE)
    except OSError as error:
        raise StateDirectoryError(f"{folder / _STATE} cannot be written: {error}") from error


def _remove_left(place: Path) -> None:
    """What runs of this table have left that were killed before they had saved. Two runs of one table at a time are nobody's wish."""
    for left in place.parent.glob(f".*{FOLDER}"):
        shutil.rmtree(left, ignore_errors=True)
