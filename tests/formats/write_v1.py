"""`python -m tests.formats.write_v1 FOLDER`: everything that Penstock keeps, as version 1 writes it. The folder `v1` was written so, and is
never written again: a later version must read it, and what it writes itself is compared with it (`test_v1.py`)."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from penstock import serdes
from penstock.runtime.changelog.checkpoint import write_checkpoint
from penstock.runtime.coordination.records import (
    ASSIGNMENT_KEY,
    Assignment,
    Command,
    CommandResult,
    Desired,
    Grant,
    Hold,
    Member,
    PausedAt,
    Reserved,
    TaskReport,
    TopologyText,
    encode,
)
from penstock.runtime.model.events import Event, EventKind
from penstock.runtime.model.ids import NextOffset, TaskId, TopicPartition
from penstock.runtime.model.offsets import encode_partition_time
from penstock.runtime.model.states import State, TaskKind, TaskState
from penstock.runtime.serdes.keys import session_key, window_store_key
from penstock.runtime.snapshots.local import write_snapshot
from penstock.runtime.stores.base import ChangelogRecord, EngineStore, StoreBuilder, StoreContext
from penstock.runtime.stores.directory import StateDirectory
from penstock.runtime.stores.suppliers import Stores

TASK = TaskId(0, 0)
HOUR = 3_600_000
NOON = 1_700_000_000_000 // HOUR * HOUR
INPUT = TopicPartition("words", 0)
ONE, TWO = (1).to_bytes(8, "big"), (2).to_bytes(8, "big")
BUILDERS: dict[str, StoreBuilder[EngineStore]] = {
    "plain": Stores.key_value_store_builder(Stores.persistent_key_value_store("plain"), serdes.STRING, serdes.LONG),
    "timestamped": Stores.timestamped_key_value_store_builder(
        Stores.persistent_timestamped_key_value_store("timestamped"), serdes.STRING, serdes.LONG
    ),
    "windows": Stores.window_store_builder(Stores.persistent_window_store("windows", 4 * HOUR, HOUR), serdes.STRING, serdes.LONG),
    "timestamped-windows": Stores.timestamped_window_store_builder(
        Stores.persistent_timestamped_window_store("timestamped-windows", 4 * HOUR, HOUR), serdes.STRING, serdes.LONG
    ),
    "sessions": Stores.session_store_builder(Stores.persistent_session_store("sessions", HOUR), serdes.STRING, serdes.LONG),
    "versioned": Stores.versioned_key_value_store_builder(
        Stores.persistent_versioned_key_value_store("versioned", HOUR), serdes.STRING, serdes.LONG
    ),
}
_KEYS: list[ChangelogRecord] = [(b"EWR", ONE, NOON), (b"JFK", ONE, NOON + 1), (b"EWR", TWO, NOON + 2), (b"JFK", None, NOON + 3)]
_WINDOWS: list[ChangelogRecord] = [
    (window_store_key(b"EWR", NOON), ONE, NOON + 1),
    (window_store_key(b"EWR", NOON + 2 * HOUR), TWO, NOON + 2 * HOUR + 1),
]
RECORDS: dict[str, list[ChangelogRecord]] = {
    "plain": _KEYS,
    "timestamped": _KEYS,
    "windows": _WINDOWS,
    "timestamped-windows": _WINDOWS,
    "sessions": [(session_key(b"EWR", NOON, NOON + 60_000), TWO, NOON + 60_000)],
    "versioned": [(b"EWR", ONE, NOON), (b"EWR", TWO, NOON + 60_000)],
}
GLOBAL = Stores.timestamped_key_value_store_builder(Stores.persistent_timestamped_key_value_store("airports"), serdes.STRING, serdes.STRING)
RUBBISH = ("LOG", "LOG.old.*", "LOCK", "OPTIONS-*", "IDENTITY", ".lock")


def changelog(store: str) -> TopicPartition:
    return TopicPartition(f"app-{store}-changelog", 0)


def opened(name: str, task: Path) -> EngineStore:
    """One of the task's stores."""
    store = BUILDERS[name].build()
    store.open(task, StoreContext("app", task, TASK, changelog(name)))
    return store


