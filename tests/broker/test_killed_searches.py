"""`kill -9` in the middle of the search for the record behind a refused output: the next process searches again."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock import serdes
from penstock.runtime.dsl.builder import StreamsBuilder
from penstock.runtime.dsl.options import Consumed, Materialized, Produced
from penstock.runtime.model.handlers import ErrorHandlerContext, ProductionExceptionHandler, ProductionExceptionHandlerResponse
from penstock.runtime.model.timestamps import ConsumerRecord
from penstock.runtime.topology.topology import Topology
from tests.broker.worker_apps import once
from tests.support import Kafka, wait_until
from tests.support.instances import Application
from tests.support.logs import alter

Topic = Callable[..., str]
RECORDS, KEYS, BEFORE, BAD = 600, 20, 200, 411
LIMIT = 20_000
FAR_AHEAD_MS = 400 * 86_400_000


class HangsOnce(ProductionExceptionHandler):
    """Hangs when it is asked for the first time, then answers CONTINUE."""

    def handle(self, context: ErrorHandlerContext, record: ConsumerRecord, exception: Exception) -> ProductionExceptionHandlerResponse:
        with Path(os.environ["TEST_FOLDER"], "asked").open("a") as asked:
            asked.write(f"{context.offset}\n")
        if once("hung-asked"):
            time.sleep(600)
        return ProductionExceptionHandlerResponse.CONTINUE


def _hanging(value: str) -> str:
    """Hang once when a record in front of the bad one is processed again, and once at the record behind it after a decision."""
    folder = Path(os.environ["TEST_FOLDER"])
    if value == f"value {BEFORE}" and not once("first pass") and once("hung-searching"):
        time.sleep(600)
    behind = value == f"value {BAD + 1}" and (folder / "again").exists()
    if behind and (folder / "asked").read_text().count("\n") > 1 and once("hung-judged"):
        time.sleep(600)
    return value


def _counted(key: str, value: str, old: str) -> str:
    return "x" * (LIMIT + 1) if value == "large" else str(int(old) + 1)


def counts() -> Topology:
    """Count the records of each key, as text; the value `large` makes it too large. The time is that in the key, if there is one."""

    def own_time(record: ConsumerRecord, _partition_time: int) -> int:
        return int(time.time() * 1000) + (FAR_AHEAD_MS if record.value == "late" else 0)

    builder = StreamsBuilder()
    consumed = Consumed(serdes.STRING, value=serdes.STRING, timestamp_extractor=own_time)
    stream = builder.stream(os.environ["TEST_SOURCE"], consumed).map_values(_hanging)
    table = stream.group_by_key().aggregate(lambda: "0", _counted, Materialized("counts", value=serdes.STRING, caching=False))
    table.to_stream().to(os.environ["TEST_OUTPUT"], Produced(serdes.STRING, value=serdes.STRING))
    return builder.build()


@pytest.fixture
def application(broker: Kafka, topic: Topic, application_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Application]:
    monkeypatch.setenv("TEST_FOLDER", str(tmp_path))
    settings: dict[str, object] = {
        "commit.interval.ms": 3_000,
        "production.exception.handler": "tests.broker.test_killed_searches.HangsOnce",
        "errors.dead.letter.queue.topic.name": topic("dead"),
        "statestore.checkpoint.interval.ms": 0,
    }
    running = Application(
        broker, application_id, topic("in"), topic("out"), tmp_path, settings, factory="tests.broker.test_killed_searches:counts"
    )
    yield running
    running.kill_all()


@pytest.mark.parametrize(
    ("bad", "guarantee"),
    [
        ("late", "exactly_once_v2"),
        ("large", "at_least_once"),
        pytest.param("large", "exactly_once_v2", marks=pytest.mark.nightly),
        pytest.param("late", "at_least_once", marks=pytest.mark.nightly),
    ],
)
def test_a_search_that_is_killed_at_each_of_its_steps_leaves_out_that_record_alone(
    broker: Kafka, application_id: str, tmp_path: Path, application: Application, guarantee: str, bad: str
) -> None:
    """Killed while commits are narrowed, while the handler decides, and after the decision, before the commit without the record."""
    application.settings["processing.guarantee"] = guarantee
    dead = str(application.settings["errors.dead.letter.queue.topic.name"])
    application.start("one")
    application.becomes({"one": 1})
    refusing = f"{application_id}-counts-changelog" if bad == "large" else application.output
    name, value = ("max.message.bytes", str(LIMIT)) if bad == "large" else ("message.timestamp.after.max.ms", "3600000")
    alter(broker, refusing, name, value)
    rows = [(f"k{number % KEYS}", f"value {number}") for number in range(RECORDS)]
    times = {f"k{number}".encode(): RECORDS // KEYS for number in range(KEYS)}
    times[rows[BAD][0].encode()] -= 1
    rows[BAD] = ("bad", bad)
    broker.produce(application.source, rows)

    def committed() -> int:
        return broker.committed_offsets(application_id, application.source).get(0, 0)

    wait_until((tmp_path / "hung-searching").exists, 60, "the records in front of it again")
    application.kill("one")
    assert committed() <= BEFORE
    application.start("one")
    wait_until((tmp_path / "hung-asked").exists, 90, "the handler's question")
    application.kill("one")
    (tmp_path / "again").touch()
    application.start("one")
    if guarantee == "exactly_once_v2" or bad == "large":  # else the refused output alone is left out: nothing is processed again
        wait_until((tmp_path / "hung-judged").exists, 90, "the record behind the decision")
        application.kill("one")
        assert committed() <= BAD + 1
        application.start("one")
    wait_until(lambda: committed() == RECORDS, 90, "the end of the input")
    assert {int(line) for line in (tmp_path / "asked").read_text().split()} == {BAD}
    letters = [(record.key, record.value) for record in broker.consume(dead)]
    wanted = (rows[BAD][0].encode(), bad.encode())
    assert letters == [wanted] if guarantee == "exactly_once_v2" else set(letters) == {wanted}
    counts: dict[bytes, list[int]] = {}
    for record in broker.consume(application.output):
        if record.key != b"bad" or guarantee == "exactly_once_v2":  # under at-least-once, outputs written before the refusal remain
            counts.setdefault(record.key or b"", []).append(int(record.value or b""))
    if guarantee == "exactly_once_v2":
        assert counts == {key: list(range(1, count + 1)) for key, count in times.items()}
    else:
        assert all(counts[key][-1] >= count for key, count in times.items()), "records are counted again after a kill, and none is lost"
