"""Lineage of the applications in Dagster: topics, instances, tables; their groups, owners, tags and descriptions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus
from dagster._core.loader import LoadingContextForTest

from penstock.assets.lineage import Topics, topics_of
from penstock.orchestration.dagster.names import RUNNING, instances_key, partitions_name, plain_names
from penstock.orchestration.declarations.applications import Applications
from penstock.orchestration.declarations.toml_table import WrongDeclarationError
from penstock.orchestration.definitions import definitions
from tests.support import ROOT

CHANGELOG = "flight-board-hourly-delay-changelog"
TOPOLOGIES = '''
"""Each factory reads and writes the topics that its name says."""
from penstock import StreamsBuilder, serdes


def _copy(source, target):
    builder = StreamsBuilder()
    builder.stream(source, key=serdes.STRING, value=serdes.STRING).to(target)
    return builder.build()


def one_two():
    """Copies `one` to `two`."""
    return _copy("one", "two")


def two_three():
    return _copy("two", "three")


def three_one():
    return _copy("three", "one")


def five_five():
    return _copy("five", "five")
'''


@pytest.fixture
def factories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Return the name of a module with factories."""
    name = f"lineage_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(TOPOLOGIES)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield name


def specs_of(text: str) -> dict[str, dg.AssetSpec]:
    defs = definitions(Applications.parse(text, Path("streams.toml")))
    defs.get_repository_def()  # a cycle would not load
    return {spec.key.to_user_string(): spec for spec in defs.resolve_all_asset_specs()}


def upstream(spec: dg.AssetSpec) -> set[str]:
    return {dep.asset_key.to_user_string() for dep in spec.deps}


def test_the_topics_are_those_of_the_topology_and_none_without_it() -> None:
    board = Applications.read(ROOT / "streams.toml").named("flight-board")
    topics = topics_of(board)
    assert topics.sources == ("airlines", "airports", "flights", "weather")
    assert topics.outputs == ("delay-per-hour", "flights-per-carrier", "flights-with-weather")
    assert topics.of_stores["hourly-delay"] == CHANGELOG and topics.of_stores["airlines"] == "airlines"
    assert str(topics.docstring).startswith("Departures from New York")
    unknown = Applications.parse('[applications.a]\nfactory = "m:f"\ninstances = 1', Path("x")).named("a")
    assert topics_of(unknown) == Topics()


def test_the_flight_boards_instances_read_topics_write_topics_and_its_tables_read_changelogs() -> None:
    specs = specs_of((ROOT / "streams.toml").read_text())
    table, instances, changelog = specs["hourly_delay"], specs["flight-board/instances"], specs[f"kafka/{CHANGELOG}"]
    assert upstream(table) == {f"kafka/{CHANGELOG}"}, "not the instances: the table would be outdated at each start"
    assert {"spark", "parquet"} <= table.kinds and table.group_name == instances.group_name == "flight_board"
    assert "Departures of 2013" in str(table.description)
    assert "kafka" in changelog.kinds and upstream(changelog) == {"flight-board/instances"}
    assert upstream(instances) == {f"kafka/{name}" for name in ("airlines", "airports", "flights", "weather")}
    assert not specs["kafka/flights"].deps
    assert upstream(specs["kafka/delay-per-hour"]) == {"flight-board/instances"}
    assert not [key for key in specs if key.endswith(("-repartition", "airlines-changelog"))]
    defs = definitions(Applications.read(ROOT / "streams.toml"))
    checks = {key.asset_key for check in defs.asset_checks or () for key in check.check_keys}
    assert checks == {dg.AssetKey("hourly_delay"), dg.AssetKey("carriers"), instances_key("flight-board")}


def test_applications_are_connected_by_topics_and_an_edge_that_closes_a_cycle_is_left_out(factories: str) -> None:
    declared = [f'[applications.{name}]\nfactory = "{factories}:{name}"' for name in ("one_two", "two_three", "three_one", "five_five")]
    specs = specs_of("\n".join(f"{text}\ninstances = 1" for text in declared))
    assert upstream(specs["two_three/instances"]) == {"kafka/two"} and upstream(specs["kafka/two"]) == {"one_two/instances"}
    assert upstream(specs["kafka/three"]) == {"two_three/instances"}
    assert upstream(specs["kafka/one"]) == set() and "Also written by `three_one`: not drawn" in str(specs["kafka/one"].description)
    assert upstream(specs["kafka/five"]) == set() and upstream(specs["five_five/instances"]) == {"kafka/five"}
    assert str(specs["one_two/instances"].description).startswith("Copies `one` to `two`.\n\nThe running instances of `one_two`")


