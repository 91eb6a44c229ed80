"""Messages between a rehearsal and the processes of its builds, one JSON object per line.

Each build is imported by a process of its own: the two may be versions of one module.
"""

from __future__ import annotations

import msgspec

from penstock.orchestration.declarations.spark_settings import SparkSettings
from penstock.runtime.snapshots.manifest import PartitionOffset, PartitionTime
from penstock.runtime.topology.shape import TopologyShape

END = "end"
"""Name of the only step of a run without others."""


class Store(msgspec.Struct, frozen=True):
    """A store of a build. `own`: of the user's class, whose files only their code can read."""

    sub_topology: int
    in_memory: bool
    own: bool
    of_source: bool


class Description(msgspec.Struct, frozen=True, tag=True):
    """A build's topology, for the topics that exist. `sources` are read by tasks, `global_topics` by global stores; `reads`: the topics of
    each sub-topology, repartition topics included; `sinks` are the fixed output topics."""

    sources: list[str]
    reads: dict[int, list[str]]
    global_topics: list[str]
    repartitions: list[str]
    sinks: list[str]
    stores: dict[str, Store]
    shape: TopologyShape


class Records(msgspec.Struct, frozen=True):
    """Records of a partition, in a file on this machine (`runtime/stage/spool.py`)."""

    topic: str
    partition: int
    file: str
    count: int


class KeptInMemory(msgspec.Struct, frozen=True):
    """Files of a store that a build keeps in memory: it begins with their entries. `at_ms`: time of the snapshot."""

    store: str
    folder: str
    at_ms: int


class Beginning(msgspec.Struct, frozen=True):
    """State with which a task begins. The files of its persistent stores are in its folder."""

    task: str
    offsets: list[PartitionOffset]
    times: list[PartitionTime]
    in_memory: list[KeptInMemory]


class Step(msgspec.Struct, frozen=True):
    """Records to process, and the name under which the stores are written then."""

    name: str
    records: list[Records]


class Describe(msgspec.Struct, frozen=True, tag=True):
    """Build the topology. Answer: `Description`, or `Refused`."""

    application: str
    factory: str
    config: dict[str, str | int | float | bool]
    topics: list[str]


class CheckState(msgspec.Struct, frozen=True, tag=True):
    """Compare the stores with those of the snapshot at a path or URI. Answer: `Misfits`."""

    snapshot: str


class Run(msgspec.Struct, frozen=True, tag=True):
    """Run the topology in `folder`. `tasks`: those that run; empty means all. Answer: `Report`, or `Refused`."""

    folder: str
    partitions: dict[str, int]
    global_records: list[Records]
    beginnings: list[Beginning]
    steps: list[Step]
    tasks: list[str] = []


class Span(msgspec.Struct, frozen=True):
    """Records of a topic's partition, from the offset `first` on, before `end`."""

    topic: str
    partition: int
    first: int
    end: int


class RunOnSpark(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Run the topology over the spans on Spark. `folder`: on this machine; `work`: path or URI of a folder that the executors reach too;
    `begin`: path or URI of the snapshot with whose state it begins; `spans` are of source topics. Answer: `Report`, whose parts are at
    paths or URIs in `work`, or `Refused`. `outputs`: they are kept. `only_plan`: answer `Misfits` that say why Spark cannot run it."""

    application: str
    factory: str
    config: dict[str, str | int | float | bool]
    settings: SparkSettings
    folder: str
    work: str
    partitions: dict[str, int]
    spans: list[Span]
    global_spans: list[Span]
    begin: str | None
    outputs: bool = True
    only_plan: bool = False


class Entry(msgspec.Struct, frozen=True):
    """An entry of a store or a record of a topic to be shown. `family`: of a store's entry."""

    key: bytes | None
    value: bytes | None
    family: str = ""


class Show(msgspec.Struct, frozen=True, tag=True):
    """Decode entries with the build's serdes. Answer: `Shown`."""

    store: str | None
    topic: str | None
    entries: list[Entry]


class Misfits(msgspec.Struct, frozen=True, tag=True):
    """Why the stores cannot read the state, in sentences."""

    texts: list[str]


class Rejected(msgspec.Struct, frozen=True):
    """A record for which a handler returned PAUSE."""

    task: str
    topic: str
    partition: int
    offset: int
    reason: str
    error: str
    where: str

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}@{self.offset}"


class Report(msgspec.Struct, frozen=True, tag=True):
    """Result of a run. `parts`: by step, the folder of each task's stores; `written`: the number of output records by the end of each step.
    `outputs`: the file of these. `rejected`: the first of `rejections` records."""

    records: int
    dropped: int
    rejections: int
    rejected: list[Rejected]
    seconds: float
    cpu_seconds: float
    parts: dict[str, dict[str, str]]
    written: dict[str, int]
    outputs: str


class Progress(msgspec.Struct, frozen=True, tag=True):
    """Records processed so far."""

    records: int


class Notice(msgspec.Struct, frozen=True, tag=True):
    """What the process does now."""

    text: str


class Text(msgspec.Struct, frozen=True):
    """A key and a value as text."""

    key: str
    value: str


class Shown(msgspec.Struct, frozen=True, tag=True):
    """The entries of `Show`, in order."""

    texts: list[Text]


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The build cannot do it: the error's text."""

    text: str


Request = Describe | CheckState | Run | Show
"""Requests to a build on this machine."""
Answer = Description | Misfits | Report | Progress | Notice | Shown | Refused
