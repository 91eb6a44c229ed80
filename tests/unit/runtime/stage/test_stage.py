"""A stage makes of its whole input what the test driver makes of it record by record: outputs and stores, byte for byte."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

from penstock import (
    ErrorHandlerContext,
    JoinWindows,
    LogAndContinueProcessingExceptionHandler,
    Processor,
    ProcessorContext,
    ProductionExceptionHandler,
    ProductionExceptionHandlerResponse,
    PunctuationType,
    Record,
    StreamJoined,
    StreamsBuilder,
    StreamsConfig,
    Topology,
)
from penstock.runtime.input.columns import RawColumns
from penstock.runtime.model.errors import DeserializationError
from penstock.runtime.model.ids import TopicPartition
from penstock.runtime.model.record import Headers
from penstock.runtime.stage.stage import Stage
from penstock.runtime.tasks.incidents import PausePoint
from tests.support.history import CONFIG, FAMILIES, FIRST_MS, PAUSING, Family, Made, Sent, by_driver, columns, divided, records
from tests.support.seeds import entries

RUN = 7
"""Records handed over at once: fewer than a batch, so that runs of several partitions alternate."""


@dataclass
class Log:
    """Outputs of a stage."""

    keeps_changelogs = False
    outputs: dict[str, list[Sent]] = field(default_factory=dict)

    def send(
        self, topic: str, key: bytes | None, value: bytes | None, timestamp: int, headers: Headers | None, partition: int | None
    ) -> None:
        self.outputs.setdefault(topic, []).append(Sent(key, value, timestamp, list(headers) if headers else None))

    def end(self, topic: str) -> int:
        raise NotImplementedError(topic)


def by_stages(
    topology: Topology,
    inputs: Mapping[str, Sequence[Sent]],
    folder: Path,
    config: Mapping[str, object] = CONFIG,
    rejected: list[PausePoint] | None = None,
) -> Made:
    """Run the stages of a topology in the order of their numbers, each with one task, and repartition topics between them."""
    settings, made = StreamsConfig(config), Made()
    resolved = topology.resolved(settings)
    topics: dict[str, Sequence[Sent]] = dict(inputs)
    global_topics = resolved.global_topics
    for part in resolved.sub_topologies():
        log, counts = Log(), dict.fromkeys([*topics, *part.source_topics], 1)
        stage = Stage(
            settings,
            resolved,
            part,
            0,
            folder / str(part.id),
            partitions=counts,
            outputs=log,
            rejected=(list[PausePoint]() if rejected is None else rejected).append,
        )
        try:
            for topic in global_topics:
                stage.fill_globals(TopicPartition(topic, 0), columns(topic, 0, topics[topic]))
            stage.run({TopicPartition(topic, 0): _runs(topic, topics[topic]) for topic in part.source_topics})
            written = stage.write_snapshot(folder / "snapshots", f"s{part.id}", FIRST_MS, {})
        finally:
            stage.close()
        for builder in part.stores:
            made.stores[builder.name] = entries(written / builder.name)
        topics |= log.outputs
        made.outputs |= {topic: sent for topic, sent in log.outputs.items() if not topic.endswith("-repartition")}
    return made


def _runs(topic: str, sent: Sequence[Sent]) -> Iterator[RawColumns]:
    whole = columns(topic, 0, sent)
    return (whole[start : start + RUN] for start in range(0, len(whole), RUN))


@pytest.mark.parametrize("family", [family for family in FAMILIES if str(family) != "foreign_keys"], ids=str)  # a circle is no stage here
@pytest.mark.parametrize("seed", range(4))
def test_a_stage_makes_what_the_stream_makes(family: Family, seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    inputs = {topic: records(random, 120, null_keys=family.null_keys) for topic in family.topics}
    inputs |= {topic: records(random, 10, null_keys=False) for topic in family.global_topics}
    expected = by_driver(family, inputs, tmp_path / "driver")
    found = by_stages(family.build(), inputs, tmp_path / "stage")
    assert found.outputs == expected.outputs
    assert found.stores == expected.stores
    assert any(found.outputs.values())


def test_a_record_that_pauses_the_task_is_rejected_without_a_trace(tmp_path: Path) -> None:
    """Its outputs and updates before the failure are rolled back, and the records since the last commit are processed again."""
    good = [Sent(b"a", (n + 1).to_bytes(8, "big"), FIRST_MS + n) for n in range(40)]
    bad = {5: Sent(b"a", b"short", FIRST_MS), 17: Sent(b"b", bytes(8), FIRST_MS), 39: Sent(b"b", bytes(8), FIRST_MS)}
    rejected: list[PausePoint] = []
    found = by_stages(divided(), {"in": [bad.get(n, good[n]) for n in range(40)]}, tmp_path / "all", PAUSING, rejected)
    expected = by_stages(divided(), {"in": [good[n] for n in range(40) if n not in bad]}, tmp_path / "good", PAUSING)
    assert [(point.offset, point.reason) for point in rejected] == [(5, "deserialization"), (17, "processing"), (39, "processing")]
    assert (found.outputs, found.stores) == (expected.outputs, expected.stores)


@pytest.mark.parametrize("pauses", [False, True], ids=["skip", "pause"])
def test_of_partitions_that_alternate_only_the_failed_record_is_left_out(pauses: bool, tmp_path: Path) -> None:
    """Their records are processed as a merge; those before the failure count, of both partitions."""
    failing = {("l", 5), ("r", 17), ("r", 18), ("l", 29)}

    def checked(value: str | None) -> str | None:
        if value is not None and value.startswith("bad"):
            raise ValueError(value)
        return value

    builder = StreamsBuilder()
    left, right = (builder.stream(topic).map_values(checked) for topic in ("l", "r"))
    windows = JoinWindows.of_time_difference_with_no_grace(3)
    left.join(right, lambda one, two: f"{one}+{two}", windows, StreamJoined(name="pairs")).to("out")
    topology = builder.build(StreamsConfig(CONFIG))
    handler = PAUSING if pauses else {**CONFIG, "processing.exception.handler": LogAndContinueProcessingExceptionHandler}

    def sent(bad: str) -> dict[str, list[Sent]]:
        value = {place: f"{bad}{n}".encode() for n, place in enumerate(sorted(failing))} if bad else {}
        return {
            topic: [
                Sent(b"k", value.get((topic, n), b"%s%d" % (topic.encode(), n)), FIRST_MS + 2 * n + (topic == "r"))
                for n in range(30)
                if bad or (topic, n) not in failing
            ]
            for topic in "lr"
        }

    rejected: list[PausePoint] = []
    found = by_stages(topology, sent("bad"), tmp_path / "all", handler, rejected)
    expected = by_stages(topology, sent(""), tmp_path / "good", handler)
    assert found.outputs == expected.outputs
    assert len(found.outputs["out"]) > 80
    assert {(point.partition.topic, point.offset) for point in rejected} == (failing if pauses else set())


def test_of_partitions_that_alternate_a_result_that_cannot_be_written_is_traced_to_its_record(tmp_path: Path) -> None:
    traced: list[tuple[str, int, bytes | None]] = []

    class Tracing(ProductionExceptionHandler):
        def handle_serialization_exception(
            self, context: ErrorHandlerContext, record: object, exception: Exception, origin: object
        ) -> ProductionExceptionHandlerResponse:
            traced.append((context.topic, context.offset, context.source_raw_value))
            return ProductionExceptionHandlerResponse.CONTINUE

    builder = StreamsBuilder()
    builder.stream("l").merge(builder.stream("r")).map_values(lambda value: 1 if value in ("l7", "r3") else value).to("out")
    inputs = {topic: [Sent(b"k", b"%s%d" % (topic.encode(), n), FIRST_MS + n) for n in range(20)] for topic in "lr"}
    config = {**CONFIG, "production.exception.handler": Tracing}
    found = by_stages(builder.build(StreamsConfig(CONFIG)), inputs, tmp_path, config)
    assert traced == [("r", 3, b"r3"), ("l", 7, b"l7")]
    assert [sent.value for sent in found.outputs["out"]] == [
        b"%s%d" % (topic.encode(), n) for n in range(20) for topic in "lr" if (topic, n) not in {("l", 7), ("r", 3)}
    ]


def test_a_handler_that_fails_ends_the_run_with_the_record(tmp_path: Path) -> None:
    with pytest.raises(DeserializationError, match="in-0@1"):
        by_stages(divided(), {"in": [Sent(b"a", bytes([1] * 8), 1), Sent(b"a", b"short", 2)]}, tmp_path)


class Clocked(Processor[str, str, str, str]):
    """Writes the wall-clock time every ten seconds of it."""

    def init(self, context: ProcessorContext[str, str]) -> None:
        context.schedule(10_000, PunctuationType.WALL_CLOCK_TIME, lambda now: context.forward(Record("now", str(now), now)))

    def process(self, record: Record[str, str]) -> None: ...


def test_wall_clock_punctuators_follow_stream_time(tmp_path: Path) -> None:
    builder = StreamsBuilder()
    builder.stream("in").process(Clocked).to("out")
    sent = [Sent(b"a", b"x", FIRST_MS + n * 4_000) for n in range(3_000)]
    found = by_stages(builder.build(StreamsConfig(CONFIG)), {"in": sent}, tmp_path)
    times = [each.timestamp for each in found.outputs["out"]]
    assert times == sorted(times)
    assert times[0] >= FIRST_MS + 10_000
    assert times[-1] == sent[-1].timestamp
