"""Restore from a snapshot: a store without local state begins with the newest snapshot, if there is one, instead of its whole changelog.

`snapshot.uri` names the place of the snapshots. Before a task's stores are opened, a thread determines which of them have no usable state
and fetches their files, while other tasks process. Then the task is opened and restored from the snapshot's offset, like an old local
store. The same checks apply: is it the same topic, is the offset still on it, have tombstones been removed since (`staleness.py`)? The last
two are checked before anything is copied.

A snapshot never prevents a restore: any problem is logged as a warning, and the changelog is read from its start. A task is tried once; one
that failed with the files of a snapshot is restored from the changelog.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread

from penstock.runtime.changelog.staleness import Changelog, recreation_reason, stale_reason_of
from penstock.runtime.changelog.store_metadata import stored_topic_id
from penstock.runtime.model.clock import Clock
from penstock.runtime.model.errors import StateDirectoryError, StreamsError
from penstock.runtime.model.ids import NextOffset, TaskId, TopicPartition
from penstock.runtime.seeds.files import fetch_store
from penstock.runtime.seeds.find import find_seed
from penstock.runtime.seeds.plan import store_misfits
from penstock.runtime.snapshots.catalogue import Snapshot
from penstock.runtime.snapshots.manifest import StoreManifest, TaskManifest
from penstock.runtime.stores.base import EngineStore
from penstock.runtime.stores.custom import build_store
from penstock.runtime.stores.rocks_loading import inspect_store, place
from penstock.runtime.stores.store_format import StoreFormat
from penstock.runtime.tasks.plan import TaskPlan

logger = logging.getLogger(__name__)

_ASIDE = ".from-snapshot"

DescribeChangelogs = Callable[[Sequence[TopicPartition]], Mapping[TopicPartition, Changelog]]
"""Describes changelogs as the brokers have them now."""
Starts = Callable[[Sequence[TopicPartition]], Mapping[TopicPartition, NextOffset]]
"""Returns the current start offsets of these logs."""


@dataclass(slots=True)
class _Try:
    """Attempt for one task. `fetched`: folders of the stores whose files are fetched. Written by the thread until `over`."""

    plan: TaskPlan
    fetched: dict[str, Path] = field(default_factory=dict)
    over: Event = field(default_factory=Event)


class FirstState:
    """Attempts of one worker. Used by the worker's thread, except for the methods below *the thread*."""

    def __init__(self, uri: str | None, describe: DescribeChangelogs, starts: Starts, clock: Clock) -> None:
        """`uri`: None to restore from changelogs only. `describe` and `starts` are called from the thread."""
        self._uri = uri
        self._describe = describe
        self._starts = starts
        self._clock = clock
        self._tries: dict[TaskId, _Try | None] = {}
        """By task; None for a finished one."""
        self._begun_so: set[TaskId] = set()
        """Tasks that began with a snapshot, which may be the cause if they fail."""
        self._wanted: SimpleQueue[_Try | None] = SimpleQueue()
        self._thread: Thread | None = None

    def is_settled(self, plan: TaskPlan) -> bool:
        """Return True if the task's stores may be opened now; call again otherwise. The first call begins the attempt. Raises
        StateDirectoryLockedError, as opening would."""
        if self._uri is None or not plan.changelogs:
            return True
        if plan.task_id not in self._tries:
            self._begin(plan)
        attempt = self._tries[plan.task_id]
        if attempt is None:
            return True
        if not attempt.over.is_set():
            return False
        if attempt.fetched:
            self._put_in_place(plan, attempt.fetched)
            self._begun_so.add(plan.task_id)
        self._tries[plan.task_id] = None
        return True

    def may_retry(self, task: TaskId) -> bool:
        """Return True if a task whose stores were emptied may be opened again with a snapshot: once, and not if it began with one."""
        return self._uri is not None and task not in self._begun_so

    def forget(self, task: TaskId) -> None:
        """Forget a closed task, which may be tried again later. A running attempt continues for the task's next opening."""
        if self._tries.get(task, self) is None:
            del self._tries[task]

    def close(self) -> None:
        """Start no further attempt; a running copy is not awaited."""
        self._wanted.put(None)

    def _begin(self, plan: TaskPlan) -> None:
        attempt = self._tries[plan.task_id] = _Try(plan)
        if self._thread is None:
            self._thread = Thread(target=self._run, name="first-state", daemon=True)
            self._thread.start()
        self._wanted.put(attempt)

    def _put_in_place(self, plan: TaskPlan, fetched: Mapping[str, Path]) -> None:
        plan.lock.acquire()
        for name, path in fetched.items():
            target = plan.directory / "rocksdb" / name
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.rmtree(target, ignore_errors=not target.exists())
                path.rename(target)
            except OSError as error:
                _warn(plan.task_id, name, f"its files cannot be put into {target}: {error}")

    # --- the thread ---------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (attempt := self._wanted.get()) is not None:
            try:
                self._fetch_all(attempt)
            except BaseException as error:  # noqa: BLE001 (on any error the changelog has everything)
                logger.warning("task %s is not restored from a snapshot: %s", attempt.plan.task_id, error)
            attempt.over.set()

    def _fetch_all(self, attempt: _Try) -> None:
        plan = attempt.plan
        stores = {store.name: store for store in map(build_store, plan.subtopology.stores)}
        logs = {
            name: log for name, log in plan.changelogs.items() if name not in plan.subtopology.source_changelogs and stores[name].persistent
        }
        if not logs:
            return
        facts, begins, now_ms = self._describe(list(logs.values())), self._starts(list(logs.values())), self._clock.wall_ms()
        lacking = {
            name: log
            for name, log in logs.items()
            if facts[log].end > 0 and not _usable(plan.directory / "rocksdb" / name, facts[log], begins[log], now_ms)
        }
        if not lacking:
            return
        snapshot = find_seed(str(self._uri), plan.application_id)
        part = snapshot.task(str(plan.task_id))
        for name, log in lacking.items():
            try:
                found = self._fit(stores[name], snapshot.manifest.formats.get(name), part, facts[log], begins[log])
                attempt.fetched[name] = self._fetch(plan, snapshot, part, found, facts[log])
            except StreamsError as error:
                _warn(plan.task_id, name, str(error))

    def _fit(self, store: EngineStore, form: StoreFormat | None, part: TaskManifest, log: Changelog, begin: NextOffset) -> StoreManifest:
        """Return the store in the snapshot. Raises StateDirectoryError if it cannot be used."""
        found = next((each for each in part.stores if each.name == store.name), None)
        if found is None:
            raise StateDirectoryError(f"snapshot {part.snapshot} does not have it")
        if misfits := store_misfits(store, found, form):
            raise StateDirectoryError(f"in snapshot {part.snapshot} {'; '.join(misfits)}")
        at = found.changelog
        if at is None or (at.topic, at.partition) != log.partition:
            raise StateDirectoryError(f"snapshot {part.snapshot} does not say where it stands in {log.partition}")
        if not begin <= at.next_offset <= log.end:
            raise StateDirectoryError(
                f"snapshot {part.snapshot} is at offset {at.next_offset} of {log.partition}, which holds {begin} to {log.end}"
            )
        age_ms = self._clock.wall_ms() - part.at_ms
        if log.delete_retention_ms is not None and age_ms > log.delete_retention_ms:
            raise StateDirectoryError(
                f"snapshot {part.snapshot} is {age_ms} ms old, longer than delete.retention.ms of {log.partition.topic} "
                f"({log.delete_retention_ms}): deletions since then may have been cleaned away"
            )
        return found

    def _fetch(self, plan: TaskPlan, snapshot: Snapshot, part: TaskManifest, store: StoreManifest, log: Changelog) -> Path:
        target = plan.directory.with_name(f"{_ASIDE}-{plan.task_id}-{store.name}")
        shutil.rmtree(target, ignore_errors=not target.exists())
        try:
            fetch_store(snapshot.task_place(part.task), part, store, target)
            beside = inspect_store(target)
            known = stored_topic_id(beside.metas.get)
            reason = f"it has no id of topic {log.partition.topic}" if known is None else recreation_reason(log, known)
            if reason is not None:
                raise StateDirectoryError(f"snapshot {snapshot.id}: {reason}")
            # Only the changelog brings it up to date, so its input offsets would be wrong.
            place(target, {}, {}, forget=[partition for partition in beside.offsets if partition != log.partition])
        except (OSError, StateDirectoryError):
            shutil.rmtree(target, ignore_errors=True)
            raise
        offset = beside.offsets.get(log.partition)
        logger.info(
            "task %s: store %s begins with snapshot %s, at %s of %s in %s",
            plan.task_id,
            store.name,
            snapshot.id,
            offset,
            log.end,
            log.partition,
        )
        return target


def _usable(folder: Path, log: Changelog, begin: NextOffset, now_ms: int) -> bool:
    """Return True if the files on disk are usable, as far as a closed store shows."""
    try:
        beside = inspect_store(folder)
    except StateDirectoryError:
        return False
    offset = beside.offsets.get(log.partition)
    return offset is not None and begin <= offset and stale_reason_of(offset, beside.metas.get, log, now_ms) is None


def _warn(task: TaskId, store: str, why: str) -> None:
    logger.warning("task %s: store %s is not restored from a snapshot, its changelog is read from the start: %s", task, store, why)
