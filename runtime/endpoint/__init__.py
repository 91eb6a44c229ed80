"""The HTTP endpoint of an instance: health, metrics, tasks, locations of keys, and reads of stores (docs/queries.md).

Off unless `http.port` is set. It uses the public methods of a `KafkaStreams` client and knows nothing of workers. A read takes
committed data from the stores' files, on the endpoint's own threads, so it never waits for processing.

A key whose task is elsewhere is answered with a redirect to its owner (307). (Rejected: asking the owner on the client's behalf. Each read
would cross two instances, whose timeouts and limits add up, and a redirected client can ask the owner directly next time.)

    server.py   connections, the token, deadlines, errors as JSON; the page of metrics alone, for `metrics.port`
    routes.py   paths and their handlers; parameters.py: query parameters
    reads.py    reads of stores, in pages
    prometheus.py   the page of metrics
    forms.py    keys from text, values as JSON
"""

from penstock.runtime.endpoint.routes import Client, Routes
from penstock.runtime.endpoint.server import HttpEndpoint, metrics_server

__all__ = ["Client", "HttpEndpoint", "Routes", "metrics_server"]