def write(folder: Path) -> None:
    """Writes all of it."""
    state = StateDirectory(folder, "app")
    state.lock()
    _write_task(state.task_directory(TASK), state.path / "snapshots")
    _write_global(state.global_directory())
    state.unlock()
    for pattern in RUBBISH:
        for path in folder.rglob(pattern):
            path.unlink()
    for path in folder.rglob("*.log"):
        if path.stat().st_size == 0:
            path.unlink()
    lines = [f"{key.decode()}\t{value.decode()}" for key, value in coordination()]
    (folder / "coordination.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "event.json").write_bytes(EVENT.to_json())
    (folder / "commit-metadata.txt").write_text(encode_partition_time(NOON), encoding="utf-8")


def _write_task(task: Path, snapshots: Path) -> None:
    stores = {opened(name, task): changelog(name) for name in BUILDERS}
    for store, partition in stores.items():
        store.set_meta("stream.time", NOON.to_bytes(8, "big"))
        store.restore(RECORDS[store.name], {partition: NextOffset(7), INPUT: NextOffset(5)})
        store.flush()
    write_checkpoint(task, {changelog(name): NextOffset(7) for name in BUILDERS} | {changelog("unknown"): None})
    kept = {store: partition for store, partition in stores.items() if store.name in ("timestamped", "windows")}
    inputs = {INPUT: NextOffset(5)}
    write_snapshot(snapshots, "first", application="app", task=TASK, stores=kept, input_offsets=inputs, stream_time=NOON, at_ms=NOON + 9)
    for store in stores:
        store.close()


def _write_global(folder: Path) -> None:
    store = GLOBAL.build()
    store.open(folder, StoreContext("app", folder))
    store.restore([(b"EWR", b"Newark", NOON)], {TopicPartition("airports", 0): NextOffset(3)})
    store.flush()
    write_checkpoint(folder, {TopicPartition("airports", 0): NextOffset(3)})
    store.close()


EVENT = Event(
    id="app/0_0/TASK_PAUSED/words-0@4/1/1", application="app", instance="one", incarnation=1, kind=EventKind.TASK_PAUSED, task="0_0",
    at_ms=NOON, payload={"topic": "words", "partition": 0, "offset": 4},
)  # fmt: skip


def coordination() -> list[tuple[bytes, bytes]]:
    """A record of each kind on the coordination topic: key and value."""
    report = TaskReport(
        kind=TaskKind.ACTIVE, state=TaskState.PAUSED, offset_sum=4, end_sum=9, lag=5, checkpoint_ms=NOON,
        paused=PausedAt(topic="words", partition=0, offset=4, error_type="UnicodeDecodeError", error="invalid start byte"),
    )  # fmt: skip
    member = Member(
        instance="one", incarnation=1, transactional_id="app-one-1-1", host="host", pid=7, member_id="m-1", state=State.RUNNING,
        tasks={"0_0": report}, disk={"0_0": 7}, topology_hash="abc", epoch=3, heartbeat_ms=NOON, log_path="/logs/one.log",
        state_dir="/state", metrics_port=9100,
    )  # fmt: skip
    grant = Grant(member_id="m-1", incarnation=1, instance="one", active=["0_0"], standby=["0_1"], learner=["0_2"])
    assignment = Assignment(
        leader="one-1", grants=[grant], revoking={"one/1": ["0_3"]}, reserved={"0_4": Reserved(instance="two", until_ms=NOON)}
    )
    command = Command(id="c-1", kind="pause", task="0_0", args={"reason": "by hand"}, issued_by="cli", issued_ms=NOON)
    result = CommandResult(id="c-1", ok=False, reason="not here", data={"tasks": ["0_0"]}, by="one")
    desired = Desired(instance="one", running=True, at_ms=NOON, by="cli")
    hold = Hold(task="0_0", by="one", at_ms=NOON)
    topology = TopologyText(hash="abc", text="Topologies:\n")
    keyed = [(each.key, encode(each)) for each in (member, command, result, desired, hold, topology)]
    return [*keyed, (ASSIGNMENT_KEY, encode(assignment))]


if __name__ == "__main__":
    target = Path(sys.argv[1])
    shutil.rmtree(target, ignore_errors=True)
    write(target)
