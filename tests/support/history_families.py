"""The families of the differential tests as topologies of history runs: each has a factory here by its name, for executors to import.

Families that the wall clock decides are left out: in a history run it follows stream time (docs/history.md).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from importlib import import_module
from pathlib import Path
from random import Random

from penstock import StreamsConfig, Topology, serdes
from tests.differential.family import Family as Case
from tests.differential.family import Piped
from tests.support.history import CONFIG, Family, Made, Sent, by_driver

_FILES = (
    "aggregations",
    "combinations",
    "foreign_joins",
    "header_stores",
    "optimizations",
    "processors",
    "stateless",
    "stream_joins",
    "suppressions",
    "table_joins",
    "tables",
    "windows",
)


def _cases() -> dict[str, Case]:
    found = {}
    for file in _FILES:
        for case in import_module(f"tests.differential.test_{file}").FAMILIES:
            if not case.wall:
                found[str(case).replace(".", "_").replace("-", "_")] = case
    return found


CASES: Mapping[str, Case] = _cases()


FAMILIES_PART = 8
"""One in so many families runs on Spark and on a broker in a run of the tests: all of them take some minutes."""


def names_of_today() -> list[str]:
    """Return the families that run on Spark and on a broker, others on each day; all with PENSTOCK_HISTORY_FAMILIES=all."""
    every = 1 if os.environ.get("PENSTOCK_HISTORY_FAMILIES") == "all" else FAMILIES_PART
    return list(CASES)[date.today().toordinal() % every :: every]


def config_of(case: Case) -> dict[str, object]:
    """Return the configuration of an application of the family, without a cache."""
    return {**CONFIG, **case.config, "statestore.cache.max.bytes": 0}


def __getattr__(name: str) -> Callable[[], Topology]:
    if name not in CASES:
        raise AttributeError(name)
    case = CASES[name]

    def build() -> Topology:
        return case.topology(config_of(case))

    build.__name__, build.__module__ = name, __name__
    return build


def family_of(name: str) -> Family:
    """Return a family as the tests of history runs have them."""
    case, build = CASES[name], __getattr__(name)
    global_topics = build().resolved(StreamsConfig(config_of(case))).global_topics
    topics = tuple(topic for topic in case.topics if topic not in global_topics)
    return Family(build, topics, tuple(global_topics), one_partition=True, config=config_of(case))


def input_of(name: str, random: Random) -> dict[str, list[Sent]]:
    """Return random records by topic: times from 0 on, out of order, late, equal; null keys, tombstones and headers."""
    case = CASES[name]
    found: dict[str, list[Sent]] = {topic: [] for topic in case.topics}
    for step in case.steps(random):
        if isinstance(step, Piped):
            pair = case.serdes.get(step.topic, (serdes.STRING, serdes.STRING))
            key, value = (
                None if data is None else serde.serializer(step.topic)(data)
                for serde, data in zip(pair, (step.key, step.value), strict=True)
            )
            time = step.timestamp
            if name in _MERGED and key is None:
                continue
            if name in _MERGED:
                time = len(case.topics) * time + case.topics.index(step.topic)
            found[step.topic].append(Sent(key, value, time, list(step.headers) or None))
    return found


_MERGED = {"Combinations_split_and_merged", "Windows_cogroup_uncached"}
"""A sub-topology reads an input topic and a repartition topic. At equal times the order of their names decides, and the test driver takes a
record through all sub-topologies at once: so no two of their records have the same time. Records without a key do not get into the
repartition topic, so the largest time so far may be another one there: they are left out."""


@dataclass(frozen=True)
class Expected:
    """Results of the test driver, or its error."""

    made: Made
    error: Exception | None = None


def expected_of(name: str, inputs: Mapping[str, Sequence[Sent]], folder: Path) -> Expected:
    """Run the records through the test driver. Stores that a source topic restores are left out: they are in no seed."""
    family, config = family_of(name), config_of(CASES[name])
    try:
        made = by_driver(family, inputs, folder)
    except Exception as error:  # noqa: BLE001 (whatever it is, the history run must raise too)
        return Expected(Made(), error)
    for part in family.build().resolved(StreamsConfig(config)).sub_topologies():
        for store in part.source_changelogs:
            made.stores.pop(store, None)
    return Expected(made)


def partitions_of(name: str) -> dict[str, int]:
    """Return the number of partitions of each topic of a family."""
    family = family_of(name)
    return dict.fromkeys(
        (*family.topics, *family.global_topics, *family.build().resolved(StreamsConfig(config_of(CASES[name]))).sink_topics), 1
    )
