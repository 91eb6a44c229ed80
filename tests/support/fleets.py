"""Several instances under a steady load, and the invariants that must hold at the end after any failures."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchmarks.gap_programs import copying, counting
from benchmarks.updates import EachOnce, Load, Watch
from penstock.runtime.coordination import coordination
from penstock.runtime.coordination.records import Assignment, Death, Member, Record, Tombstone, Written, encode
from penstock.runtime.dsl.builder import StreamsBuilder
from penstock.runtime.dsl.options import Consumed, Grouped, Materialized
from penstock.runtime.model.errors import BrokerUnavailableError
from penstock.runtime.topology.topology import Topology
from penstock.serdes import BYTES
from tests.support import Kafka, wait_until
from tests.support.instances import Application, application, coordination_log

RATE, KEYS = 400, 40


def count() -> Topology:
    """Return the topology of the processes: a count per key, every update written."""
    return _counting().build()


def count_of_protocol_1_0() -> Topology:
    """Return the same, in a process whose members write what protocol 1.0 had: records without the shape of their topology."""

    def of_1_0(record: Written) -> bytes:
        return encode(msgspec.structs.replace(record, protocol="1.0", topology="") if isinstance(record, Member) else record)

    coordination.encode = of_1_0  # type: ignore[attr-defined]  # the import of the module that announces the member
    return count()


def held_up_once() -> Topology:
    """Return the same, in a process whose interpreter is held for some seconds by one call, as a regular expression may do it."""
    held: list[int] = []

    def hold(key: bytes, value: bytes) -> None:
        if not held:
            held.append(sum(range(150_000_000)))
            logging.getLogger(__name__).warning("the long call is over")

    builder = _counting()
    builder.stream(os.environ["TEST_SOURCE"], Consumed(BYTES, value=BYTES)).foreach(hold, "held-up")
    return builder.build()


def with_seen() -> Topology:
    """Return the same with one more operator and one more store, which keeps the first value of each key."""
    builder = _counting()
    records = builder.stream(os.environ["TEST_SOURCE"], Consumed(BYTES, value=BYTES)).filter(lambda key, value: True, "one-node-more")
    records.group_by_key(Grouped(BYTES, value=BYTES)).reduce(lambda one, other: one, Materialized("seen", caching=False))
    return builder.build()


def without_count() -> Topology:
    """Return the same without the store: an instance with it would not count the records of the others."""
    builder = StreamsBuilder()
    builder.stream(os.environ["TEST_SOURCE"], Consumed(BYTES, value=BYTES)).foreach(lambda key, value: None, "nothing")
    return builder.build()


def copy() -> Topology:
    """Return a topology without state: it copies its input."""
    return copying(os.environ["TEST_SOURCE"], os.environ["TEST_OUTPUT"]).build()


def _counting() -> StreamsBuilder:
    return counting(os.environ["TEST_SOURCE"], os.environ["TEST_OUTPUT"])


@dataclass(slots=True)
class Fleet:
    """An application whose instances are processes, its load, and the consumer of its outputs."""

    app: Application
    load: Load
    watch: Watch
    check: EachOnce

    def goes_on(self, seconds: float = 30) -> None:
        """Wait until new outputs of every partition arrive."""
        since = time.monotonic()
        wait_until(lambda: all(times and times[-1] > since for times in self.watch.times), seconds, "outputs of all partitions")

    def shared_evenly(self, names: Collection[str], seconds: float = 90) -> None:
        """Wait until exactly these instances run all tasks, with counts that differ by at most one."""

        def evenly() -> bool:
            try:
                reports = self.app.reports()
            except BrokerUnavailableError:
                return False  # it is busy
            counts = [len(tasks) for tasks in reports.values()]
            running = {state for tasks in reports.values() for state in tasks.values()} == {"RUNNING"}
            return running and set(reports) == set(names) and sum(counts) == len(self.watch.times) and max(counts) - min(counts) <= 1

        wait_until(evenly, seconds, f"an even share at each of {', '.join(names)}")

    def log(self) -> list[tuple[int, Record]]:
        return coordination_log(self.app.broker, self.app.id)


def settled_log(broker: Kafka, application_id: str, tasks: Collection[str], seconds: float = 45) -> list[tuple[int, Record]]:
    """Wait until the last assignment grants each task to one member; return the log. A task that is handed over at this moment is granted
    to none."""

    def settled() -> list[tuple[int, Record]] | None:
        log = coordination_log(broker, application_id)
        last = next((record for _, record in reversed(log) if isinstance(record, Assignment)), None)
        granted = [] if last is None else sorted(task for grant in last.grants for task in grant.active)
        return log if granted == sorted(tasks) else None

    return wait_until(settled, seconds, "an assignment that grants each task once, without orphans") or []


def ran_nothing_twice(log: list[tuple[int, Record]]) -> None:
    """Check in log order that no task was granted while a live member might still run it. One that was taken for dead is fenced: what it
    writes before it reads that counts for nothing."""
    open_at: dict[str, set[str]] = {}
    buried: set[str] = set()
    for place, (offset, record) in enumerate(log):
        match record:
            case Member() if record.identity not in buried:
                open_at[record.identity] = record.active
            case Tombstone(kind="member"):
                open_at.pop(record.id, None)
                buried.add(record.id)
            case Assignment():
                dead = _tombstones_after(log, place)
                granted = [task for grant in record.grants for task in grant.active]
                assert len(granted) == len(set(granted)), f"the assignment at {offset} grants a task twice: {sorted(granted)}"
                for grant in record.grants:
                    others = {
                        task: identity for identity, mine in open_at.items() if identity not in dead | {grant.identity} for task in mine
                    }
                    twice = {task: others[task] for task in grant.active if task in others}
                    story = "\n".join(line for task in twice for line in _story(log, task))
                    assert not twice, f"the assignment at {offset} grants {grant.identity} what others may run: {twice}\n{story}"


def _story(log: list[tuple[int, Record]], task: str) -> Iterator[str]:
    """Yield what each record says about a task: who reports it, is granted it, has to release it, is its heir; and deaths."""
    for offset, record in log:
        match record:
            case Member() if task in record.tasks or task in record.disk:
                yield f"{offset}: {record.identity} ({record.member_id}, epoch {record.epoch}) reports {task}: {record.tasks.get(task)}"
            case Member():
                yield f"{offset}: {record.identity} ({record.member_id}, epoch {record.epoch}) does not report {task}"
            case Assignment():
                granted = [grant.identity for grant in record.grants if task in grant.active]
                revoking = [identity for identity, tasks in record.revoking.items() if task in tasks]
                yield f"{offset}: {record.leader} grants {task} to {granted}, revokes it from {revoking}, heir {record.heirs.get(task)}"
            case Tombstone() | Death():
                yield f"{offset}: {record}"
            case _:
                pass


def _tombstones_after(log: list[tuple[int, Record]], place: int) -> set[str]:
    """Return the members whose tombstones are in the same transaction as the assignment at this position (rules.md, 22)."""
    dead: set[str] = set()
    for _, record in log[place + 1 :]:
        if not isinstance(record, Tombstone):
            break
        dead.add(record.id)
    return dead


@contextmanager
def fleet(
    broker: Kafka,
    application_id: str,
    folder: Path,
    settings: Mapping[str, object] | None = None,
    *,
    partitions: int = 4,
    factory: str = "count",
    rate: int = RATE,
) -> Iterator[Fleet]:
    """Create an application without instances, under load. If nothing failed in the block, check at its end that every output arrived once,
    that no task ran twice, and that none is orphaned."""
    folder.mkdir(exist_ok=True)
    with application(broker, application_id, folder, partitions, **(settings or {})) as app:
        app.factory = f"tests.support.fleets:{factory}"
        check = EachOnce(KEYS * partitions)
        load = Load(broker.bootstrap_servers, app.source, KEYS * partitions, rate)
        with Watch(broker.bootstrap_servers, app.output, partitions, check.note) as watch:
            found = Fleet(app, load, watch, check)
            with load:
                yield found
            wait_until(lambda: watch.records >= load.records, 60, f"{load.records} outputs")
            time.sleep(0.3)  # the last output may be a duplicate
        assert not check.wrong and check.seen == load.written, f"{watch.records} outputs of {load.records}, {check.wrong} of them wrong"
        ran_nothing_twice(settled_log(broker, app.id, [f"0_{number}" for number in range(partitions)]))
