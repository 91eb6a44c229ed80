"""`str(topology.describe())` is what Kafka Streams 4.3.1 itself prints for the same topology, generated names included."""

from __future__ import annotations

import pytest

from penstock import TopologyError
from penstock.runtime.topology.describe import TreeOrder, copied_set_order, map_order
from penstock.runtime.topology.topology import Topology
from tests.support import ROOT
from tests.support.topologies import DEFINITIONS, OPTIMIZED, build

PRINTED = ROOT / "tests" / "formats" / "topologies" / "descriptions.txt"
"""Written by Descriptions.java beside it."""


def printed() -> dict[str, str]:
    parts = PRINTED.read_text().split("=== ")[1:]
    return {name: text for name, _, text in (part.partition("\n") for part in parts)}


@pytest.mark.parametrize("name", printed())
def test_a_topology_prints_as_in_kafka_streams(name: str) -> None:
    assert str(build(name).describe()) == printed()[name]


def test_every_topology_was_printed() -> None:
    assert set(printed()) == {*DEFINITIONS, *OPTIMIZED, "by hand"}


def test_a_topic_chosen_per_record_is_named_by_its_function() -> None:
    def by_key(key: object, value: object) -> str:
        return str(key)

    topology = Topology().add_source("in", "in").add_sink("out", by_key, "in")
    assert "Sink: out (extractor class: test_a_topic_chosen_per_record_is_named_by_its_function.<locals>.by_key)" in str(
        topology.describe()
    )


def test_names_come_in_the_order_of_javas_hash_maps() -> None:
    # jshell> new HashSet<>(List.of("in-b", "in-a", "in-c", "store", "carriers"))
    assert copied_set_order(["in-b", "in-a", "in-c"]) == ["in-a", "in-c", "in-b"]
    assert set(map_order([f"n{i}" for i in range(40)])) == {f"n{i}" for i in range(40)}


def test_a_tree_keeps_places_though_the_order_changes() -> None:
    ranks = {name: (0, name) for name in "abcdefgh"}
    tree = TreeOrder(lambda name: ranks[name])
    for name in "dbfaceg":
        tree.add(name)
    assert list(tree) == list("abcdefg")
    ranks["a"] = (9, "a")  # stays where it is
    tree.add("h")
    tree.add("d")  # is there
    assert list(tree) == list("abcdefgh")


def test_the_hash_shows_whether_state_fits() -> None:
    def topology(partitions: int | None, name: str = "in") -> str:
        made = Topology().add_source("in", name)
        made.add_repartition_topic("t-repartition", partitions)
        return made.hash()

    assert topology(3) == topology(3) != topology(4)
    assert topology(3) != topology(3, "other")


def test_describe_needs_no_configuration_but_internal_topics_do() -> None:
    with pytest.raises(TopologyError, match="call resolved"):
        build("counts").internal_topics()
