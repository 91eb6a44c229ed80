"""An application that is rehearsed and audited: its code in several versions, its records, a snapshot, and damage to one."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import dagster as dg
from rocksdict import Options, Rdict

from penstock.orchestration.declarations.applications import Applications
from penstock.orchestration.instances.operations import Operations
from penstock.runtime.snapshots.catalogue import Snapshot, find
from tests.dagster.telling import Project
from tests.dagster.test_commands import penstock
from tests.support import wait_until

PARTITIONS, KEYS = 2, 20
CODE = """
import json, os
from penstock import Consumed, Grouped, Materialized, Produced, StreamsBuilder, serdes

def build():
    application = os.environ["PENSTOCK_TEST_APPLICATION"]
    builder = StreamsBuilder()
    records = builder.stream(f"{application}-in", Consumed(serdes.STRING, value=serdes.JSON))
    counts = records.group_by_key().count(Materialized("counts", key=serdes.STRING, value=serdes.LONG))
    counts.to_stream().to(f"{application}-out", Produced(serdes.STRING, value=serdes.LONG))
    by_group = Grouped(serdes.STRING, value=serdes.JSON, name="by-group")
    sums = Materialized("sums", key=serdes.STRING, value=serdes.LONG)
    groups = records.group_by(lambda key, value: value["group"], by_group)
    groups.aggregate(lambda: 0, lambda key, value, total: total + value["amount"], sums)
    return builder.build()
"""
DOUBLED = CODE.replace('total + value["amount"]', 'total + value["amount"] * (2 if key == "b" else 1)')


def begin(project: Project) -> None:
    """Start an instance, which counts 200 records; take a snapshot, and send 300 records more."""
    application = project.application.id
    for end in ("in", "out"):
        project.broker.create_topic(f"{application}-{end}", PARTITIONS, exact=True)
    write(project, CODE)
    path = project.operations.paths.streams_toml
    handler = '"processing.exception.handler" = "penstock.LogAndPauseProcessingExceptionHandler"\n"deserialization'
    text = path.read_text().replace("tests.dagster.topology:build", "rehearsed_code:build").replace('"deserialization', handler)
    path.write_text(text.replace(f', "{application}-2"', ""))
    paths = project.operations.paths
    project.operations = Operations(paths, Applications.read(path), project.control_plane)
    send(project, 0, 200)
    project.operations.start(f"{application}-1", actor="ann")
    wait_until(lambda: counted(project) == 200, 60, "200 records")
    take_at_rest(project)
    send(project, 200, 500)


def take_at_rest(project: Project) -> None:
    """Take a snapshot in which no record is in transit between sub-topologies: what is behind a repartition topic is compared too."""
    application = project.application.id

    def rests() -> bool:
        assert "is complete" in penstock("snapshot", "take", application)
        return bool(find(project.operations.paths.snapshots(application)).manifest.settled)

    wait_until(rests, 60, "a snapshot without records in transit")


def write(project: Project, code: str) -> Path:
    path = project.operations.paths.root / "rehearsed_code.py"
    path.write_text(code)
    return path


def send(project: Project, first: int, last: int) -> None:
    records = [(f"k{n % KEYS}".encode(), json.dumps({"group": "abc"[n % 3], "amount": n}).encode()) for n in range(first, last)]
    project.broker.produce(f"{project.application.id}-in", records)


def counted(project: Project) -> int:
    """Return the sum of the last counts of all keys."""
    records = project.broker.consume(f"{project.application.id}-out")
    last = {record.key: int.from_bytes(record.value or b"", "big") for record in records}
    return sum(last.values())


def checked(instance: dg.DagsterInstance, application: str) -> tuple[bool, object]:
    """Return whether the check passes, and the number of differing keys."""
    key = dg.AssetCheckKey(dg.AssetKey([application, "instances"]), "rehearsal")
    found = instance.event_log_storage.get_latest_asset_check_execution_by_key([key])[key]
    assert found.event is not None and found.event.dagster_event is not None
    evaluation = found.event.dagster_event.asset_check_evaluation_data
    return evaluation.passed, evaluation.metadata["differing_keys"].value


def rehearsed_first(newest: Snapshot, operations: Operations) -> str:
    """Return the id of the snapshot before the newest one."""
    root = operations.paths.snapshots(newest.manifest.application)
    return sorted(path.name for path in root.iterdir() if path.name != newest.id)[-1]


def damage(store: Path, key: bytes) -> None:
    """Write another value for a key into the files of a snapshot."""
    family = "keyValueWithTimestamp"
    options = Options(raw_mode=True)
    with closing(Rdict(str(store), options, column_families={name: Options(raw_mode=True) for name in Rdict.list_cf(str(store))})) as files:
        files.get_column_family(family)[key] = (0).to_bytes(8, "big") + (1).to_bytes(8, "big")
        files.flush()
