"""HTTP server of the endpoint: threads, the token, deadlines, and JSON responses even to invalid HTTP."""

from __future__ import annotations

import hmac
import io
import logging
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Protocol

from penstock.runtime.endpoint.answers import PROMETHEUS, Answer, Refusal, later
from penstock.runtime.endpoint.prometheus import prometheus_text
from penstock.runtime.model.errors import StreamsError
from penstock.runtime.model.metrics import MetricName

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

logger = logging.getLogger(__name__)

IDLE_SECONDS = 15.0
"""Longest silence of a connection before a request begins."""
REQUEST_SECONDS = 10.0
"""Deadline for a whole request, from its first byte, and for fetching the whole answer, from when it is ready. Bytes that trickle in, or
are fetched one by one, do not extend it."""
READS_AT_ONCE = 16
"""Concurrent reads; more get a 503, which bounds the processor time of readers. Probes never wait for readers."""
MOST_CONNECTIONS = 256
"""Open connections: each takes a thread and a file descriptor, and stores need descriptors too. Beyond that, the one idle for the longest
time is closed."""
_WAKE_SECONDS = 0.1
"""Interval at which the accepting thread checks for its end."""


class Pages(Protocol):
    """The content of an endpoint."""

    def is_open(self, target: str) -> bool:
        """Return True for a page that needs no token."""

    def answer(self, target: str) -> Answer:
        """Return the response to `GET target`; a refusal is a response too."""


class HttpEndpoint:
    """Server that listens from its construction to `close()`."""

    def __init__(self, routes: Pages, host: str, port: int, token: str | None, setting: str = "http") -> None:
        """Raises StreamsError if the address cannot be listened on, naming it and the key `<setting>.port`."""
        try:
            self._server = _Server(routes, host, port, token)
        except OSError as error:
            raise StreamsError(
                f"{setting}.port: cannot listen on {host}:{port} ({error.strerror or error}); "
                f"choose another {setting}.port{' or http.host' if setting == 'http' else ''}, or {setting}.port = 0 for no endpoint"
            ) from error
        self._thread = threading.Thread(target=self._server.serve_forever, args=(_WAKE_SECONDS,), name="http-endpoint", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """Port in use; for port 0, the one chosen by the system."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """End at once and close open connections."""
        self._server.shutdown()
        self._server.server_close()
        self._server.cut()
        self._thread.join()


class _Server(ThreadingMixIn, TCPServer):
    """(Not `HTTPServer`: it asks the name service for this machine's name, which may take long.)"""

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, routes: Pages, host: str, port: int, token: str | None) -> None:
        [(family, _, _, _, address), *_] = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family = family
        self._routes = routes
        self._token = None if token is None else token.encode()
        self._reads = threading.BoundedSemaphore(READS_AT_ONCE)
        self._lock = threading.Lock()
        self._connections: dict[socket.socket, None] = {}  # the most recently used connection is last
        super().__init__((str(address[0]), port), _Handler)

    def answer(self, target: str, authorization: str) -> Answer:
        """Return the response to `GET target`."""
        if self._routes.is_open(target):
            return self._routes.answer(target)
        if not self._allowed(authorization):
            error = "the token is missing or wrong: send the header `Authorization: Bearer <http.token>`"
            return Refusal(401, error, headers={"WWW-Authenticate": "Bearer"}).answer
        if not self._reads.acquire(blocking=False):
            return later(f"{READS_AT_ONCE} requests are being answered").answer
        try:
            return self._routes.answer(target)
        except BaseException:
            logger.exception("HTTP endpoint: %s", target)
            return Refusal(500, "the endpoint failed: see the instance's log").answer
        finally:
            self._reads.release()

    def _allowed(self, authorization: str) -> bool:
        if self._token is None:
            return True
        scheme, _, given = authorization.partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode("latin-1", "replace"), self._token)

    def process_request(self, request: socket.socket | tuple[bytes, socket.socket], client_address: object) -> None:
        if isinstance(request, socket.socket):
            with self._lock:
                while len(self._connections) >= MOST_CONNECTIONS:
                    silent = next(iter(self._connections))
                    del self._connections[silent]
                    _end(silent)
                self._connections[request] = None
        super().process_request(request, client_address)

    def asked(self, connection: socket.socket) -> None:
        """Note a request on this connection."""
        with self._lock:
            if connection in self._connections:
                del self._connections[connection]
                self._connections[connection] = None

    def shutdown_request(self, request: socket.socket | tuple[bytes, socket.socket]) -> None:
        if isinstance(request, socket.socket):
            with self._lock:
                self._connections.pop(request, None)
        super().shutdown_request(request)

    def cut(self) -> None:
        """Close all open connections."""
        with self._lock:
            for connection in self._connections:
                _end(connection)

    def handle_error(self, request: object, client_address: object) -> None:
        error = sys.exception()
        if isinstance(error, OSError):
            logger.info("HTTP endpoint: a client hung up, or was too slow (%s)", error)
        else:
            logger.error("HTTP endpoint: a connection failed", exc_info=error)


