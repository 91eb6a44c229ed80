"""Results that operators hold back and emit with a later record, refused by a store's changelog: no later record is dropped for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import count
from pathlib import Path

import pytest

from penstock.runtime import serdes
from penstock.runtime.dsl.builder import StreamsBuilder
from penstock.runtime.dsl.kstream import KStream
from penstock.runtime.dsl.options import Grouped, Joined, Materialized, StreamJoined
from penstock.runtime.dsl.windows import JoinWindows, Suppressed
from penstock.runtime.model.errors import ProductionError
from penstock.runtime.model.handlers import ProductionExceptionHandlerResponse
from penstock.runtime.model.states import State
from penstock.runtime.stores.suppliers import Stores
from penstock.runtime.topology.topology import Topology
from tests.broker.test_refused_outputs import Asked, settings
from tests.broker.test_refused_state import GUARANTEES, LIMIT, TEXT, limited, stretched
from tests.support import Kafka, wait_until
from tests.support.engine import running

Topic = Callable[..., str]
TEXTS = Materialized("latest", value=serdes.STRING)
HELD = timedelta(seconds=5)
BAD = 30
"""Offset of the record whose result is too large, when it is emitted with a later record."""


@pytest.fixture
def handler() -> Iterator[type[Asked]]:
    Asked.answer = ProductionExceptionHandlerResponse.CONTINUE
    Asked.questions.clear()
    yield Asked


def keep(stream: KStream[str, str]) -> None:
    stream.group_by_key(Grouped(serdes.STRING, value=serdes.STRING)).reduce(lambda old, new: new, TEXTS)


def unmatched(source: str, other: str) -> Topology:
    builder = StreamsBuilder()
    joined = StreamJoined(serdes.STRING, value=serdes.STRING, other_value=serdes.STRING)
    windows = JoinWindows.of_time_difference_with_no_grace(HELD)
    keep(builder.stream(source, TEXT).left_join(builder.stream(other, TEXT), lambda left, right: stretched(left), windows, joined))
    return builder.build()


def suppressed(source: str, other: str) -> Topology:
    builder = StreamsBuilder()
    rows = builder.table(source, TEXT, Materialized("rows"))
    rows.suppress(Suppressed.until_time_limit(HELD, Suppressed.BufferConfig.unbounded())).map_values(stretched, TEXTS)
    return builder.build()


def joined_later(source: str, other: str) -> Topology:
    builder = StreamsBuilder()
    versions = Stores.persistent_versioned_key_value_store("versions", timedelta(days=1))
    table = builder.table(other, TEXT, Materialized(versions))
    joined = Joined(serdes.STRING, value=serdes.STRING, other_value=serdes.STRING, grace_period=HELD)
    keep(builder.stream(source, TEXT).left_join(table, lambda left, right: stretched(left), joined))
    return builder.build()


@pytest.mark.parametrize("guarantee", GUARANTEES)
@pytest.mark.parametrize("make", [unmatched, suppressed, joined_later])
def test_a_result_that_was_held_back_ends_the_client_and_no_later_record_is_dropped_for_it(
    broker: Kafka,
    topic: Topic,
    application_id: str,
    state_dir: Path,
    handler: type[Asked],
    guarantee: str,
    make: Callable[[str, str], Topology],
) -> None:
    """The store refuses the result of one record when a later record has it emitted. Skipping that later record would not help: the result
    would be emitted with the next one, and each would be dropped in its turn."""
    source, other, dead = topic("in"), topic("other"), topic("dead")
    more = {"errors.dead.letter.queue.topic.name": dead, "commit.interval.ms": 500}
    began_ms = int(time.time() * 1000) - 3_600_000
    with running(broker, make(source, other), application_id, state_dir, **settings(guarantee, **more)) as streams:
        limited(broker, application_id, "latest-changelog")
        numbers = count()

        def ended() -> bool:
            """Stream time must go on: the join looks for such results once a second."""
            number = next(numbers)
            row = (f"k{number}", f"*{LIMIT + 1}" if number == BAD else f"v{number}")
            broker.produce(source, [row], timestamps=[began_ms + number * 1000])
            return streams.state is State.ERROR

        wait_until(ended, what="the end")
        assert isinstance(streams.failure, ProductionError)
        for part in (
            "a result that was held back: its output of",
            "latest-changelog was refused",
            "MSG_SIZE_TOO_LARGE",
            "latest-changelog take it",
        ):
            assert part in str(streams.failure)
    assert {context.offset for context, _, _ in handler.questions} == {-1}
    assert broker.consume(dead) == []
