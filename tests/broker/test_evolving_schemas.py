"""Values of a store in Avro or Protobuf: the schema is changed, rolled back and widened; a snapshot contains the schemas of all writers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from google.protobuf import descriptor_pool, message_factory, text_format
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from penstock import serdes
from penstock.orchestration.database import ControlPlane
from penstock.orchestration.declarations.applications import Application, Applications
from penstock.orchestration.declarations.project_paths import ProjectPaths, default_database_url
from penstock.orchestration.instances.operations import Operations
from penstock.orchestration.snapshots.taking import take_snapshot
from penstock.runtime.dsl.builder import StreamsBuilder
from penstock.runtime.dsl.options import Consumed, Materialized, Produced
from penstock.runtime.model.errors import SeedRefusedError, TopologyError
from penstock.runtime.seeds.install import install_seed
from penstock.runtime.serdes.serde import Serde
from penstock.runtime.snapshots.catalogue import Snapshot
from penstock.runtime.topology.topology import Topology
from tests.support import Kafka, unique, wait_until
from tests.support.engine import client, counts_become, running
from tests.support.seeds import config_of


@dataclass(frozen=True)
class Version:
    """A version of the program's values, each with a count and the last value."""

    serde: Serde[Any]
    total: Callable[[int, str], Any]
    count: Callable[[Any], int]


@dataclass(frozen=True)
class Versions:
    """`new` has a field more, which `old` does not read; `wider` has an int64 for its number; `refused` does not fit `old`."""

    old: Version
    new: Version
    wider: Version
    refused: Version
    reasons: tuple[str, str]
    """Why `refused` is refused, and `old` after `wider`."""


def avro(registry: str, kind: str, *more: dict[str, object]) -> Version:
    schema = {"type": "record", "name": "Total", "fields": [{"name": "n", "type": kind}, *more]}
    names = [field["name"] for field in more]
    return Version(
        serdes.avro(registry, json.dumps(schema)),
        lambda n, last: {"n": n, **dict.fromkeys(names, last)},
        lambda total: int(total["n"]),
    )


def protobuf(registry: str, kind: str, more: str = "", of_message: str = "") -> Version:
    """Return a version of `message Total { kind n = 1; }`, with a string as field 2 named `more`, or with parts for an optional `n`."""
    optional = "proto3_optional: true oneof_index: 0" if of_message else ""
    fields = f'field {{ name: "n" number: 1 type: TYPE_{kind} label: LABEL_OPTIONAL {optional} }}'
    if more:
        fields += f'field {{ name: "{more}" number: 2 type: TYPE_STRING label: LABEL_OPTIONAL }}'
    text = f'message_type {{ name: "Total" {fields} {of_message} }}'
    pool = descriptor_pool.DescriptorPool()
    pool.Add(text_format.Parse(text, FileDescriptorProto(name="total.proto", package="p", syntax="proto3")))
    message = message_factory.GetMessageClass(pool.FindMessageTypeByName("p.Total"))
    return Version(
        serdes.protobuf(registry, message),
        lambda n, last: message(n=n, **({more: last} if more else {})),
        lambda total: int(total.n),
    )


def versions_of(language: str) -> Versions:
    last: dict[str, object] = {"name": "last", "type": "string"}
    registry = f"mock://{uuid4()}"
    if language == "avro":
        return Versions(
            avro(registry, "int"),
            avro(registry, "int", {**last, "default": "none"}),
            avro(registry, "long"),
            avro(registry, "int", last),
            (
                "field last is new and has no default: values that were written without it cannot be read",
                "field n is long and is read as int",
            ),
        )
    return Versions(
        protobuf(registry, "INT32"),
        protobuf(registry, "INT32", "last"),
        protobuf(registry, "INT64"),
        protobuf(registry, "INT32", of_message='oneof_decl { name: "_n" }'),
        ("field p.Total.n: zero is not written, and would be read as unset", "field p.Total.n is int64 and is read as int32"),
    )


