"""State that grows record by record until brokers refuse it: the records that would make it too large are left out, no others."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock import serdes
from penstock.runtime.dsl.builder import StreamsBuilder
from penstock.runtime.dsl.options import Materialized, Produced
from penstock.runtime.model.handlers import ProductionExceptionHandlerResponse
from penstock.runtime.model.states import State
from penstock.runtime.topology.topology import Topology
from tests.broker.test_refused_outputs import GUARANTEES, TEXT, Asked, settings
from tests.broker.test_refused_state import LIMIT
from tests.support import Kafka, wait_until
from tests.support.engine import running
from tests.support.logs import alter

Topic = Callable[..., str]
Response = ProductionExceptionHandlerResponse
PIECE = 6_000
"""Three pieces fit into a changelog record, four do not."""
RECORDS = 200


@pytest.fixture
def handler() -> Iterator[type[Asked]]:
    Asked.answer = Response.CONTINUE
    Asked.questions.clear()
    yield Asked


def added(value: str, old: str) -> str:
    return old + value * PIECE if value == "+" else value


def growing(source: str, output: str) -> Topology:
    """Return a topology with two stores that each record updates: one that grows, and a count, which shows what is rolled back."""
    builder = StreamsBuilder()
    grouped = builder.stream(source, TEXT).group_by_key()
    grouped.count(Materialized("counts", caching=True))
    table = grouped.aggregate(str, lambda key, value, old: added(value, old), Materialized("texts", value=serdes.STRING, caching=True))
    table.to_stream().map_values(len).to(output, Produced(serdes.STRING, value=serdes.LONG))
    return builder.build()


def of_environment() -> Topology:
    """Return the topology for workers as processes."""
    return growing(os.environ["TEST_SOURCE"], os.environ["TEST_OUTPUT"])


def expected(rows: list[tuple[str, str]]) -> tuple[dict[str, str], dict[str, int], list[int]]:
    """Return texts and counts by key, and the places of the records that are left out."""
    texts: dict[str, str] = {}
    counts: dict[str, int] = {}
    left_out = []
    for place, (key, value) in enumerate(rows):
        text = added(value, texts.get(key, ""))
        if len(text) > 3 * PIECE + 100:
            left_out.append(place)
        else:
            texts[key], counts[key] = text, counts.get(key, 0) + 1
    return texts, counts, left_out


def rows(seed: int) -> list[tuple[str, str]]:
    """Return records of few keys that grow, among records of many."""
    chance = random.Random(seed)
    found = [(f"k{chance.randrange(40)}", f"value {number}") for number in range(RECORDS)]
    for place in chance.sample(range(RECORDS), 9):
        found[place] = (f"grows{chance.randrange(2)}", "+")
    return found


@pytest.mark.parametrize("guarantee", GUARANTEES)
@pytest.mark.parametrize("workers", [1, 2])
def test_records_are_left_out_one_by_one_from_state_that_grows(
    broker: Kafka,
    topic: Topic,
    application_id: str,
    state_dir: Path,
    handler: type[Asked],
    monkeypatch: pytest.MonkeyPatch,
    guarantee: str,
    workers: int,
) -> None:
    source, output, dead = topic("in", partitions=2), topic("out"), topic("dead")
    monkeypatch.setenv("TEST_SOURCE", source)
    monkeypatch.setenv("TEST_OUTPUT", output)
    topology: Topology | str = growing(source, output) if workers == 1 else f"{__name__}:of_environment"
    more = {"errors.dead.letter.queue.topic.name": dead, "commit.interval.ms": 300, "num.stream.threads": workers}
    data = {partition: rows(partition) for partition in range(2)}
    with running(broker, topology, application_id, state_dir, **settings(guarantee, **more)) as streams:
        alter(broker, f"{application_id}-texts-changelog", "max.message.bytes", str(LIMIT))
        for partition, found in data.items():
            broker.produce(source, [(f"{key}-{partition}", value) for key, value in found], partition=partition)
        wait_until(lambda: broker.committed_offsets(application_id, source) == dict.fromkeys(data, RECORDS), what="the end of the input")
        assert streams.state is State.RUNNING
        if workers == 1:
            for partition, found in data.items():
                wanted_texts, wanted_counts, _ = expected(found)
                assert {key: streams.store("texts").get(f"{key}-{partition}") for key in wanted_texts} == wanted_texts
                assert {key: streams.store("counts").get(f"{key}-{partition}") for key in wanted_counts} == wanted_counts
    texts = {record.key: record.value for record in broker.consume(f"{application_id}-texts-changelog")}
    counts = {record.key: record.value for record in broker.consume(f"{application_id}-counts-changelog")}
    letters = [{name: value or b"" for name, value in letter.headers} for letter in broker.consume(dead)]
    for partition, found in data.items():
        wanted_texts, wanted_counts, left_out = expected(found)
        for key, text in wanted_texts.items():
            assert texts[f"{key}-{partition}".encode()] == text.encode()
        for key, count in wanted_counts.items():
            assert counts[f"{key}-{partition}".encode()] == struct.pack(">q", count)
        named = [int(each["__streams.errors.offset"]) for each in letters if each["__streams.errors.partition"] == str(partition).encode()]
        assert left_out and sorted(named if guarantee == "exactly_once_v2" else set(named)) == left_out
