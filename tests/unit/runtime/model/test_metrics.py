"""Metrics keep Kafka Streams' names in the process and turn into Prometheus' over HTTP."""

import socket
from collections.abc import Callable
from urllib.request import urlopen

import pytest

from penstock.runtime.endpoint import metrics_server
from penstock.runtime.endpoint.prometheus import prometheus_text
from penstock.runtime.model.errors import StreamsError
from penstock.runtime.model.metrics import TASK, THREAD, MetricName, Metrics, StreamsMetrics


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_names_groups_and_tags_are_kafka_streams() -> None:
    metrics = Metrics(client_id="app-1")
    metrics.counter("dropped-records-total", TASK, task_id="0_1").add(3)
    name = MetricName("dropped-records-total", TASK, (("client-id", "app-1"), ("task-id", "0_1")))
    assert metrics.values() == {name: 3.0}


def test_the_same_name_returns_the_same_counter() -> None:
    metrics = Metrics()
    metrics.counter("process-total", THREAD).add(1)
    metrics.counter("process-total", THREAD).add(1)
    assert list(metrics.values().values()) == [2.0]


def test_a_closed_task_leaves_no_metrics_behind() -> None:
    metrics = Metrics()
    metrics.counter("process-total", TASK, task_id="0_1").add(1)
    metrics.gauge("lag", TASK, task_id="0_1").set(5)
    metrics.counter("process-total", TASK, task_id="0_2").add(1)
    metrics.remove(task_id="0_1")
    assert [dict(name.tags)["task-id"] for name in metrics.values()] == ["0_2"]


def test_latencies_show_average_and_maximum() -> None:
    metrics = Metrics()
    latency = metrics.latency("commit-latency", THREAD)
    latency.record(2)
    latency.record(4)
    assert {name.name: value for name, value in metrics.values().items()} == {"commit-latency-avg": 3.0, "commit-latency-max": 4.0}


def test_prometheus_reads_them_over_http() -> None:
    metrics = Metrics(client_id="app-1")
    metrics.counter("process-total", TASK, task_id="0_1").add(7)
    port = free_port()
    server = metrics_server(metrics.values, port)
    try:
        text = urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
    finally:
        server.close()
    assert 'kafka_streams_stream_task_metrics_process_total{client_id="app-1",task_id="0_1"} 7.0' in text


def test_a_gauge_stays_a_gauge_for_prometheus_whatever_its_name() -> None:
    """`restore-remaining-records-total`, which is Kafka Streams' name, falls: a counter that falls is read as one that began again."""
    metrics = Metrics()
    metrics.gauge("restore-remaining-records-total", TASK).set(5)
    metrics.counter("restore-total", TASK).add(2)
    metrics.counter("seen", TASK).add(1)
    text = prometheus_text(metrics.values()).decode()
    types = dict(line.removeprefix("# TYPE kafka_streams_stream_task_metrics_").split() for line in text.splitlines() if "# TYPE" in line)
    assert types == {"restore_remaining_records_total": "gauge", "restore_total": "counter", "seen": "gauge"}


def test_metrics_of_several_workers_are_one_family_for_prometheus() -> None:
    """Prometheus refuses a page on which a name begins twice."""
    mine, of_worker = Metrics(client_id="app-1"), Metrics(client_id="app-1", thread_id="app-1-StreamThread-2")
    for metrics in (mine, of_worker):
        metrics.counter("commit-total", THREAD).add(7)
    text = prometheus_text({**mine.values(), **of_worker.values()}).decode()
    assert text.count("# TYPE kafka_streams_stream_thread_metrics_commit_total counter") == 1
    assert 'commit_total{client_id="app-1",thread_id=""} 7.0' in text
    assert 'commit_total{client_id="app-1",thread_id="app-1-StreamThread-2"} 7.0' in text


def test_whatever_a_processor_names_and_sets_the_page_stays_readable() -> None:
    """Prometheus allows few characters, refuses a page on which a name begins twice, and knows no None."""
    metrics = Metrics(client_id="a")
    of_processor = StreamsMetrics(metrics, "0_0", "p")
    of_processor.counter("rows/s read, ä-total").add(1)
    of_processor.counter("seen-total", **{"my tag": 5}).add(2)  # type: ignore[arg-type]  # without a type checker
    of_processor.counter("seen.total").add(3)
    lines = prometheus_text(metrics.values()).decode().splitlines()
    prefix, tags = "kafka_streams_stream_processor_node_metrics_", 'processor_node_id="p",task_id="0_0"'
    assert [line.removeprefix(prefix) for line in lines if not line.startswith("#")] == [
        f'rows_s_read____total{{client_id="a",{tags}}} 1.0',
        f'seen_total{{client_id="a",my_tag="5",{tags}}} 2.0',
        f'seen_total{{client_id="a",my_tag="",{tags}}} 3.0',
    ]
    types = [line.removeprefix(f"# TYPE {prefix}") for line in lines if "# TYPE" in line]
    assert types == ["rows_s_read____total counter", "seen_total counter"]
    with pytest.raises(TypeError, match="NoneType"):
        of_processor.gauge("of").set(None)  # type: ignore[arg-type]


def test_a_counter_does_not_fall() -> None:
    counter = Metrics().counter("seen-total", TASK)
    with pytest.raises(ValueError, match="-1 was added: use a gauge"):
        counter.add(-1)
    assert counter.value == 0


@pytest.mark.parametrize("first", ["counter", "gauge", "latency"])
@pytest.mark.parametrize("second", ["counter", "gauge", "latency"])
def test_a_metric_is_of_one_kind(first: str, second: str) -> None:
    """As two, a page would have the value of one under the type of the other."""
    metrics = Metrics()
    kinds: dict[str, Callable[..., object]] = {"counter": metrics.counter, "gauge": metrics.gauge, "latency": metrics.latency}
    made = kinds[first]("of", TASK, task_id="0_0")
    kinds[second]("of", TASK, task_id="0_1")
    if first == second:
        assert kinds[second]("of", TASK, task_id="0_0") is made
        return
    with pytest.raises(ValueError, match=f"metric of is a {first} already, with the same tags, and cannot be a {second} too"):
        kinds[second]("of", TASK, task_id="0_0")


def test_a_port_in_use_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(StreamsError, match=f"metrics.port.*{port}"):
            metrics_server(Metrics().values, port)
