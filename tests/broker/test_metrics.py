"""Metrics of running instances: those of docs/metrics.md and no others, as Prometheus reads them; and what they say of hand-overs and
pauses."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import yaml

from penstock import (
    Consumed,
    EmitStrategy,
    KafkaStreams,
    Materialized,
    Produced,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    Topology,
    serdes,
)
from penstock.orchestration.embedded.ports import free_port
from penstock.runtime.model.events import Event, EventKind
from penstock.runtime.model.ids import TaskId
from tests.support import ROOT, Kafka, unique, wait_until
from tests.support.engine import BAD, PAUSE, active_tasks, client, counts_become, events_of_kind, paused, running, set_offset
from tests.support.metrics_page import Documented, documented_metrics

TEXT = Consumed(serdes.STRING, value=serdes.STRING)


def one_of_each(source: str, rows: str, airports: str, output: str) -> Topology:
    """Return a topology with an operator of each kind that has metrics."""
    builder = StreamsBuilder()
    builder.global_table(airports, TEXT, Materialized("airports"))
    grouped = builder.stream(source, TEXT).group_by_key()
    grouped.count(Materialized("counts")).to_stream().to(output, Produced(serdes.STRING, value=serdes.LONG))
    minutes = TimeWindows.of_size_with_no_grace(60_000)
    grouped.windowed_by(minutes).emit_strategy(EmitStrategy.on_window_close()).count(Materialized("minutes"))
    limit = Suppressed.until_time_limit(60_000, Suppressed.BufferConfig.unbounded())
    builder.table(rows, TEXT, Materialized("rows")).suppress(limit.with_name("few"))
    return builder.build()


@dataclass(frozen=True, slots=True)
class Pair:
    """Two instances of an application. The second has taken over a task of the first, of which it had a copy."""

    broker: Kafka
    application: str
    source: str
    output: str
    first: KafkaStreams
    second: KafkaStreams
    ports: tuple[int, int]

    def events_of(self, kind: EventKind, instance: str) -> list[Event]:
        return [event for event in events_of_kind(self.broker, self.application, kind) if event.instance == instance]


@pytest.fixture(scope="module")
def pair(broker: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder, application, ports = tmp_path_factory.mktemp("pair"), unique("metrics"), (free_port(), free_port())
    source, rows, output = broker.create_topic("in", partitions=2), broker.create_topic("rows"), broker.create_topic("out")
    airports = broker.create_topic("airports", config={"cleanup.policy": "compact"})
    topology = one_of_each(source, rows, airports, output)
    settings: dict[str, object] = {
        "num.standby.replicas": 1,
        "statestore.checkpoint.interval.ms": 0,
        "commit.interval.ms": 500,
        "deserialization.exception.handler": PAUSE,
    }
    broker.produce(source, [("a", "1")] * 3, partition=0)
    broker.produce(source, [("b", "1")] * 2, partition=1)
    broker.produce(airports, [("BER", "Berlin")])

    def of(name: str, port: int) -> dict[str, object]:
        return {**settings, "client.id": name, "metrics.port": port}

    with running(broker, topology, application, folder / "a", **of("a", ports[0])) as first:
        counts_become(broker, output, {"a": 3, "b": 2})
        with client(broker, topology, application, folder / "b", **of("b", ports[1])) as second:
            second.start()
            made = Pair(broker, application, source, output, first, second, ports)
            wait_until(lambda: active_tasks(second), 40, "a task of the second instance")
            wait_until(lambda: made.events_of(EventKind.TASK_TAKEN_OVER, "b"), 20, "the event of the hand-over")
            yield made


def value(streams: KafkaStreams, name: str, **tags: str) -> float:
    """Return the sum of a metric's values with these tags."""
    wanted = {tag.replace("_", "-"): text for tag, text in tags.items()}
    found = [number for key, number in streams.metrics().items() if key.name == name and wanted.items() <= dict(key.tags).items()]
    assert found, name
    return sum(found)


