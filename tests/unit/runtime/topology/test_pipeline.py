"""The compiled chain: errors and where they are said to be, headers, stream time, caches, the life of processors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import Consumed, Materialized, Produced, StreamsBuilder, serdes
from penstock.runtime.model.errors import InvalidStateStoreError, ProcessingError, ProductionError, TransactionAbortedError
from penstock.runtime.operators.aggregate import StreamCount
from penstock.runtime.operators.stateless import Filter, MapValues, Peek
from penstock.runtime.operators.table import ToStream
from penstock.runtime.stores import EngineStore, StoreBuilder, Stores
from penstock.runtime.topology.topology import Topology
from tests.support.building import Windows, window_count
from tests.support.pipelines import Compiled

S, L = serdes.STRING, serdes.LONG


def source() -> Topology:
    return Topology().add_source("source", "in", key_serde=S, value_serde=S)


def mapped(fn: Callable[[str], str]) -> Topology:
    topology = source().add_operator("first", Peek(lambda key, value: None), ["source"]).add_operator("second", MapValues(fn), ["first"])
    topology.add_operator("third", Peek(lambda key, value: None), ["second"])
    return topology.add_sink("sink", "out", "third", key_serde=S, value_serde=S)


def counts(*, caching: bool = True) -> StoreBuilder[EngineStore]:
    builder = Stores.timestamped_key_value_store_builder(Stores.in_memory_key_value_store("counts"), S, L)
    return builder.with_caching_enabled() if caching else builder.with_caching_disabled()


def counted(store: StoreBuilder[EngineStore]) -> Topology:
    topology = source().add_state_store(store).add_operator("count", StreamCount("counts"), ["source"], ["counts"])
    topology.add_operator("stream", ToStream(), ["count"])
    return topology.add_sink("sink", "out", "stream", key_serde=S, value_serde=L)


def test_an_error_of_the_users_names_node_task_and_record(tmp_path: Path) -> None:
    def fail(value: str) -> str:
        if value == "bad":
            raise LookupError("no such thing")
        return value

    compiled = Compiled(mapped(fail), tmp_path)
    with pytest.raises(ProcessingError) as caught:
        compiled.run(("a", "x", 10), ("b", "y", 30), ("c", "bad", 20), ("d", "z", 90))
    error = caught.value
    line = f"{__file__}:{fail.__code__.co_firstlineno + 2} in {fail.__qualname__}"
    assert str(error) == f"task 0_3, node second, record in-3@102, at {line}: LookupError: no such thing"
    assert (error.node, error.topic, error.partition, error.offset, error.index) == ("second", "in", 3, 102, 2)
    assert isinstance(error.__cause__, LookupError)
    assert [sent[1] for sent in compiled.outputs.sent] == [b"a", b"b"]
    assert compiled.pipeline.stream_time == 30


def test_the_index_of_an_error_counts_from_the_whole_run(tmp_path: Path) -> None:
    compiled = Compiled(mapped(lambda value: {"ok": "fine"}[value]), tmp_path)
    rows = [("a", "ok", 1), ("b", "ok", 2), ("c", "bad", 3)]
    with pytest.raises(ProcessingError) as caught:
        compiled.run(*rows, start=1)
    assert (caught.value.index, caught.value.offset) == (2, 102)
    assert [sent[1] for sent in compiled.outputs.sent] == [b"b"]


def test_a_value_that_cannot_be_written_is_the_sinks_error(tmp_path: Path) -> None:
    topology = source().add_operator("number", MapValues(lambda value: 1), ["source"])
    topology.add_sink("sink", "out", "number", key_serde=S, value_serde=S)
    compiled = Compiled(topology, tmp_path)
    with pytest.raises(ProcessingError, match="node sink, record in-3@100"):
        compiled.run(("a", "x", 1))


@pytest.mark.parametrize("error", [ProductionError("full"), TransactionAbortedError("rolled back")])
def test_errors_of_the_engine_are_not_wrapped(tmp_path: Path, error: Exception) -> None:
    compiled = Compiled(counted(counts()), tmp_path)
    compiled.run(("a", "x", 1))
    compiled.outputs.fail = error
    with pytest.raises(type(error)) as caught:
        compiled.pipeline.flush_caches()
    assert caught.value is error


def test_an_error_while_a_cache_is_flushed_belongs_to_no_record(tmp_path: Path) -> None:
    topology = source().add_state_store(counts()).add_operator("count", StreamCount("counts"), ["source"], ["counts"])
    topology.add_operator("stream", ToStream(), ["count"]).add_operator("broken", Peek(lambda key, value: 1 / 0), ["stream"])
    compiled = Compiled(topology, tmp_path)
    compiled.run(("a", "x", 1))
    with pytest.raises(
        ProcessingError,
        match=r"task 0_3, node broken while a cache was flushed, at .*/test_pipeline\.py:\d+ in \S+<lambda>: ZeroDivisionError",
    ) as caught:
        compiled.pipeline.flush_caches()
    assert (caught.value.index, caught.value.offset) == (None, None)


def test_caches_fold_updates_and_forward_at_the_flush(tmp_path: Path) -> None:
    compiled = Compiled(counted(counts()), tmp_path)
    compiled.run(("a", "x", 5), ("b", "x", 7), ("a", "x", 3))
    assert compiled.outputs.sent == []
    compiled.pipeline.flush_caches()
    assert sorted((key, value, timestamp) for _, key, value, timestamp, _, _ in compiled.outputs.sent) == [
        (b"a", L.serializer("")(2), 5),
        (b"b", L.serializer("")(1), 7),
    ]
    compiled.pipeline.flush_caches()
    assert len(compiled.outputs.sent) == 2


def test_without_cache_every_update_is_forwarded_at_once(tmp_path: Path) -> None:
    for builder, cache_bytes in ((counts(caching=False), 1 << 20), (counts(), 0)):
        compiled = Compiled(counted(builder), tmp_path, cache_bytes=cache_bytes)
        compiled.run(("a", "x", 5), ("a", "x", 3))
        assert [value for _, _, value, _, _, _ in compiled.outputs.sent] == [L.serializer("")(1), L.serializer("")(2)]


def test_caches_below_caches_are_flushed_in_one_go(tmp_path: Path) -> None:
    second = Stores.timestamped_key_value_store_builder(Stores.in_memory_key_value_store("second"), S, L).with_caching_enabled()
    topology = source().add_state_store(counts()).add_state_store(second)
    topology.add_operator("count", StreamCount("counts"), ["source"], ["counts"]).add_operator("stream", ToStream(), ["count"])
    topology.add_operator("again", StreamCount("second"), ["stream"], ["second"]).add_operator("out", ToStream(), ["again"])
    compiled = Compiled(topology.add_sink("sink", "out", "out", key_serde=S, value_serde=L), tmp_path)
    compiled.run(("a", "x", 1), ("b", "x", 2))
    compiled.pipeline.flush_caches()
    assert {key for _, key, _, _, _, _ in compiled.outputs.sent} == {b"a", b"b"}


def test_headers_go_with_the_record_and_through_the_cache(tmp_path: Path) -> None:
    one, two = [("n", b"1")], [("n", b"2")]
    plain = Compiled(mapped(str.upper), tmp_path)
    plain.run(("a", "x", 1, one), ("b", "y", 2, None), ("c", "z", 3, two))
    assert [sent[4] for sent in plain.outputs.sent] == [one, None, two]
    plain.run(("d", "x", 4))
    assert plain.outputs.sent[-1][4] is None
    cached = Compiled(counted(counts()), tmp_path)
    cached.run(("a", "x", 1, one), ("b", "y", 2, None), ("a", "x", 3, two))
    cached.pipeline.flush_caches()
    assert {sent[1]: sent[4] for sent in cached.outputs.sent} == {b"a": two, b"b": None}


def test_an_eviction_in_the_middle_of_a_record_leaves_its_headers_alone(tmp_path: Path) -> None:
    topology = counted(counts()).add_operator("beside", MapValues(lambda value: value), ["source"])
    topology.add_sink("copy", "copy", "beside", key_serde=S, value_serde=S)
    compiled = Compiled(topology, tmp_path, cache_bytes=200)  # room for two entries: a third evicts the first
    compiled.run(*[(f"key-{n}", "x", n, [("n", str(n).encode())]) for n in range(5)])
    assert 0 < len([sent for sent in compiled.outputs.sent if sent[0] == "out"]) < 5
    compiled.pipeline.flush_caches()
    for topic in ("out", "copy"):
        assert [(sent[1], sent[4]) for sent in compiled.outputs.sent if sent[0] == topic] == [
            (f"key-{n}".encode(), [("n", str(n).encode())]) for n in range(5)
        ]


def test_stream_time_is_the_largest_timestamp_and_never_goes_back(tmp_path: Path) -> None:
    compiled = Compiled(mapped(str.upper), tmp_path)
    assert compiled.pipeline.stream_time == -1
    compiled.run(("a", "x", 10), ("a", "x", 40), ("a", "x", 20))
    compiled.run(("a", "x", 5))
    assert compiled.pipeline.stream_time == 40


def test_late_records_of_a_window_aggregate_stay_late_after_a_restart(tmp_path: Path) -> None:
    windows = Windows(10, 10, 0)
    supplier = Stores.in_memory_window_store("w", 10, 10)
    store = Stores.timestamped_window_store_builder(supplier, S, L).with_caching_enabled()
    topology = source().add_state_store(store).add_operator("count", window_count("w", windows), ["source"], ["w"])
    compiled = Compiled(topology, tmp_path)
    compiled.run(("a", "x", 5), ("a", "x", 30))
    compiled.pipeline.flush_caches()
    list(compiled.stores["w"].changelog_records())
    compiled.stores["w"].commit({})
    compiled.compile()
    compiled.run(("a", "x", 9))
    assert compiled.dropped() == 1


def test_a_missing_store_is_reported_when_the_pipeline_is_compiled(tmp_path: Path) -> None:
    topology = source().add_operator("count", StreamCount("counts"), ["source"])
    with pytest.raises(InvalidStateStoreError, match="'counts'"):
        Compiled(topology, tmp_path)


def test_a_partitioner_chooses_one_several_no_or_the_default_partition(tmp_path: Path) -> None:
    choices: dict[str, int | list[int] | None] = {"one": 2, "some": [0, 3], "none": [], "default": None}
    topology = source().add_sink(
        "sink", "out", "source", key_serde=S, value_serde=S, partitioner=lambda topic, key, value, partitions: choices[str(value)]
    )
    compiled = Compiled(topology, tmp_path)
    compiled.run(*[("k", choice, 1) for choice in choices])
    assert [(value, partition) for _, _, value, _, _, partition in compiled.outputs.sent] == [
        (b"one", 2),
        (b"some", 0),
        (b"some", 3),
        (b"default", None),
    ]


def test_a_sink_may_choose_its_topic_by_record(tmp_path: Path) -> None:
    topology = source().add_sink("two", lambda key, value: f"to-{value}", "source", key_serde=S, value_serde=S)
    topology.add_sink("three", lambda key, value, metadata: f"at-{metadata.offset}", "source", key_serde=S, value_serde=S)
    compiled = Compiled(topology, tmp_path)
    compiled.run(("k", "x", 1), ("k", "y", 1))
    assert [sent[0] for sent in compiled.outputs.sent] == ["to-x", "at-100", "to-y", "at-101"]


def test_tracebacks_contain_the_names_of_nodes(tmp_path: Path) -> None:
    topology = source().add_operator("KSTREAM-FILTER-0000000001", Filter(lambda key, value: 1 / 0), ["source"])
    with pytest.raises(ProcessingError) as caught:
        Compiled(topology, tmp_path).run(("a", "x", 1))
    assert caught.value.__cause__ is not None
    traceback, names = caught.value.__cause__.__traceback__, []
    while traceback is not None:
        names.append(traceback.tb_frame.f_code.co_name)
        traceback = traceback.tb_next
    assert "KSTREAM-FILTER-0000000001" in names


def test_the_kind_of_what_runs_alone_is_known_while_it_runs(tmp_path: Path) -> None:
    """An output may be refused in the middle of it, and the message names the kind."""
    compiled = Compiled(mapped(str.upper), tmp_path)
    seen: list[str] = []
    compiled.context.held[lambda: seen.append(compiled.context.ran_alone)] = None
    compiled.pipeline.punctuate(0)
    assert seen == ["a result that was held back"]


def test_both_sides_of_a_foreign_key_join_read_their_tables_ahead(tmp_path: Path) -> None:
    """The rows that subscriptions and responses ask for are known from their keys."""
    builder = StreamsBuilder()
    left = builder.table("left", Consumed(S, value=S), Materialized("lefts"))
    right = builder.table("right", Consumed(S, value=S), Materialized("rights"))
    left.join(right, lambda value: value[:1], lambda one, other: one + other).to_stream().to("out", Produced(S, value=S))
    found: dict[str, set[str]] = {}
    for part in range(2):
        compiled = Compiled(builder.build(), tmp_path / str(part), part=part)
        for topic, look_ups in compiled.pipeline._look_ups.items():
            found[topic.partition("-0")[0]] = {each.store.name for each in look_ups.of_stores}
    assert found == {
        "left": {"lefts"},
        "right": {"rights"},
        "app-KTABLE-FK-JOIN-SUBSCRIPTION-REGISTRATION": {"rights"},
        "app-KTABLE-FK-JOIN-SUBSCRIPTION-RESPONSE": {"lefts"},
    }
