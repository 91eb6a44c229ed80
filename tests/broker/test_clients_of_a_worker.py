"""Number of Kafka clients and threads of a worker (docs/architecture.md, "Clients and threads")."""

from __future__ import annotations

import gc
import logging
import re
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import confluent_kafka
import confluent_kafka.admin
import pytest

from penstock import serdes
from penstock.runtime.dsl.builder import StreamsBuilder
from penstock.runtime.dsl.options import Consumed, Materialized, Produced
from penstock.runtime.kafka import clients
from penstock.runtime.topology.topology import Topology
from tests.support import Kafka, wait_until
from tests.support.engine import running

Topic = Callable[..., str]
OF_EACH = ("worker", "topics", "transactions")
OF_THE_LEADER = ("liveness", "fence", "leader's transactions")


class Clients:
    """The clients that were created and are not closed or dropped yet."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._made: weakref.WeakSet[object] = weakref.WeakSet()
        made = self._made

        class Consumer(confluent_kafka.Consumer):
            def __init__(self, config: dict[str, str], logger: logging.Logger) -> None:
                super().__init__(config, logger=logger)
                made.add(self)

            def close(self) -> None:
                super().close()
                made.discard(self)

        class Producer(confluent_kafka.Producer):
            def __init__(self, config: dict[str, str], logger: logging.Logger) -> None:
                super().__init__(config, logger=logger)
                made.add(self)

        class AdminClient(confluent_kafka.admin.AdminClient):
            def __init__(self, config: dict[str, str | int | float | bool], logger: logging.Logger) -> None:
                super().__init__(config, logger=logger)
                made.add(self)

        for name, kind in (("FollowedConsumer", Consumer), ("FollowedProducer", Producer), ("AdminClient", AdminClient)):
            patch.setattr(clients, name, kind)

    def count(self) -> dict[str, int]:
        gc.collect()
        return dict(Counter(type(each).__name__ for each in list(self._made)))


def enriched(source: str, table: str, output: str) -> Topology:
    """Count the records that a global table contains: uses all kinds of consumers except a restore's."""
    builder = StreamsBuilder()
    names = builder.global_table(table, Consumed(serdes.STRING, value=serdes.STRING), Materialized("names"))
    stream = builder.stream(source, Consumed(serdes.STRING, value=serdes.STRING))
    joined = stream.join(names, lambda key, value: key, lambda value, name: name)
    joined.group_by_key().count(Materialized("counts")).to_stream().to(output, Produced(serdes.STRING, value=serdes.LONG))
    return builder.build()


def threads() -> Counter[str]:
    """Return the threads of this process by name, without the variable parts."""
    return Counter(_plain(thread.name) for thread in threading.enumerate())


def _plain(name: str) -> str:
    if name.startswith("transactions of "):
        return "leader's transactions" if name.endswith("-leader") else "transactions"
    return re.sub("^.*-StreamThread-|_", "", name).rstrip("0123456789") or "worker"


@pytest.mark.parametrize(("guarantee", "producers"), [("exactly_once_v2", 3), ("at_least_once", 4)])
def test_a_worker_that_leads_has_so_many_clients_and_threads(
    guarantee: str,
    producers: int,
    broker: Kafka,
    topic: Topic,
    application_id: str,
    state_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, table, output = topic("in"), topic("names", config={"cleanup.policy": "compact"}), topic("out")
    broker.produce(table, [("a", "Anna")])
    broker.produce(source, [("a", "1")])
    before, made = threads(), Clients(monkeypatch)
    settings: dict[str, object] = {"processing.guarantee": guarantee, "commit.interval.ms": 100}
    with running(broker, enriched(source, table, output), application_id, state_dir, **settings):
        wait_until(lambda: broker.consume(output), what="a count")
        assert made.count() == {"Consumer": 4, "Producer": producers, "AdminClient": 3}
        assert threads() - before == Counter([*OF_EACH, *OF_THE_LEADER])
    wait_until(lambda: not threads() - before, what="the end of its threads")
    assert made.count() == {}
