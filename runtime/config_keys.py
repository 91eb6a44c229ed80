"""Every configuration key of the engine, with type, default and meaning: one table, read by `StreamsConfig` and by the documentation.

Names and defaults are Kafka Streams' where it has the key. Times are in milliseconds, sizes in bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final


class Kind(Enum):
    """What a value must be. OBJECT: a class, an instance, or the dotted path of one."""

    STRING = "a string"
    INTEGER = "a whole number"
    OBJECT = "a class, an object, or its dotted path"


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One key. `minimum` is for integers; `choices`, if any, are all that is allowed; a `required` key has no default."""

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
    _text("processing.guarantee", EXACTLY_ONCE, "What a crash may do to results.", EXACTLY_ONCE, AT_LEAST_ONCE),
    _number(
        "num.stream.threads",
        1,
        "Workers of this instance. Above 1 each is a process of its own, and the topology is given by its factory (docs/workers.md).",
        1,
    ),
    _number("commit.interval.ms", None, "Time between two commits: 100 under exactly-once, 30000 otherwise."),
    _number("buffered.records.per.partition", 10_000, "Records that a task holds per input partition before its reading pauses.", 1),
    _number(
        "max.task.idle.ms", 0, "How long a task with several inputs waits for one that is empty, to process by time; -1: never waits.", -1
    ),
    _number("max.poll.interval.ms", 300_000, "Longest time between two turns of the loop before this instance loses its tasks.", 1),
    _number("session.timeout.ms", 10_000, "Without a heartbeat for so long, an instance is dead.", 1),
    _number("heartbeat.interval.ms", 500, "Time between two heartbeats: how soon members hear that another comes, goes, or is to lead.", 1),
    _number("restart.grace.ms", 60_000, "How long the tasks of an instance that restarts are kept for it."),
    _number("acceptable.recovery.lag", 10_000, "Records behind the end with which a copy of the state counts as caught up."),
    _number("num.standby.replicas", 0, "Copies of each task's state that other instances keep, to take over at once."),
    _number("max.warmup.replicas", 2, "Tasks that instances learn at a time, in all, before they take them over.", 1),
    _number(
        "probing.rebalance.interval.ms",
        600_000,
        "How often the leader looks at the assignment when nobody has told of anything: a backstop, since learners say when they are done.",
        60_000,
    ),
    _text(
        "rack.aware.assignment.tags",
        "",
        "Names of tags, divided by commas: standbys go where the values of `client.tag.<name>` differ (KIP-708).",
    ),
    _text(
        "rack.aware.assignment.strategy",
        "none",
        "Tasks near what they read (`client.rack`): `min_traffic`, or `balance_subtopology`, which keeps each sub-topology spread.",
        "none",
        "min_traffic",
        "balance_subtopology",
    ),
    _number("rack.aware.assignment.traffic_cost", None, "Cost of a partition read from another rack: 10 for tasks with state, else 1."),
    _number("rack.aware.assignment.non_overlap_cost", None, "Cost of a task that moves for that: 1 for tasks with state, else 0."),
    _text(
        "auto.offset.reset",
        "earliest",
        "Where a source partition begins whose committed offset is missing or no longer there: `earliest`, `latest`, `none` (stop), "
        "`by_duration:PT1H` (KIP-1106).",
    ),
    _number(
        "statestore.checkpoint.interval.ms", 300_000, "Least time between two checkpoints (KIP-116); looked at on commit; 0: each commit."
    ),
    _number(
        "statestore.uncommitted.max.bytes",
        64 << 20,
        "Uncommitted bytes of state above which a commit is brought forward (KIP-892); -1: no limit.",
        -1,
    ),
    _number(
        "statestore.cache.max.bytes",
        10 << 20,
        "Budget of the record caches, of all workers; 0: every update is forwarded.",
    ),
    _number(
        "statestore.read.cache.max.bytes",
        96 << 20,
        "Budget for entries of stores kept as objects, of all workers; 0: none.",
    ),
    _number(
        "rocksdb.block.cache.bytes",
        64 << 20,
        "RocksDB's block caches, of all workers; write buffers count in them.",
        1 << 20,
    ),
    _number(
        "rocksdb.write.buffer.bytes",
        64 << 20,
        "RocksDB's budget for write buffers, of all workers.",
        1 << 20,
    ),
    _text(
        "snapshot.uri",
        None,
        "Path or URI of exported snapshots: a store without local state begins with the newest one and reads only the rest of its "
        "changelog (docs/seeding.md).",
    ),
    _number("state.cleanup.delay.ms", 600_000, "How long the state of a task that moved away is kept."),
    _number("windowstore.changelog.additional.retention.ms", 86_400_000, "Added to the retention of windowed changelogs."),
    _number("repartition.purge.interval.ms", 30_000, "Least time between two purges of repartition topics."),
    _text(
        "topology.optimization",
        "none",
        "What `StreamsBuilder.build(config)` does to need fewer topics and stores: `none`, `all`, or some of "
        "`reuse.ktable.source.topics`, `merge.repartition.topics`, `single.store.self.join`, divided by commas (docs/dsl.md).",
    ),
    _text(
        "ensure.explicit.internal.resource.naming",
        "false",
        "Whether a topology with a store or a repartition topic whose name was generated is refused (KIP-1111); else a warning lists them.",
        "false",
        "true",
    ),
    _number("replication.factor", -1, "Of internal topics; -1: the brokers' default.", -1),
    _object("default.key.serde", None, "For keys where the topology names no serde."),
    _object("default.value.serde", None, "For values where the topology names no serde."),
    _object("default.timestamp.extractor", "runtime.timestamps.FailOnInvalidTimestamp", "When a record happened."),
    _object(
        "deserialization.exception.handler", "runtime.handlers.LogAndFailExceptionHandler", "Decides about records that cannot be read."
    ),
    _object(
        "processing.exception.handler",
        "runtime.handlers.LogAndFailProcessingExceptionHandler",
        "Decides about records that user code fails on.",
    ),
    _object(
        "production.exception.handler",
        "runtime.handlers.DefaultProductionExceptionHandler",
        "Decides about outputs that brokers refuse or serdes cannot write.",
    ),
    _text("errors.dead.letter.queue.topic.name", None, "Topic for records that a handler skips."),
    _text("global.topic.compaction.check", "warn", "What to do about a global topic that is not compacted.", "warn", "error", "off"),
    _number("metrics.port", 0, "Port on loopback where Prometheus reads metrics; 0: none."),
    _text(
        "application.server",
        None,
        "host:port under which others find this instance (KIP-67); that of its HTTP endpoint, if it has one and listens on one address.",
    ),
    _number("http.port", 0, "Port of the HTTP endpoint: health, metrics, tasks, store reads; 0: none."),
    _text("http.host", "127.0.0.1", "Address that the HTTP endpoint listens on. Beyond loopback it needs `http.token`."),
    _text("http.token", None, "What requests to the HTTP endpoint must show, as `Authorization: Bearer <token>`."),
)

KEYS: Final = {key.name: key for key in _KEYS}
"""The table, by name."""


def as_markdown() -> str:
    """The table as a page shows it (docs/configuration.md)."""
    rows = ["| key | default | what |", "|---|---|---|"]
    for key in _KEYS:
        default = "(required)" if key.required else "" if key.default is None else f"`{key.default}`"
        choices = f" One of {', '.join(f'`{choice}`' for choice in key.choices)}." if key.choices else ""
        rows.append(f"| `{key.name}` | {default} | {key.doc.replace('<', '&lt;')}{choices} |")
    return "\n".join(rows) + "\n"
