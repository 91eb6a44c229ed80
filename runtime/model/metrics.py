"""Metrics under Kafka Streams' names and groups, readable in the process (`KafkaStreams.metrics()`) and over HTTP by Prometheus.

The engine counts once per batch or commit, never per record: a counter is one integer to which one thread adds. Reading takes no lock of
the hot path. Prometheus sees `kafka_streams_<group>_<name>` with underscores for hyphens, so Kafka Streams'
`dropped-records-total` of group `stream-task-metrics` is `kafka_streams_stream_task_metrics_dropped_records_total`.
docs/metrics.md lists all of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from threading import Lock

CLIENT = "stream-metrics"
THREAD = "stream-thread-metrics"
TASK = "stream-task-metrics"
NODE = "stream-processor-node-metrics"
STATE = "stream-state-metrics"

_NOT_IN_A_NAME = re.compile("[^a-zA-Z0-9_]")


@dataclass(frozen=True, slots=True, order=True)
class MetricName:
    """Identity of a metric (Kafka's `MetricName`): hyphenated name, group, and tags as sorted pairs. `counts`: the value only increases
    (a counter); not part of the identity, as Kafka's description is not."""

    name: str
    group: str
    tags: tuple[tuple[str, str], ...]
    counts: bool = field(default=False, compare=False)


class Counter:
    """A number that only increases. One thread adds; any thread reads `value`."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def add(self, n: int = 1) -> None:
        """Add a number. Raises ValueError if it is negative: Prometheus reads a counter that falls as one that began again."""
        if n < 0:
            raise ValueError(f"a counter only increases, and {n} was added: use a gauge")
        self.value += n


class Gauge:
    """The last value that was set."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def set(self, value: float) -> None:
        """Set the value. Raises TypeError or ValueError if it is not a number, which would make the whole page of metrics unreadable."""
        self.value = float(value)


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
    """Registry of one client's metrics. The same name, group and tags return the same object; as a metric of another kind they are refused
    with ValueError."""

    def __init__(self, **tags: str) -> None:
        self._tags = {tag.replace("_", "-"): value for tag, value in tags.items()}
        self._lock = Lock()
        self._counters: dict[MetricName, Counter] = {}
        self._gauges: dict[MetricName, Callable[[], float]] = {}
        self._set_gauges: dict[MetricName, Gauge] = {}
        self._latencies: dict[MetricName, Latency] = {}

    def _name(self, name: str, group: str, tags: dict[str, str], *, counts: bool = False) -> MetricName:
        own = {tag.replace("_", "-"): str(value) for tag, value in tags.items()}  # users' tags may be numbers
        return MetricName(name, group, tuple(sorted({**self._tags, **own}.items())), counts)

    def counter(self, name: str, group: str, **tags: str) -> Counter:
        """Return the counter with this name, which ends in `-total`."""
        key = self._name(name, group, tags, counts=True)
        with self._lock:
            _refuse(key, "counter", gauge=self._gauges, latency=self._latencies)
            return self._counters.setdefault(key, Counter())

    def gauge(self, name: str, group: str, **tags: str) -> Gauge:
        key = self._name(name, group, tags)
        with self._lock:
            _refuse(key, "gauge", counter=self._counters, latency=self._latencies)
            gauge = self._set_gauges.setdefault(key, Gauge())
            self._gauges[key] = lambda: gauge.value
            return gauge

    def gauge_of(self, name: str, group: str, read: Callable[[], float], **tags: str) -> None:
        """Register a gauge whose value is computed when it is read; `read` must be safe to call from any thread."""
        with self._lock:
            self._gauges[self._name(name, group, tags)] = read

    def latency(self, name: str, group: str, **tags: str) -> Latency:
        """Return the latency with this name, published as `<name>-avg` and `<name>-max`, in ms."""
        key = self._name(name, group, tags)
        with self._lock:
            _refuse(key, "latency", counter=self._counters, gauge=self._gauges)
            return self._latencies.setdefault(key, Latency())

    def remove(self, **tags: str) -> None:
        """Remove every metric that has all of these tags, for example when a task is closed."""
        wanted = {(k.replace("_", "-"), v) for k, v in tags.items()}
        with self._lock:
            for table in (self._counters, self._gauges, self._set_gauges, self._latencies):
                for key in [key for key in table if wanted <= set(key.tags)]:
                    del table[key]

    def values(self) -> dict[MetricName, float]:
        """Return the current values of all metrics."""
        with self._lock:
            counters, gauges, latencies = dict(self._counters), dict(self._gauges), dict(self._latencies)
        found: dict[MetricName, float] = {key: float(counter.value) for key, counter in counters.items()}
        found.update((key, read()) for key, read in gauges.items())
        for key, latency in latencies.items():
            found[replace(key, name=f"{key.name}-avg")] = latency.average
            found[replace(key, name=f"{key.name}-max")] = latency.maximum
        return found


def _refuse(key: MetricName, kind: str, **others: Mapping[MetricName, object]) -> None:
    """Raise ValueError if the metric is registered as one of another kind: its values would be those of either."""
    for other, known in others.items():
        if key in known:
            raise ValueError(f"metric {key.name} is a {other} already, with the same tags, and cannot be a {kind} too: use another name")


class StreamsMetrics:
    """Metrics of one custom processor (Kafka Streams' class of this name).

    They are in the group of processors, with the names of the task and the processor, and are published with all others
    (`KafkaStreams.metrics`, Prometheus) until the task is closed. A rollback to the last commit does not roll back metrics.
    """

    def __init__(self, metrics: Metrics, task: str, processor: str) -> None:
        self._metrics = metrics
        self._tags = {"task_id": task, "processor_node_id": processor}

    def counter(self, name: str, **tags: str) -> Counter:
        """Return a counter, increased by `add(n=1)`. Its name should end in `-total`."""
        return self._metrics.counter(name, NODE, **{**tags, **self._tags})

    def gauge(self, name: str, **tags: str) -> Gauge:
        """Return a gauge, which has the last value of `set(value)`."""
        return self._metrics.gauge(name, NODE, **{**tags, **self._tags})

    def latency(self, name: str, **tags: str) -> Latency:
        """Return average and maximum of durations, added by `record(milliseconds)`, as `<name>-avg` and `<name>-max`."""
        return self._metrics.latency(name, NODE, **{**tags, **self._tags})

    def metrics(self) -> dict[MetricName, float]:
        """Return the current values of all metrics of this worker, including the engine's."""
        return self._metrics.values()


def prometheus_name(group: str, name: str) -> str:
    """Return the name under which Prometheus sees a metric. Characters that are not allowed there become underscores."""
    return prometheus_label(f"kafka_streams_{group}_{name}")


def prometheus_label(name: str) -> str:
    """Return the name of a tag as Prometheus sees it."""
    return _NOT_IN_A_NAME.sub("_", name)