def test_running_instances_register_the_metrics_of_the_page_and_no_others(pair: Pair) -> None:
    names = [*pair.first.metrics(), *pair.second.metrics()]
    found = {Documented(key.group, key.name, "counter" if key.counts else "gauge", tuple(tag for tag, _ in key.tags)) for key in names}
    page = documented_metrics()
    assert sorted(found - page) == [], "not on the page"
    assert sorted(page - found) == [], "only on the page"


def test_a_hand_over_is_seen_with_its_gap_its_cause_and_all_tasks(pair: Pair) -> None:
    wait_until(lambda: value(pair.second, "hand-over-total") == len(pair.events_of(EventKind.TASK_TAKEN_OVER, "b")), what="their number")
    taken = pair.events_of(EventKind.TASK_TAKEN_OVER, "b")[0]
    gap = taken.payload["gap_ms"]
    assert isinstance(gap, int)
    assert 0 <= gap <= value(pair.second, "hand-over-gap-max") < 20_000
    assert str(taken.payload["from"]).startswith("a/")
    assert taken.payload["copied"] is True
    assert not pair.events_of(EventKind.TASK_TAKEN_OVER, "a"), "the first took them over from no member"
    first, *_ = pair.events_of(EventKind.TASKS_ASSIGNED, "a")
    assert first.payload == {"active": ["1_0", "1_1", "2_0"], "standby": [], "learner": [], "cause": "FIRST"}
    assigned = [event.payload for event in pair.events_of(EventKind.TASKS_ASSIGNED, "b")]
    assert assigned[0]["cause"] == "MEMBER_JOINED"
    copied = {str(task) for payload in assigned for kind in ("standby", "learner") for task in payload[kind]}  # type: ignore[attr-defined]
    assert taken.task in copied
    wait_until(lambda: value(pair.second, "assignment-total") == len(pair.events_of(EventKind.TASKS_ASSIGNED, "b")), what="their number")
    assert 0 <= value(pair.second, "last-rebalance-seconds-ago") < 120
    wait_until(lambda: value(pair.first, "active-tasks") + value(pair.second, "active-tasks") == 3, what="every task once")
    assert value(pair.second, "active-tasks") == sum(len(thread.active_tasks) for thread in pair.second.metadata_for_local_threads())
    kinds = {dict(key.tags)["task-id"]: number for key, number in pair.second.metrics().items() if key.name == "task-kind"}
    assert kinds[str(taken.task)] == 0
    assert list(kinds.values()).count(0) == value(pair.second, "active-tasks")


def test_a_task_that_stays_continues_through_a_rebalance(pair: Pair) -> None:
    """KIP-429: nothing stops the world. A task that is closed and opened again starts counting from zero."""
    before = {"1_0": 3, "1_1": 2}
    stayed = active_tasks(pair.first) & before.keys()
    assert stayed, "of three tasks the second takes one"
    assert all(value(pair.first, "process-total", task_id=task) >= before[task] for task in stayed)


