"""Metrics as a page for Prometheus. (Its client library is imported with the endpoint only.)"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.runtime.model.metrics import MetricName, prometheus_label, prometheus_name


class _PrometheusView(Collector):
    def __init__(self, values: Callable[[], Mapping[MetricName, float]]) -> None:
        self._values = values

    def collect(self) -> Iterator[Metric]:
        """Yield one metric family per name in Prometheus, which several metrics of a user may share. As Prometheus requires, all of its
        metrics have the same tags; missing ones are empty. A gauge may have Kafka Streams' name and end in `_total`; a counter that does
        not is exported as a gauge, since the format would rename it."""
        by_name: dict[str, list[tuple[MetricName, float]]] = {}
        for key, value in sorted(self._values().items()):
            by_name.setdefault(prometheus_name(key.group, key.name), []).append((key, value))
        for name, found in by_name.items():
            first = found[0][0]
            labels = sorted({prometheus_label(tag) for key, _ in found for tag, _ in key.tags})
            counts = name.endswith("_total") and all(key.counts for key, _ in found)
            make = CounterMetricFamily if counts else GaugeMetricFamily
            family = make(name, f"{first.name} of {first.group}", labels=labels)
            for key, value in found:
                tags = {prometheus_label(tag): of for tag, of in key.tags}
                family.add_metric([tags.get(label, "") for label in labels], value)
            yield family


def prometheus_text(values: Mapping[MetricName, float]) -> bytes:
    """Return the metrics in Prometheus' text format."""
    return generate_latest(_registry(lambda: values))


def _registry(values: Callable[[], Mapping[MetricName, float]]) -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_PrometheusView(values))
    return registry
