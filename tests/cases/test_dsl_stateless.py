"""Splits, topics chosen per record, tables of streams, patterns, processors with stores of their own. Rows in, rows out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import cast

import pytest

from penstock import (
    Branched,
    Consumed,
    FixedKeyProcessor,
    FixedKeyProcessorContext,
    FixedKeyRecord,
    KeyValueStore,
    KStream,
    Materialized,
    Printed,
    Processor,
    ProcessorContext,
    ProcessorSupplier,
    Produced,
    Record,
    RecordContext,
    StoreBuilder,
    Stores,
    StreamsBuilder,
    StreamsConfig,
    Topology,
    TopologyError,
    serdes,
)
from penstock.runtime.model.record import Window, Windowed
from penstock.runtime.serdes.murmur import murmur2
from penstock.runtime.stores import EngineStore
from penstock.testing import TopologyTestDriver
from tests.cases.case import Case, each, rows, stream
from tests.support.pipelines import Compiled

S, L = serdes.STRING, serdes.LONG
STRINGS = Consumed(S, value=S)


def two_branches(s: KStream[str, str]) -> None:
    branches = s.split("by-").branch(lambda k, v: v.startswith("a"), "a").branch(lambda k, v: len(v) > 1, "long").default_branch("rest")
    for name, branch in branches.items():
        branch.to(name)


def functions(s: KStream[str, str]) -> None:
    found = (
        s.split("x-")
        .branch(lambda k, v: v == "1", Branched("mapped", function=lambda b: b.map_values(lambda v: v * 3)))
        .branch(lambda k, v: v == "2", Branched("gone", consumer=lambda b: b.to("twos")))
        .branch(lambda k, v: v == "3", Branched("none", function=lambda b: b.to("threes")))
        .no_default_branch()
    )
    assert list(found) == ["x-mapped"]
    found["x-mapped"].to("ones", Produced(value=S))


SPLITS = [
    Case(
        "a record goes to the first branch that wants it, the rest to the default branch",
        stream(two_branches),
        rows(("k", "ab", 3), ("k", "bb", 2), ("k", "b", 1), ("k", "a", 5)),
        {"by-a": [("k", "ab", 3), ("k", "a", 5)], "by-long": [("k", "bb", 2)], "by-rest": [("k", "b", 1)]},
    ),
    Case(
        "branches with functions and consumers; without a default branch the rest is dropped, and is not counted",
        stream(functions),
        rows(("k", "1", 1), ("k", "2", 2), ("k", "3", 3), ("k", "4", 4)),
        {"ones": [("k", "111", 1)], "twos": [("k", "2", 2)], "threes": [("k", "3", 3)]},
    ),
    Case(
        "branches of a stream whose key was changed repartition",
        stream(
            lambda s: (
                s.select_key(lambda k, v: v)
                .split("s-")
                .default_branch("all")["s-all"]
                .to_table(Materialized("t", key=S))
                .to_stream()
                .to("out")
            )
        ),
        rows(("k", "v", 4)),
        {"out": [("v", "v", 4)], "topology-test-KSTREAM-TOTABLE-0000000004-repartition": [("v", "v", 4)]},
    ),
]


def by_context(key: str, value: str, context: RecordContext) -> str:
    return f"{context.topic}-{context.partition}-{context.offset}-{context.timestamp}-{len(context.headers)}"


PARTITIONS: dict[str, int | set[int] | None] = {"none": set(), "one": 0, "all": {0}, "key": None}
TOPICS = [
    Case(
        "the topic may be chosen by key and value",
        stream(lambda s: s.to(lambda k, v: f"to-{v}")),
        rows(("k", "a", 3), ("k", "b", 2), ("k", "a", 1)),
        {"to-a": [("k", "a", 3), ("k", "a", 1)], "to-b": [("k", "b", 2)]},
    ),
    Case(
        "or by where the record comes from, and by its own time",
        stream(lambda s: s.to(by_context)),
        rows(("k", "a", 3), ("k", "b", 9)),
        {"in-0-0-3-0": [("k", "a", 3)], "in-0-1-9-0": [("k", "b", 9)]},
    ),
    Case(
        "a partitioner may name no partition: the record is dropped and counted; or one, or leave it to the key",
        stream(lambda s: s.to("out", Produced(S, value=S, partitioner=lambda topic, key, value, count: PARTITIONS[value]))),
        rows(("k", "none", 1), ("k", "one", 2), ("k", "all", 3), ("k", "key", 4)),
        {"out": [("k", "one", 2), ("k", "all", 3), ("k", "key", 4)]},
        dropped=1,
    ),
]


TABLES = [
    Case(
        "to_table: the latest value per key, tombstones too, no record without a key; an equal value is forwarded again",
        stream(lambda s: s.to_table(Materialized("t")).to_stream().to("out")),
        rows(("a", "1", 5), ("a", "1", 6), ("b", "2", 3), ("a", None, 9), (None, "3", 9), ("b", "0", 1)),
        {"out": [("a", "1", 5), ("a", "1", 6), ("b", "2", 3), ("a", None, 9), ("b", "0", 1)]},
        dropped=1,
    ),
    Case(
        "to_table without a name keeps rows only where they are read",
        stream(
            lambda s: s.to_table().filter(lambda k, v: v != "no").map_values(lambda v: v + "!").to_stream().to("out", Produced(value=S))
        ),
        rows(("a", "1", 5), ("a", "no", 6)),
        {"out": [("a", "1!", 5), ("a", None, 6)]},
    ),
]


def of_a_pattern() -> Topology:
    builder = StreamsBuilder()
    builder.stream(re.compile("in-[0-9]+"), STRINGS).merge(builder.stream(["other"], STRINGS)).to("out", Produced(S, value=S))
    return builder.build()


PATTERNS = [
    Case(
        "all topics that match are one stream",
        of_a_pattern,
        [("in-1", "a", "1", 5), ("in-22", "b", "2", 4), ("other", "c", "3", 3), ("in-1", "d", "4", 2)],
        {"out": [("a", "1", 5), ("b", "2", 4), ("c", "3", 3), ("d", "4", 2)]},
    )
]


class Count(Processor[str, str, str, int]):
    """Numbers the records of a key."""

    def init(self, context: ProcessorContext[str, int]) -> None:
        self.context = context
        self.counts: KeyValueStore[str, int] = context.get_state_store("counts")

    def process(self, record: Record[str, str]) -> None:
        count = (self.counts.get(record.key) or 0) + 1
        self.counts.put(record.key, count)
        self.context.forward(record.with_value(count).with_timestamp(record.timestamp + 1))


class Counts(ProcessorSupplier[str, str, str, int]):
    """Brings the store that `Count` uses."""

    def __init__(self) -> None:
        self._store = Stores.key_value_store_builder(Stores.in_memory_key_value_store("counts"), S, L)

    def get(self) -> Count:
        return Count()

    def stores(self) -> Iterable[StoreBuilder[EngineStore]]:
        return [self._store]


class Shout(FixedKeyProcessor[str, str, str]):
    """Forwards each value twice, the second time later."""

    def init(self, context: FixedKeyProcessorContext[str, str]) -> None:
        self.context = context

    def process(self, record: FixedKeyRecord[str, str]) -> None:
        loud = record.with_value(record.value.upper())
        self.context.forward(loud)
        self.context.forward(loud.with_timestamp(record.timestamp + 10))


def shared_store(s: KStream[str, str]) -> None:
    supplier = Counts()
    s.filter(lambda k, v: v < "m").process(supplier).to("low", Produced(S, value=L))
    s.filter(lambda k, v: v >= "m").process(supplier).to("high", Produced(S, value=L))


PROCESSORS = [
    Case(
        "a supplier brings its store, which two processors share",
        stream(shared_store),
        rows(("a", "b", 1), ("a", "z", 2), ("b", "x", 3), ("a", "c", 4)),
        {"low": [("a", 1, 2), ("a", 3, 5)], "high": [("a", 2, 3), ("b", 1, 4)]},
        {"low": (S, L), "high": (S, L)},
    ),
    Case(
        "process_values keeps the key: what follows needs no repartition topic",
        stream(lambda s: s.process_values(Shout).group_by_key().count(Materialized("n", key=S)).to_stream().to("out")),
        rows(("a", "x", 1)),
        {"out": [("a", 2, 11)], "topology-test-n-repartition": []},
        {"out": (S, L)},
        config={"default.value.serde": S},
    ),
]


CASES = [*SPLITS, *TABLES, *PROCESSORS]
"""Of these a sample runs on a broker too."""

test_case = each([*CASES, *TOPICS, *PATTERNS])


# -- printing ------------------------------------------------------------------------------------------------------------------------


def run(define: Callable[[KStream[str, str]], object], *given: tuple[str | None, str | None]) -> None:
    with TopologyTestDriver(stream(define)()) as driver:
        driver.create_input_topic("in", S, S).pipe_key_value_list(given)


def test_a_stream_is_printed_line_by_line(capsys: pytest.CaptureFixture[str]) -> None:
    run(lambda s: s.filter(lambda k, v: True, "all").print(Printed.to_sys_out()), ("a", "1"), (None, None))
    assert capsys.readouterr().out == "[all]: a, 1\n[all]: None, None\n"
    mapped = Printed.to_sys_out(label="mine").with_key_value_mapper(lambda k, v: f"{k}={v}")
    run(lambda s: s.print(mapped), ("a", "1"))
    assert capsys.readouterr().out == "[mine]: a=1\n"


def test_a_stream_is_printed_into_a_file(tmp_path: Path) -> None:
    file = tmp_path / "printed.txt"
    file.write_text("of before")
    run(lambda s: s.print(Printed.to_file(file).with_label("x").with_name("printer")), ("a", "ä"), ("b", "2"))
    assert file.read_text(encoding="utf-8") == "[x]: a, ä\n[x]: b, 2\n"
    with pytest.raises(TopologyError, match="cannot be written"):
        Printed.to_file(tmp_path / "none" / "x")


# -- mistakes ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (
            lambda b: b.stream(re.compile("a.*")).merge(b.stream("ab")),
            "pattern a.* of source KSTREAM-SOURCE-0000000000 matches the topic ab",
        ),
        (
            lambda b: b.stream("ab").merge(b.stream(re.compile("a.*"))),
            "pattern a.* of source KSTREAM-SOURCE-0000000001 matches the topic ab",
        ),
        (lambda b: b.stream("in").split("s").branch(lambda value: True), "node s: .* is given \\(key, value\\) and takes 1"),
        (lambda b: b.stream("in").to(lambda key: "out"), "node KSTREAM-SINK-0000000001: .* \\(key, value, context\\) and takes 1"),
        (lambda b: Branched("x", function=lambda s: s, consumer=lambda s: None), "to a function or to a consumer"),
        (lambda b: b.stream("in").split("s").branch(lambda k, v: True, "1").branch(lambda k, v: True, "1"), "'s1' was added before"),
        (lambda b: b.stream("in").print(Printed(key_value_mapper=cast(Callable[..., str], str.upper))), r"is given \(key, value\)"),
    ],
)
def test_mistakes_are_named(mistake: Callable[[StreamsBuilder], object], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        mistake(StreamsBuilder())


def test_two_patterns_do_not_share_a_topic() -> None:
    builder = StreamsBuilder()
    builder.stream(re.compile("a.*"), STRINGS).merge(builder.stream(re.compile(".*b"), STRINGS)).foreach(lambda k, v: None)
    topology = builder.build()
    resolved = topology.resolved(resolving())
    assert resolved.matched(["ax", "xb", "__consumer_offsets", "app-b"]).source_topics == ("ax", "xb")
    with pytest.raises(TopologyError, match="topic ab is matched by the patterns of source KSTREAM-SOURCE-0000000000 and"):
        resolved.matched(["ab"])


def resolving() -> StreamsConfig:
    return StreamsConfig({"application.id": "app", "bootstrap.servers": "localhost:9092"})


# -- partitions ----------------------------------------------------------------------------------------------------------------------


def test_all_windows_of_a_key_go_where_the_key_goes(tmp_path: Path) -> None:
    """As Kafka Streams' `WindowedStreamPartitioner`; but not from a sink that was added by hand."""
    key = serdes.time_windowed(S, 10)
    builder = StreamsBuilder()
    windowed = builder.stream("in", Consumed(key, value=S))
    windowed.to("out")
    builder.build().add_sink("by-hand", "whole", "KSTREAM-SOURCE-0000000000", key_serde=key, value_serde=S)
    compiled = Compiled(builder.build(), tmp_path)
    compiled.run(*((Windowed("a", Window(start, start + 10)), "x", start) for start in range(0, 100, 10)))
    assert {sent[5] for sent in compiled.outputs.sent if sent[0] == "out"} == {murmur2(b"a") & 0x7FFFFFFF & 3}
    assert {sent[5] for sent in compiled.outputs.sent if sent[0] == "whole"} == {None}


def test_what_comes_out_of_a_cache_has_no_place_in_the_input(tmp_path: Path) -> None:
    seen: list[RecordContext] = []

    def choose(key: str, count: int, context: RecordContext) -> str:
        seen.append(context)
        return "out"

    builder = StreamsBuilder()
    builder.stream("in", STRINGS).group_by_key().count(Materialized("n")).to_stream().to(choose)
    compiled = Compiled(builder.build(), tmp_path)
    compiled.run(("a", "x", 7, [("h", b"1")]))
    assert not seen
    compiled.pipeline.flush_caches()
    assert seen == [RecordContext("", -1, -1, 7, [("h", b"1")])]