def prometheus_of(pair: Pair, folder: Path) -> tuple[subprocess.Popen[bytes], int]:
    """Start a Prometheus that scrapes the instances, with the rules of `deploy/`. Skips where there is none."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("prometheus is not here; on Debian: apt-get install prometheus")
    port = free_port()
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(ROOT / "deploy" / "prometheus" / "penstock.rules.yml")],
        "scrape_configs": [{"job_name": "penstock", "static_configs": [{"targets": [f"127.0.0.1:{each}" for each in pair.ports]}]}],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    options = (f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{port}")
    with (folder / "log").open("wb") as log:
        return subprocess.Popen([program, *options], stdout=log, stderr=log), port


def asked(port: int, path: str, **parameters: str) -> Any:  # noqa: ANN401 (JSON)
    """Return the data of an answer of Prometheus; None while it does not answer."""
    try:
        return json.load(urlopen(f"http://127.0.0.1:{port}/api/v1/{path}?{urlencode(parameters)}", timeout=5))["data"]
    except URLError:
        return None


def queries_of_the_dashboards() -> Iterator[str]:
    """Yield the queries, for all instances, except those that select by value and may rightly be empty."""
    for dashboard in sorted((ROOT / "deploy" / "grafana").glob("*.json")):
        for target in (target for panel in json.loads(dashboard.read_text())["panels"] for target in panel["targets"]):
            if not re.search(r"[>=] \d", target["expr"]):
                yield re.sub(r'=~?"\$\w+"', '=~".*"', target["expr"])


def test_prometheus_scrapes_them_with_types_and_evaluates_rules_and_dashboards(pair: Pair, tmp_path: Path) -> None:
    process, port = prometheus_of(pair, tmp_path)
    try:

        def result(query: str) -> list[dict[str, Any]]:
            answer = asked(port, "query", query=query)
            found: list[dict[str, Any]] = [] if answer is None else answer["result"]
            return found

        wait_until(lambda: len(result("up == 1")) == 2, 30, "two scrapes")
        types = {each["metric"]: each["type"] for each in asked(port, "targets/metadata")}
        page = {metric.prometheus: metric.type for metric in documented_metrics()}
        assert {name: types.get(name) for name in page} == page
        assert {each["metric"]["__name__"] for each in result('{__name__=~"kafka_streams_.+"}')} == set(page)
        [state] = result('kafka_streams_stream_metrics_client_state{client_id="a"}')
        assert state["metric"]["application_id"] == pair.application
        assert re.fullmatch(r"[0-9a-f-]{36}", state["metric"]["process_id"])
        assert state["value"][1] == "2", "Kafka Streams' ordinal of RUNNING"
        rules = asked(port, "rules")["groups"][0]["rules"]
        assert {rule["name"] for rule in rules} >= {"TaskPaused", "LearnerStalls"}
        wait_until(lambda: {rule["health"] for rule in asked(port, "rules")["groups"][0]["rules"]} == {"ok"}, 20, "evaluated rules")
        wait_until(lambda: not [query for query in queries_of_the_dashboards() if not result(query)], 20, "a value of each query")
    finally:
        process.terminate()
        process.wait(20)


def test_a_paused_task_is_counted_with_its_time_until_it_is_resumed(pair: Pair) -> None:
    owner = pair.first if "1_0" in active_tasks(pair.first) else pair.second
    assert value(owner, "paused-since-ms", task_id="1_0") == 0
    began_ms = time.time_ns() // 1_000_000
    pair.broker.produce(pair.source, [("a", BAD)], partition=0)
    wait_until(lambda: paused(owner) == {"1_0"}, 30, "the pause")
    assert value(owner, "paused-tasks") == 1
    assert began_ms <= value(owner, "paused-since-ms", task_id="1_0") <= time.time_ns() // 1_000_000
    assert value(owner, "paused-since-ms") == value(owner, "paused-since-ms", task_id="1_0"), "of no other task"
    set_offset(pair.broker, pair.application, pair.source, 4)
    assert owner.resume(TaskId(1, 0))
    assert value(owner, "paused-tasks") == value(owner, "paused-since-ms", task_id="1_0") == 0


def test_checkpoints_are_counted_and_uncommitted_bytes_rise_until_a_commit(pair: Pair) -> None:
    totals = {dict(key.tags)["task-id"] for key, number in pair.first.metrics().items() if key.name == "checkpoint-total" and number}
    assert totals
    assert value(pair.first, "checkpoint-latency-max") > 0
    assert 0 <= value(pair.first, "checkpoint-age-ms", task_id="global") < 120_000
    owner = pair.first if "1_1" in active_tasks(pair.first) else pair.second
    assert value(owner, "uncommitted-bytes-limit") == 64 << 20
    pair.broker.produce(pair.source, [("c", "1")], partition=1)
    wait_until(lambda: value(owner, "uncommitted-bytes", task_id="1_1", store="counts") > 0, 20, "the update")
    wait_until(lambda: value(owner, "uncommitted-bytes") == 0, 20, "the commit")
