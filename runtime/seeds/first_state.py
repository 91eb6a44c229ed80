"""Where a store that has no state on this machine begins: with the newest snapshot, if there is one to be had, in place of its whole
changelog.

`snapshot.uri` names where the snapshots are. Before a task's stores are opened, a thread looks which of them have nothing that can be gone
on with, and brings their files, while all other tasks process; then the task is opened, and is restored from the snapshot's offset on, as
a store would be that was left behind on this disk. So all that is asked of such a store is asked of these files too: is it the same topic,
is the offset still on it, has nobody cleaned deletions away since (`staleness.py`)? The last two are looked at before anything is copied.

Nothing here can keep a task from its state: whatever is wrong with a snapshot costs a warning, and the changelog is read from its start. A
task is tried once; one that came to grief with the files of a snapshot is restored in the ordinary way.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread

from runtime.changelog.staleness import Changelog, kept_topic_id, made_anew, stale_reason_of
from runtime.clock import Clock
from runtime.errors import StateDirectoryError, StreamsError
from runtime.ids import NextOffset, Partition, TaskId
from runtime.seeds.files import bring_store
from runtime.seeds.find import find_seed
from runtime.seeds.plan import store_misfits
from runtime.snapshots.catalogue import Snapshot
from runtime.snapshots.manifest import StoreManifest, TaskManifest
from runtime.stores.base import EngineStore
from runtime.stores.custom import build_store
from runtime.stores.rocks_placing import look_beside, place
from runtime.tasks.plan import TaskPlan

logger = logging.getLogger(__name__)

_ASIDE = ".from-snapshot"

Look = Callable[[Sequence[Partition]], Mapping[Partition, Changelog]]
"""What the brokers say of changelogs now."""
Starts = Callable[[Sequence[Partition]], Mapping[Partition, NextOffset]]
"""Where these logs begin now."""


@dataclass(slots=True)
class _Try:
    """One task's attempt; `brought`: stores whose files are here, and where. Written by the thread until `over`."""

    plan: TaskPlan
    brought: dict[str, Path] = field(default_factory=dict)
    over: Event = field(default_factory=Event)


class FirstState:
    """The attempts of one worker. Belongs to its thread but for what is said to be the other's."""

    def __init__(self, uri: str | None, look: Look, starts: Starts, clock: Clock) -> None:
        """`uri`: None for a worker that reads changelogs only. `look` and `starts` are called from the thread."""
        self._uri = uri
        self._look = look
        self._starts = starts
        self._clock = clock
        self._tries: dict[TaskId, _Try | None] = {}
        """By task; None for one that is over."""
        self._begun_so: set[TaskId] = set()
        """Tasks that have begun with a snapshot: if they come to grief, it may be the reason."""
        self._wanted: SimpleQueue[_Try | None] = SimpleQueue()
        self._thread: Thread | None = None

    def is_settled(self, plan: TaskPlan) -> bool:
        """True if the task's stores may be opened now; else ask again. The first question begins the attempt. Raises
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
        if attempt.brought:
            self._put_in_place(plan, attempt.brought)
            self._begun_so.add(plan.task_id)
        self._tries[plan.task_id] = None
        return True

    def may_begin_anew(self, task: TaskId) -> bool:
        """True if a task whose stores were emptied may be opened anew, to begin with a snapshot: once, and not if it has done so before."""
        return self._uri is not None and task not in self._begun_so

    def forget(self, task: TaskId) -> None:
        """The task is gone. When it comes again, it may be tried again; an attempt that is under way goes on for whoever has it next."""
        if self._tries.get(task, self) is None:
            del self._tries[task]

    def close(self) -> None:
        """No attempt begins any more; one that copies is not waited for."""
        self._wanted.put(None)

    def _begin(self, plan: TaskPlan) -> None:
        attempt = self._tries[plan.task_id] = _Try(plan)
        if self._thread is None:
            self._thread = Thread(target=self._run, name="first-state", daemon=True)
            self._thread.start()
        self._wanted.put(attempt)

    def _put_in_place(self, plan: TaskPlan, brought: Mapping[str, Path]) -> None:
        plan.lock.acquire()
        for name, path in brought.items():
            target = plan.directory / "rocksdb" / name
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.rmtree(target, ignore_errors=not target.exists())
                path.rename(target)
            except OSError as error:
                _tell(plan.task_id, name, f"its files cannot be put into {target}: {error}")

    # --- the thread's ---------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (attempt := self._wanted.get()) is not None:
            try:
                self._bring(attempt)
            except Exception as error:  # noqa: BLE001 (whatever it is: the changelog has all)
                logger.warning("task %s does not begin with a snapshot: %s", attempt.plan.task_id, error)
            attempt.over.set()

    def _bring(self, attempt: _Try) -> None:
        plan = attempt.plan
        stores = {store.name: store for store in map(build_store, plan.subtopology.stores)}
        logs = {
            name: log for name, log in plan.changelogs.items() if name not in plan.subtopology.source_changelogs and stores[name].persistent
        }
        if not logs:
            return
        facts, begins, now_ms = self._look(list(logs.values())), self._starts(list(logs.values())), self._clock.wall_ms()
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
                found = self._fit(stores[name], part, facts[log], begins[log])
                attempt.brought[name] = self._fetch(plan, snapshot, part, found, facts[log])
            except StreamsError as error:
                _tell(plan.task_id, name, str(error))

    def _fit(self, store: EngineStore, part: TaskManifest, log: Changelog, begin: NextOffset) -> StoreManifest:
        """The store in the snapshot. Raises StateDirectoryError where it cannot be gone on from."""
        found = next((each for each in part.stores if each.name == store.name), None)
        if found is None:
            raise StateDirectoryError(f"snapshot {part.snapshot} does not have it")
        if misfits := list(store_misfits(store, found)):
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
            bring_store(snapshot.task_place(part.task), part, store, target)
            beside = look_beside(target)
            known = kept_topic_id(beside.metas)
            reason = f"it does not tell of which topic {log.partition.topic} it is" if known is None else made_anew(log, known)
            if reason is not None:
                raise StateDirectoryError(f"snapshot {snapshot.id}: {reason}")
            # The changelog alone brings it forward, so what it says of inputs would be out of date.
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
    """Whether what is on the disk can be gone on with, as far as can be told of a closed store."""
    try:
        beside = look_beside(folder)
    except StateDirectoryError:
        return False
    offset = beside.offsets.get(log.partition)
    return offset is not None and begin <= offset and stale_reason_of(offset, beside.metas.get, log, now_ms) is None


def _tell(task: TaskId, store: str, why: str) -> None:
    logger.warning("task %s: store %s does not begin with a snapshot, its changelog is read from the start: %s", task, store, why)
