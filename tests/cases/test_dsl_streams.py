"""The DSL, from builder to output: repartitioning, grouping, joins, merges, processors. Rows in, rows out."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import cast

from penstock import serdes
from penstock.runtime.dsl.builder import StreamsBuilder
from penstock.runtime.dsl.options import Consumed, Grouped, Joined, Materialized, Produced, Repartitioned
from penstock.runtime.dsl.windows import TimeWindows
from penstock.runtime.model.record import Record, Window, Windowed
from penstock.runtime.operators.processor import Processor, ProcessorContext
from penstock.runtime.stores import KeyValueStore, Stores
from penstock.runtime.topology.topology import Topology
from tests.cases.case import Case, each, rows, stream

S, L, J = serdes.STRING, serdes.LONG, serdes.JSON
STRINGS = Consumed(S, value=S)
TO_LONG = Produced(S, value=L)


COUNTS = {"out": (S, L)}
DEFAULTS: dict[str, object] = {"default.key.serde": S, "default.value.serde": S}
"""For what an operation before may have changed, so that it cannot be inherited."""

GROUPS = [
    Case(
        "group_by_key and count: no repartition topic, keys as they are",
        stream(lambda s: s.group_by_key().count(Materialized("counts")).to_stream().to("out", TO_LONG)),
        rows(("a", "x", 5), ("b", "x", 6), ("a", "x", 2)),
        {"out": [("a", 1, 5), ("b", 1, 6), ("a", 2, 5)], "topology-test-counts-repartition": []},
        COUNTS,
    ),
    Case(
        "group_by counts by the new key, over a repartition topic named after the group",
        stream(lambda s: s.group_by(lambda k, v: v, Grouped(S, value=S, name="by-value")).count().to_stream().to("out", TO_LONG)),
        rows(("a", "x", 5), ("b", "x", 4), (None, "y", 7)),
        {
            "out": [("x", 1, 5), ("x", 2, 5), ("y", 1, 7)],
            "topology-test-by-value-repartition": [("x", "x", 5), ("x", "x", 4), ("y", "y", 7)],
        },
        COUNTS,
    ),
    Case(
        "a key-changing operation before group_by_key repartitions under the store's name; records without a key stay out",
        stream(
            lambda s: (
                s.select_key(lambda k, v: v if v != "none" else None).group_by_key().count(Materialized("n")).to_stream().to("out", TO_LONG)
            )
        ),
        rows(("a", "x", 5), ("b", "none", 6)),
        {"out": [("x", 1, 5)], "topology-test-n-repartition": [("x", "x", 5)]},
        COUNTS,
        config=DEFAULTS,
    ),
    Case(
        "map_values before group_by_key does not repartition",
        stream(lambda s: s.map_values(lambda v: v).group_by_key().count(Materialized("n")).to_stream().to("out", TO_LONG)),
        rows(("a", "x", 5)),
        {"out": [("a", 1, 5)], "topology-test-n-repartition": []},
        COUNTS,
    ),
    Case(
        "reduce",
        stream(lambda s: s.group_by_key().reduce(lambda total, v: max(total, v)).to_stream().to("out")),
        rows(("a", "m", 5), ("a", "c", 6), ("a", "z", 4)),
        {"out": [("a", "m", 5), ("a", "m", 6), ("a", "z", 6)]},
    ),
    Case(
        "aggregate into JSON, changed in place by the aggregator",
        stream(
            lambda s: (
                s.group_by_key()
                .aggregate(list, lambda k, v, seen: [*seen, v], Materialized("lists", value=J))
                .to_stream()
                .to("out", Produced(S, value=J))
            )
        ),
        rows(("a", "x", 5), ("a", "y", 3)),
        {"out": [("a", ["x"], 5), ("a", ["x", "y"], 5)]},
        {"out": (S, J)},
    ),
    Case(
        "windowed count with grace: late ones out; keys are windowed",
        stream(
            lambda s: (
                s.group_by_key()
                .windowed_by(TimeWindows.of_size_and_grace(timedelta(milliseconds=10), 5))
                .count()
                .to_stream()
                .to("out", Produced(value=L))
            )
        ),
        rows(("a", "x", 14), ("a", "x", 2), ("a", "x", 15), ("a", "x", 9)),
        {"out": [(Windowed("a", Window(10, 20)), 1, 14), (Windowed("a", Window(0, 10)), 1, 2), (Windowed("a", Window(10, 20)), 2, 15)]},
        {"out": (serdes.time_windowed(S, 10), L)},
        dropped=1,
    ),
    Case(
        "hopping windows",
        stream(
            lambda s: (
                s.group_by_key()
                .windowed_by(TimeWindows.of_size_with_no_grace(10).advance_by(5))
                .count()
                .to_stream(lambda k, v: f"{k.key}@{k.window.start}")
                .to("out", TO_LONG)
            )
        ),
        rows(("a", "x", 7), ("a", "x", 11)),
        {"out": [("a@0", 1, 7), ("a@5", 1, 7), ("a@5", 2, 11), ("a@10", 1, 11)]},
        COUNTS,
    ),
]


def merged() -> Topology:
    builder = StreamsBuilder()
    left, right = builder.stream("in", STRINGS), builder.stream("other", STRINGS)
    left.filter(lambda k, v: v != "no").merge(right.map_values(str.upper)).peek(lambda k, v: None).to("out", Produced(S, value=S))
    return builder.build()


def repartitioned() -> Topology:
    builder = StreamsBuilder()
    source = builder.stream("in", STRINGS).map(lambda k, v: (v, k))
    source.repartition(Repartitioned("mine", key=S, value=S)).to("out")
    return builder.build()


def branches() -> Topology:
    """Two chains below one stream: the first one added comes first, to its end."""
    builder = StreamsBuilder()
    source = builder.stream("in", STRINGS)
    source.flat_map_values(lambda v: [v, v]).to("out")
    source.map_values(lambda k, v: f"{k}:{v}").to("out")
    return builder.build()


STREAMS = [
    Case(
        "merge",
        merged,
        [*rows(("a", "x", 1), ("a", "no", 2)), *rows(("b", "y", 3), topic="other"), *rows(("a", "z", 4))],
        {"out": [("a", "x", 1), ("b", "Y", 3), ("a", "z", 4)]},
    ),
    Case(
        "repartition goes through a topic of the given name",
        repartitioned,
        rows(("a", "x", 3), ("b", "y", 2)),
        {"out": [("x", "a", 3), ("y", "b", 2)], "topology-test-mine-repartition": [("x", "a", 3), ("y", "b", 2)]},
    ),
    Case(
        "depth first, in the order of the definition",
        branches,
        rows(("a", "x", 1)),
        {"out": [("a", "x", 1), ("a", "x", 1), ("a", "a:x", 1)]},
        config=DEFAULTS,
    ),
    Case(
        "flat_map and select_key",
        stream(lambda s: s.flat_map(lambda k, v: [(c, v) for c in v]).select_key(lambda k, v: k * 2).to("out")),
        rows(("a", "xy", 1)),
        {"out": [("xx", "xy", 1), ("yy", "xy", 1)]},
        config=DEFAULTS,
    ),
    Case(
        "a topic that depends on the record",
        stream(lambda s: s.to(lambda k, v, context: f"to-{v}")),
        rows(("a", "x", 1), ("b", "y", 2)),
        {"to-x": [("a", "x", 1)], "to-y": [("b", "y", 2)]},
    ),
]


def joined(left: bool, *, rekeyed: bool = False) -> Callable[[], Topology]:
    def build() -> Topology:
        builder = StreamsBuilder()
        table, source = builder.table("table", STRINGS), builder.stream("in", STRINGS)
        if rekeyed:
            source = source.select_key(lambda k, v: v)
        join = source.left_join if left else source.join
        join(table, lambda v, other: f"{v}+{other}", Joined(S, value=S, name="joined")).to("out", Produced(S, value=S))
        return builder.build()

    return build


def joined_globally(left: bool) -> Callable[[], Topology]:
    def build() -> Topology:
        builder = StreamsBuilder()
        table = builder.global_table("table", STRINGS, Materialized("names"))
        source = builder.stream("in", STRINGS)
        join = source.left_join if left else source.join
        join(table, lambda k, v: v, lambda k, v, other: f"{k}/{v}+{other}").to("out", Produced(S, value=S))
        return builder.build()

    return build


JOIN_INPUT = [*rows(("x", "early", 1)), *rows(("x", "T", 90), topic="table"), *rows(("x", "v", 2), ("y", "w", 3), ("x", None, 4))]
JOINS = [
    Case("stream-table join", joined(False), JOIN_INPUT, {"out": [("x", "v+T", 2)]}, dropped=1),
    Case(
        "stream-table left join",
        joined(True),
        JOIN_INPUT,
        {"out": [("x", "early+None", 1), ("x", "v+T", 2), ("y", "w+None", 3)]},
        dropped=1,
    ),
    Case(
        "a stream with another key is repartitioned before the join",
        joined(False, rekeyed=True),
        [*rows(("x", "T", 9), topic="table"), *rows(("a", "x", 1), ("b", "z", 2))],
        {"out": [("x", "x+T", 1)], "topology-test-joined-repartition": [("x", "x", 1), ("z", "z", 2)]},
    ),
    Case(
        "stream-global-table join, with the key in the joiner; no repartition",
        joined_globally(False),
        [*rows(("x", "T", 9), topic="table"), *rows(("a", "x", 1), ("b", "z", 2))],
        {"out": [("a", "a/x+T", 1)]},
    ),
    Case(
        "stream-global-table left join",
        joined_globally(True),
        [*rows(("x", "T", 9), topic="table"), *rows(("a", "x", 1), ("b", "z", 2))],
        {"out": [("a", "a/x+T", 1), ("b", "b/z+None", 2)]},
    ),
]


class Deduplicate(Processor):
    """Lets the first value of each key through."""

    def init(self, context: ProcessorContext) -> None:
        self.context, self.seen = context, cast(KeyValueStore, context.get_state_store("seen"))

    def process(self, record: Record) -> None:
        if self.seen.put_if_absent(record.key, record.value) is None:
            self.context.forward(record)


def processed(*, values: bool) -> Callable[[], Topology]:
    def build() -> Topology:
        builder = StreamsBuilder()
        builder.add_state_store(Stores.key_value_store_builder(Stores.in_memory_key_value_store("seen"), S, S))
        source = builder.stream("in", STRINGS)
        process = source.process_values if values else source.process
        process(Deduplicate, "seen").to("out", Produced(S, value=S))
        return builder.build()

    return build


PROCESSORS = [
    Case(
        f"process with a store (values={values})",
        processed(values=values),
        rows(("a", "x", 1), ("a", "y", 2), ("b", "z", 3)),
        {"out": [("a", "x", 1), ("b", "z", 3)]},
    )
    for values in (False, True)
]

test_case = each([*GROUPS, *STREAMS, *JOINS, *PROCESSORS])
