"""Every configuration key of the engine, with type, default and meaning: one table, read by `StreamsConfig` and by the documentation.

Names and defaults are Kafka Streams' where it has the key. Times are in milliseconds, sizes in bytes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final


class Kind(Enum):
    """Type of a value. OBJECT: a class, an instance, or the dotted path of one."""

    STRING = "a string"
    INTEGER = "a whole number"
    OBJECT = "a class, an object, or its dotted path"


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One key. `minimum` applies to integers; `choices`, if any, lists all allowed values; a `required` key has no default."""

    name: str
    kind: Kind
    default: object
    doc: str
    minimum: int | None = None
    choices: tuple[str, ...] = ()
    required: bool = False


EXACTLY_ONCE: Final = "exactly_once_v2"
AT_LEAST_ONCE: Final = "at_least_once"


def _text(name: str, default: str | None, doc: str, *choices: str, required: bool = False) -> ConfigKey:
    return ConfigKey(name, Kind.STRING, default, doc, choices=choices, required=required)


def _number(name: str, default: int | None, doc: str, minimum: int = 0) -> ConfigKey:
    return ConfigKey(name, Kind.INTEGER, default, doc, minimum=minimum)


def _object(name: str, default: str | None, doc: str) -> ConfigKey:
    return ConfigKey(name, Kind.OBJECT, default, doc)