@dataclass
class Program:
    """The application, of which each start may have another version and another state folder."""

    broker: Kafka
    id: str
    source: str
    output: str
    folder: Path

    def topology(self, version: Version) -> Topology:
        builder = StreamsBuilder()
        totals = (
            builder.stream(self.source, Consumed(serdes.STRING, value=serdes.STRING))
            .group_by_key()
            .aggregate(
                lambda: version.total(0, ""),
                lambda key, value, total: version.total(version.count(total) + 1, value),
                Materialized("totals", key=serdes.STRING, value=version.serde, caching=False),
            )
        )
        totals.to_stream().map_values(version.count).to(self.output, Produced(serdes.STRING, value=serdes.LONG))
        return builder.build()

    def runs(self, version: Version, wanted: int, name: str = "one", then: Callable[[], object] = lambda: None) -> None:
        """Start a version, and process one record; the count becomes `wanted`."""
        with running(self.broker, self.topology(version), self.id, self.folder / name, **{"client.id": name}):
            self.broker.produce(self.source, [("k", f"v{wanted}")])
            counts_become(self.broker, self.output, {"k": wanted})
            then()

    def refuses(self, version: Version, name: str = "one") -> str:
        """Return the error with which the start of a version is refused."""
        with client(self.broker, self.topology(version), self.id, self.folder / name, **{"client.id": name}) as streams:
            streams.start()
            wait_until(lambda: streams.failure is not None, 40, "the refusal")
            assert isinstance(streams.failure, TopologyError)
            return str(streams.failure)


@pytest.mark.parametrize("language", ["avro", "protobuf"])
def test_a_schema_is_changed_rolled_back_and_widened_and_a_seed_knows_the_schemas_of_all_writers(
    broker: Kafka, topic: Callable[..., str], application_id: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, language: str
) -> None:
    versions, program = versions_of(language), Program(broker, application_id, topic("in"), topic("out"), tmp_path)
    cannot_read, cannot_go_back = versions.reasons

    def beside() -> None:
        """A rolling deploy is refused: the old version would lose the new field when it writes a value again."""
        assert "field last of its values is not read any more" in program.refuses(versions.new, "two")

    program.runs(versions.old, 1, then=beside)
    assert cannot_read in program.refuses(versions.refused)
    program.runs(versions.new, 2)
    program.runs(versions.old, 3, "without-a-copy")
    assert "last" in caplog.text, "a warning: the field is not read any more"
    program.runs(versions.new, 4, "without-a-copy")
    taken: list[Snapshot] = []

    def snapshot() -> None:
        paths = ProjectPaths(tmp_path, tmp_path / "home", tmp_path / "streams.toml", default_database_url(tmp_path))
        operations = Operations(paths, Applications(), ControlPlane(paths.database_url))
        application = Application(application_id, "", ("one",), {"bootstrap.servers": broker.bootstrap_servers})
        taken.append(take_snapshot(operations, application, actor="test"))

    program.runs(versions.wider, 5, then=snapshot)
    for name in ("one", "without-a-copy", "never-there"):
        assert cannot_go_back in program.refuses(versions.old, name)
    program.runs(versions.wider, 6)

    [recorded] = taken[0].task("0_0").stores
    assert recorded.value_registry_schema is not None and len(recorded.value_registry_schema.writers) == 3
    written_with = {int.from_bytes((record.value or b"")[1:5], "big") for record in broker.consume(f"{application_id}-totals-changelog")}
    assert written_with == set(recorded.value_registry_schema.writers), "the schemas of all values, by the ids in them"

    seeded = Program(broker, unique("seeded"), program.source, topic("out"), tmp_path / "seeded")
    config = config_of(seeded.id, broker.bootstrap_servers, seeded.folder / "one")
    with pytest.raises(SeedRefusedError, match=re.escape(cannot_go_back)):
        install_seed(seeded.topology(versions.old).resolved(config), config, str(taken[0].place))
    install_seed(seeded.topology(versions.wider).resolved(config), config, str(taken[0].place))
    installed = {(record.value or b"")[1:5] for record in broker.consume(f"{seeded.id}-totals-changelog")}
    assert {int.from_bytes(each, "big") for each in installed} <= set(recorded.value_registry_schema.writers), "with their writers' ids"
    seeded.runs(versions.wider, 7)  # the record that the snapshot had not counted, and one more
    assert cannot_go_back in seeded.refuses(versions.old)