def _end(connection: socket.socket) -> None:
    """Shut the socket down; its thread then closes it."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError as error:
        logger.debug("a connection was gone already: %s", error)


class _Deadline(io.RawIOBase):
    """Bytes of one connection, with each wait bounded by the deadline of the current phase: idle, request, response.

    A socket's own timeout bounds each `recv` and `send` alone, so single bytes would hold the connection forever. Raises TimeoutError,
    which `BaseHTTPRequestHandler` takes as the end of the connection.
    """

    def __init__(self, connection: socket.socket) -> None:
        super().__init__()
        self._connection = connection
        self._silent = True
        self.await_request()

    def await_request(self) -> None:
        """Begin to wait for a request."""
        self._silent, self._until = True, time.monotonic() + IDLE_SECONDS

    def begin_answer(self) -> None:
        """Begin the response."""
        self._until = time.monotonic() + REQUEST_SECONDS

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        self._limit()
        received = self._connection.recv_into(buffer)
        if self._silent:
            self._silent, self._until = False, time.monotonic() + REQUEST_SECONDS
        return received

    def write(self, data: ReadableBuffer) -> int:
        self._limit()
        return self._connection.send(data)

    def _limit(self) -> None:
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError("the deadline of the request has passed")
        self._connection.settimeout(left)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    disable_nagle_algorithm = True
    protocol_version = default_request_version = "HTTP/1.1"
    server_version, sys_version = "Penstock", ""

    def setup(self) -> None:
        super().setup()
        self._deadline = _Deadline(self.connection)
        self.rfile = io.BufferedReader(self._deadline)
        self.wfile = io.BufferedWriter(self._deadline)  # headers and body are sent together

    def handle_one_request(self) -> None:
        self._deadline.await_request()
        super().handle_one_request()

    def do_GET(self) -> None:
        self.server.asked(self.connection)
        if self.headers.get("Transfer-Encoding") or self.headers.get("Content-Length", "0") != "0":
            self.send_error(HTTPStatus.BAD_REQUEST, "a request has no body: what is asked for stands in its path")
            return
        self._send(self.server.answer(self.path, self.headers.get("Authorization", "")))

    def do_HEAD(self) -> None:
        """As GET, without the body: some probes use it."""
        self.do_GET()

    def _send(self, answer: Answer) -> None:
        self._deadline.begin_answer()
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("Cache-Control", "no-store")
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Send an error about the HTTP request itself."""
        self.close_connection = True
        headers = {"Connection": "close"}
        if code == HTTPStatus.NOT_IMPLEMENTED:
            code, message = HTTPStatus.METHOD_NOT_ALLOWED, "everything here is read with GET"
            headers["Allow"] = "GET, HEAD"
        self._send(Refusal(code, message or HTTPStatus(code).phrase, headers=headers).answer)

    def log_message(self, format: str, *args: object) -> None:
        logger.debug("%s %r", self.address_string(), format % args)


class MetricsPage:
    """A client's metrics, at any path, for a Prometheus on the same machine (`metrics.port`)."""

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