_KEYS = (
    _text(
        "application.id",
        None,
        "Names the application: its consumer group, internal topics, state folder and transactional ids.",
        required=True,
    ),
    _text("bootstrap.servers", None, "host:port of one or more brokers, separated by commas.", required=True),
    _text("client.id", None, "Names this instance; <application.id>-<process id> if not given."),
    _text("state.dir", None, "Folder of the local state; a folder of the user's data folder if not given, never the temporary one."),
    _text("processing.guarantee", EXACTLY_ONCE, "Guarantee for results after a failure.", EXACTLY_ONCE, AT_LEAST_ONCE),
    _number(
        "num.stream.threads",
        1,
        "Number of workers. Above 1, each is a process, and the topology must be given by its factory (docs/workers.md).",
        1,
    ),
    _number(
        "commit.interval.ms",
        None,
        "Time between two commits: 100 under exactly-once, 30000 otherwise. "
        "Under exactly-once, a task that moved here commits its first results at once.",
    ),
    _number("buffered.records.per.partition", 10_000, "Records that a task buffers per input partition before it stops fetching.", 1),
    _number(
        "max.task.idle.ms",
        0,
        "How long a task with several inputs waits for data on an empty one, to process in order of time; -1: no wait.",
        -1,
    ),
    _number(
        "max.poll.interval.ms",
        300_000,
        "Longest time between two turns of a worker's loop; beyond it the worker's process is terminated.",
        1,
    ),
    _number("session.timeout.ms", 10_000, "Time without a heartbeat after which a member is considered dead.", 1),
    _number(
        "heartbeat.interval.ms",
        500,
        "Time between two heartbeats, and so until members learn that another joins, leaves or becomes leader.",
        1,
    ),
    _number(
        "failure.detection.ms",
        1_500,
        "Silence of an instance after which its tasks move, under exactly-once, before its session ends; 0: off (docs/coordination.md).",
    ),
    _number("restart.grace.ms", 60_000, "How long the tasks with state of a restarting instance are reserved for it."),
    _number("acceptable.recovery.lag", 10_000, "Lag in records up to which a copy of the state counts as caught up."),
    _number("num.standby.replicas", 0, "Copies of each task's state on other instances, for an immediate takeover."),
    _number("max.warmup.replicas", 2, "Number of tasks that learners restore at a time, over all instances.", 1),
    _number(
        "probing.rebalance.interval.ms",
        600_000,
        "Longest time between two checks of the assignment; a fallback, because learners report when they have caught up.",
        60_000,
    ),
    _text(
        "rack.aware.assignment.tags",
        "",
        "Tag names, separated by commas: standbys are placed where the values of `client.tag.<name>` differ (KIP-708).",
    ),
    _text(
        "rack.aware.assignment.strategy",
        "none",
        "Placement of tasks in the rack (`client.rack`) of their input: `min_traffic`, or `balance_subtopology`, which keeps each "
        "sub-topology spread.",
        "none",
        "min_traffic",
        "balance_subtopology",
    ),
    _number("rack.aware.assignment.traffic_cost", None, "Cost of a partition read from another rack: 10 for tasks with state, else 1."),
    _number("rack.aware.assignment.non_overlap_cost", None, "Cost of a task that moves to save traffic: 1 for tasks with state, else 0."),
    _text(
        "auto.offset.reset",
        "earliest",
        "Where to begin in a source partition whose committed offset is missing or out of range: `earliest`, `latest`, `none` (stop), "
        "`by_duration:PT1H` (KIP-1106).",
    ),
    _text(
        "default.state.isolation.level",
        "READ_COMMITTED",
        "What interactive queries read by default: committed state, or also updates that may still be rolled back (KIP-892).",
        "READ_COMMITTED",
        "READ_UNCOMMITTED",
    ),
    _number(
        "statestore.checkpoint.interval.ms", 300_000, "Minimum time between two checkpoints (KIP-116), checked at commits; 0: each commit."
    ),
    _number(
        "statestore.uncommitted.max.bytes",
        64 << 20,
        "Budget for uncommitted bytes of state, over all workers; a worker above its share commits early (KIP-892); -1: no limit.",
        -1,
    ),
    _number(
        "statestore.cache.max.bytes",
        10 << 20,
        "Budget for the record caches, over all workers; 0: every update is forwarded.",
    ),
    _number(
        "statestore.read.cache.max.bytes",
        96 << 20,
        "Budget for store entries cached as objects, over all workers; 0: none.",
    ),
    _number(
        "rocksdb.block.cache.bytes",
        64 << 20,
        "RocksDB's block caches, over all workers: blocks, filters and indexes of its files, and write buffers.",
        1 << 20,
    ),
    _number(
        "rocksdb.write.buffer.bytes",
        32 << 20,
        "RocksDB's budget for write buffers, over all workers; at most half of the block cache is used.",
        1 << 20,
    ),
    _object("rocksdb.config.setter", None, "Class that sets RocksDB's options per store (docs/state.md)."),
    _text(
        "snapshot.uri",
        None,
        "Path or URI of exported snapshots: a store without local state starts from the newest one and reads only the rest of its "
        "changelog (docs/seeding.md).",
    ),
    _text(
        "unrecorded.state.accepted",
        None,
        "Identifies the program that ran last, and its state, if the record of the state's shape was lost; the error at the start contains "
        "the value (docs/changing.md).",
    ),
    _number("state.cleanup.delay.ms", 600_000, "How long the state of a task that moved away is kept."),
    _number("windowstore.changelog.additional.retention.ms", 86_400_000, "Added to the retention of windowed changelogs."),
    _number("repartition.purge.interval.ms", 30_000, "Minimum time between two purges of repartition topics."),
    _text(
        "topology.optimization",
        "none",
        "Optimizations of `StreamsBuilder.build(config)` that save topics and stores: `none`, `all`, or a list of "
        "`reuse.ktable.source.topics`, `merge.repartition.topics`, `single.store.self.join`, separated by commas (docs/dsl.md).",
    ),
    _text(
        "dsl.store.format",
        "DEFAULT",
        "Format of the stores of tables in RocksDB: `HEADERS` is that of stores with headers (KIP-1285, docs/stores.md), in upper or "
        "lower case.",
        "DEFAULT",
        "HEADERS",
    ),
    _text(
        "ensure.explicit.internal.resource.naming",
        "false",
        "Whether a topology with generated names of stores or repartition topics is refused (KIP-1111); otherwise a warning lists them.",
        "false",
        "true",
    ),
    _number("replication.factor", -1, "Of internal topics; -1: the brokers' default.", -1),
    _object("default.key.serde", None, "Serde of keys for which the topology gives none."),
    _object("default.value.serde", None, "Serde of values for which the topology gives none."),
    _object("default.timestamp.extractor", "penstock.FailOnInvalidTimestamp", "Extractor of a record's timestamp."),
    _object("deserialization.exception.handler", "penstock.LogAndFailExceptionHandler", "Decides about records that cannot be read."),
    _object(
        "processing.exception.handler",
        "penstock.LogAndFailProcessingExceptionHandler",
        "Decides about records on which user code fails.",
    ),
    _object(
        "production.exception.handler",
        "penstock.DefaultProductionExceptionHandler",
        "Decides about outputs that brokers refuse or serdes cannot serialize.",
    ),
    _object("processor.wrapper.class", None, "Class that wraps every processor (KIP-1112, docs/processors.md)."),
    _text("errors.dead.letter.queue.topic.name", None, "Topic for records that a handler skips (dead letters)."),
    _text("global.topic.compaction.check", "warn", "Reaction to a global topic that is not compacted.", "warn", "error", "off"),
    _number("metrics.port", 0, "Port on loopback where Prometheus reads metrics; 0: none."),
    _text(
        "application.server",
        None,
        "host:port at which clients reach this instance (KIP-67); default: its HTTP endpoint, if that listens on one address.",
    ),
    _number("http.port", 0, "Port of the HTTP endpoint: health, metrics, tasks, store reads; 0: none."),
    _text("http.host", "127.0.0.1", "Address that the HTTP endpoint listens on. Addresses other than loopback require `http.token`."),
    _text("http.token", None, "Token that requests to the HTTP endpoint must send as `Authorization: Bearer <token>`."),
)

KEYS: Final = {key.name: key for key in _KEYS}
"""All keys, by name."""


def as_markdown() -> str:
    """Return the table in Markdown (docs/configuration.md), with links to the pages that it names."""
    rows = ["| key | default | what |", "|---|---|---|"]
    for key in _KEYS:
        default = "(required)" if key.required else "" if key.default is None else f"`{key.default}`"
        choices = f" One of {', '.join(f'`{choice}`' for choice in key.choices)}." if key.choices else ""
        doc = re.sub(r"docs/([a-z-]+\.md)", r"[\1](\1)", key.doc.replace("<", "&lt;"))
        rows.append(f"| `{key.name}` | {default} | {doc}{choices} |")
    return "\n".join(rows) + "\n"
