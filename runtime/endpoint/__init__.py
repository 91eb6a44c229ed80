"""The HTTP endpoint of an instance: health, metrics, tasks, who has which key, and reads of stores (docs/queries.md).

Off unless `http.port` is set. It stands before a `KafkaStreams` client and asks it what any program may ask: nothing here knows the worker.
A read takes committed data from the stores' files, on a thread of the endpoint's own, so it waits for nobody.

A key whose task is elsewhere is answered with a redirect to its owner (307). (Rejected: asking the owner on the client's behalf. Each read
would cross two instances, whose timeouts and limits add up, and a client that has been sent to the owner asks there at once next time.)

    server.py   connections, the token, errors as JSON
    routes.py   paths, and who is asked for what; parameters.py: what stands after the `?`
    reads.py    reads of stores, in pages
    forms.py    keys from text, values as JSON
"""

from runtime.endpoint.routes import Client, Routes
from runtime.endpoint.server import HttpEndpoint

__all__ = ["Client", "HttpEndpoint", "Routes"]
