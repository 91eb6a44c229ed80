"""A client's metrics for a Prometheus on the same machine (`metrics.port`): the endpoint's page, without its token and its other pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from penstock.runtime.endpoint.answers import PROMETHEUS, Answer
from penstock.runtime.endpoint.server import HttpEndpoint
from penstock.runtime.model.metrics import MetricName, prometheus_text


class MetricsPage:
    """The metrics, at any path."""

    def __init__(self, values: Callable[[], Mapping[MetricName, float]]) -> None:
        """`values` gives all metrics now."""
        self._values = values

    def is_open(self, target: str) -> bool:
        return False

    def answer(self, target: str) -> Answer:
        return Answer(200, prometheus_text(self._values()), PROMETHEUS)


def metrics_server(values: Callable[[], Mapping[MetricName, float]], port: int) -> HttpEndpoint:
    """Serve metrics on loopback, until `close()`. Raises StreamsError if the port is in use, naming it."""
    return HttpEndpoint(MetricsPage(values), "127.0.0.1", port, None, "metrics")