def test_owners_tags_kinds_and_the_description_are_those_of_the_file(factories: str) -> None:
    text = f"""
[applications.a]
factory = "{factories}:one_two"
instances = 2
description = "Copies."
owners = ["team:flights", "ann@example.com"]
tags = {{ domain = "aviation" }}
kinds = ["kafka", "rocksdb"]
"""
    spec = specs_of(text)["a/instances"]
    assert (list(spec.owners), spec.kinds, spec.tags["domain"]) == (["team:flights", "ann@example.com"], {"kafka", "rocksdb"}, "aviation")
    assert str(spec.description).startswith("Copies.\n\nThe running instances of `a`")
    for wrong, named in (
        ('"ann@example.com"', "owners"),
        ("ann", "owners"),
    ):
        with pytest.raises(WrongDeclarationError, match=rf"line \d+: applications\.a\.{named}"):
            Applications.parse(text.replace("team:flights", wrong.strip('"') + "!"), Path("x"))
    with pytest.raises(WrongDeclarationError, match=r"line 7: applications\.a\.tags\.domain: expected letters"):
        Applications.parse(text.replace("aviation", "air planes"), Path("x"))
    with pytest.raises(WrongDeclarationError, match=r"applications\.a\.tags\..*Dagster's own"):
        Applications.parse(text.replace("domain", '"dagster/domain"'), Path("x"))


def test_the_asset_links_to_the_board_where_its_address_is_known(factories: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f'[applications."a.b"]\nfactory = "{factories}:one_two"\ninstances = 2\n'
    assert "board" not in specs_of(text)["a.b/instances"].metadata
    monkeypatch.setenv("PENSTOCK_BOARD_URL", "http://127.0.0.1:3100/")
    spec = specs_of(text)["a.b/instances"]
    assert spec.metadata["board"] == dg.MetadataValue.url("http://127.0.0.1:3100/#app=a.b")
    assert "`penstock board a.b --open`" in str(spec.description)
    monkeypatch.setenv("PENSTOCK_BOARD_URL", "javascript:alert(1)")
    assert "board" not in specs_of(text)["a.b/instances"].metadata


def test_ids_that_differ_in_punctuation_have_groups_and_jobs_of_their_own() -> None:
    text = "\n".join(f'[applications."{name}"]\nfactory = "m:f"\ninstances = ["i{n}"]' for n, name in enumerate(("a-b", "a.b", "c")))
    applications = Applications.parse(text, Path("x"))
    names = plain_names(applications)
    assert len(set(names.values())) == 3 and names["c"] == "c" and all(name.isidentifier() for name in names.values())
    repository = definitions(applications).get_repository_def()
    assert {f"start_{name}" for name in names.values()} <= set(repository.job_names)


def test_a_table_stays_in_step_when_an_instance_restarts() -> None:
    """As Dagster computes it, of an application whose topology is known, and of one whose is not."""
    for declared in ((ROOT / "streams.toml").read_text(), '[applications.flight-board]\nfactory = "m:f"\ninstances = 1\n' + TABLE):
        defs = definitions(Applications.parse(declared, Path("streams.toml")))
        key, table = instances_key("flight-board"), dg.AssetKey("carriers")
        with dg.DagsterInstance.ephemeral() as dagster:
            dagster.add_dynamic_partitions(partitions_name("flight-board"), ["flight-board-1"])
            start = dg.AssetMaterialization(key, partition="flight-board-1", tags={"dagster/data_version": RUNNING.value})
            dagster.report_runless_asset_event(start)
            made_of = {dep.asset_key for spec in defs.resolve_all_asset_specs() if spec.key == table for dep in spec.deps}

            @dg.asset(key=table, deps=[dg.AssetDep(each, partition_mapping=dg.AllPartitionMapping()) for each in made_of])
            def carriers() -> None: ...

            others = [spec for spec in defs.resolve_all_asset_specs() if spec.key != table and spec.key.path[0] == "kafka"]
            instances = next(asset for asset in defs.assets or () if isinstance(asset, dg.AssetsDefinition) and key in asset.keys)
            small = dg.Definitions(assets=[carriers, instances, *others], resources=defs.resources)
            assert dg.materialize([carriers, instances, *others], selection=[carriers], instance=dagster, resources=defs.resources).success
            graph = small.resolve_asset_graph()
            for _ in range(2):
                dagster.report_runless_asset_event(start)
                status = CachingStaleStatusResolver(dagster, graph, LoadingContextForTest(dagster)).get_status(table)
                assert status is StaleStatus.FRESH


TABLE = '[[tables]]\napplication = "flight-board"\nstore = "carriers"\n'
