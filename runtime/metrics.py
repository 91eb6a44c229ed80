"""Metrics under Kafka Streams' names and groups, readable in the process (`KafkaStreams.metrics()`) and over HTTP by Prometheus.

The engine counts once per batch or commit, never per record: a counter is one integer that one thread adds to. Reading takes no
lock of the hot path. Prometheus sees `kafka_streams_<group>_<name>` with hyphens turned into underscores, so Kafka Streams'
`dropped-records-total` of group `stream-task-metrics` is `kafka_streams_stream_task_metrics_dropped_records_total`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from threading import Lock
from typing import NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest, start_http_server
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from runtime.errors import StreamsError

CLIENT = "stream-metrics"
THREAD = "stream-thread-metrics"
TASK = "stream-task-metrics"
NODE = "stream-processor-node-metrics"
STATE = "stream-state-metrics"


class MetricName(NamedTuple):
    """Identity of a metric (Kafka's `MetricName`): hyphenated name, group, and tags as sorted pairs."""

    name: str
    group: str
    tags: tuple[tuple[str, str], ...]


class Counter:
    """A number that only grows. One thread adds; any thread reads `value`."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def add(self, n: int = 1) -> None:
        self.value += n


class Gauge:
    """The last value that was set."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def set(self, value: float) -> None:
        self.value = value


class Latency:
    """Average and maximum of durations in ms, over the life of the metric."""

    __slots__ = ("count", "maximum", "total")

    def __init__(self) -> None:
        self.total = 0.0
        self.count = 0
        self.maximum = 0.0

    def record(self, milliseconds: float) -> None:
        self.total += milliseconds
        self.count += 1
        self.maximum = max(self.maximum, milliseconds)

    @property
    def average(self) -> float:
        return self.total / self.count if self.count else 0.0


class Metrics:
    """The metrics of one client. Asking for the same name, group and tags twice gives the same object."""

    def __init__(self, **tags: str) -> None:
        self._tags = {tag.replace("_", "-"): value for tag, value in tags.items()}
        self._lock = Lock()
        self._counters: dict[MetricName, Counter] = {}
        self._gauges: dict[MetricName, Callable[[], float]] = {}
        self._set_gauges: dict[MetricName, Gauge] = {}
        self._latencies: dict[MetricName, Latency] = {}

    def _name(self, name: str, group: str, tags: dict[str, str]) -> MetricName:
        return MetricName(name, group, tuple(sorted({**self._tags, **{k.replace("_", "-"): v for k, v in tags.items()}}.items())))

    def counter(self, name: str, group: str, **tags: str) -> Counter:
        """`name` ends in `-total`."""
        with self._lock:
            return self._counters.setdefault(self._name(name, group, tags), Counter())

    def gauge(self, name: str, group: str, **tags: str) -> Gauge:
        key = self._name(name, group, tags)
        with self._lock:
            gauge = self._set_gauges.setdefault(key, Gauge())
            self._gauges[key] = lambda: gauge.value
            return gauge

    def gauge_of(self, name: str, group: str, read: Callable[[], float], **tags: str) -> None:
        """A gauge that is computed when somebody looks; `read` must be safe to call from any thread."""
        with self._lock:
            self._gauges[self._name(name, group, tags)] = read

    def latency(self, name: str, group: str, **tags: str) -> Latency:
        """Shown as `<name>-avg` and `<name>-max`, in ms."""
        with self._lock:
            return self._latencies.setdefault(self._name(name, group, tags), Latency())

    def remove(self, **tags: str) -> None:
        """Forgets every metric that carries all of these tags, as when a task is closed."""
        wanted = {(k.replace("_", "-"), v) for k, v in tags.items()}
        with self._lock:
            for table in (self._counters, self._gauges, self._set_gauges, self._latencies):
                for key in [key for key in table if wanted <= set(key.tags)]:
                    del table[key]

    def values(self) -> dict[MetricName, float]:
        """All metrics now."""
        with self._lock:
            counters, gauges, latencies = dict(self._counters), dict(self._gauges), dict(self._latencies)
        found: dict[MetricName, float] = {key: float(counter.value) for key, counter in counters.items()}
        found.update((key, read()) for key, read in gauges.items())
        for key, latency in latencies.items():
            found[key._replace(name=f"{key.name}-avg")] = latency.average
            found[key._replace(name=f"{key.name}-max")] = latency.maximum
        return found


class StreamsMetrics:
    """The metrics of one processor of the user's (Kafka Streams' class of this name): in the group of processors, with the task's and the
    processor's name, among all others (`KafkaStreams.metrics`, Prometheus), until the task is closed. What a metric counts is not taken
    back when the task goes back to its last commit."""

    def __init__(self, metrics: Metrics, task: str, processor: str) -> None:
        self._metrics = metrics
        self._tags = {"task_id": task, "processor_node_id": processor}

    def counter(self, name: str, **tags: str) -> Counter:
        """A number that only grows, by `add(n=1)`; call it `…-total`."""
        return self._metrics.counter(name, NODE, **{**tags, **self._tags})

    def gauge(self, name: str, **tags: str) -> Gauge:
        """The last value given by `set(value)`."""
        return self._metrics.gauge(name, NODE, **{**tags, **self._tags})

    def latency(self, name: str, **tags: str) -> Latency:
        """Average and maximum of what `record(milliseconds)` was given, as `<name>-avg` and `<name>-max`."""
        return self._metrics.latency(name, NODE, **{**tags, **self._tags})

    def metrics(self) -> dict[MetricName, float]:
        """All metrics of this worker now, those of the engine included."""
        return self._metrics.values()


class _PrometheusView(Collector):
    def __init__(self, values: Callable[[], Mapping[MetricName, float]]) -> None:
        self._values = values

    def collect(self) -> Iterator[Metric]:
        """One family per name, as Prometheus wants it: a tag that one metric has and another of its name does not is empty there."""
        by_name: dict[tuple[str, str], list[tuple[dict[str, str], float]]] = {}
        for key, value in sorted(self._values().items()):
            by_name.setdefault((key.group, key.name), []).append(({_plain(tag): of for tag, of in key.tags}, value))
        for (group, metric), found in by_name.items():
            name = _plain(f"kafka_streams_{group}_{metric}")
            labels = sorted({tag for tags, _ in found for tag in tags})
            make = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            family = make(name, f"{metric} of {group} (Kafka Streams)", labels=labels)
            for tags, value in found:
                family.add_metric([tags.get(label, "") for label in labels], value)
            yield family


def _plain(name: str) -> str:
    return name.replace("-", "_").replace(".", "_")


def prometheus_text(values: Mapping[MetricName, float]) -> bytes:
    """A page that Prometheus reads."""
    return generate_latest(_registry(lambda: values))


def _registry(values: Callable[[], Mapping[MetricName, float]]) -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_PrometheusView(values))
    return registry


class MetricsServer:
    """Serves a client's metrics to Prometheus on loopback, until `close()`: the page that the HTTP endpoint (`runtime/endpoint`) has too,
    for a Prometheus on the same machine, which needs neither token nor the rest."""

    def __init__(self, values: Callable[[], Mapping[MetricName, float]], port: int, host: str = "127.0.0.1") -> None:
        """`values` gives all metrics now. Raises StreamsError if the port is in use, naming it."""
        try:
            self._server, self._thread = start_http_server(port, addr=host, registry=_registry(values))
        except OSError as error:
            raise StreamsError(
                f"metrics.port: cannot listen on {host}:{port} ({error.strerror}); choose another port, or 0 for no metrics server"
            ) from error

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
