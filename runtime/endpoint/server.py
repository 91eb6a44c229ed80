"""The sockets of the endpoint: a thread per connection, the token, and answers that are JSON even where the request is no HTTP."""

from __future__ import annotations

import hmac
import logging
import socket
import sys
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn

from runtime.endpoint.answers import Answer, Refusal, later
from runtime.endpoint.routes import Routes
from runtime.errors import StreamsError

logger = logging.getLogger(__name__)

IDLE_SECONDS = 15.0
"""How long a connection may say nothing, or take to fetch its answer."""
READS_AT_ONCE = 16
"""More are asked to come again, so that a crowd of readers takes no more of the processor than that. Probes never wait for readers."""
MOST_CONNECTIONS = 256
"""Open at a time: each takes a thread and a file of the process, and stores need files too. Of more, the one that has asked for nothing for
the longest time is cut."""
_WAKE_SECONDS = 0.1
"""How often the thread that accepts connections looks whether it is to end."""


class HttpEndpoint:
    """Listens from its making to `close()`."""

    def __init__(self, routes: Routes, host: str, port: int, token: str | None) -> None:
        """Raises StreamsError if the address cannot be listened on, naming it."""
        try:
            self._server = _Server(routes, host, port, token)
        except OSError as error:
            raise StreamsError(
                f"http.port: cannot listen on {host}:{port} ({error.strerror or error}); "
                "choose another http.port or http.host, or http.port = 0 for no endpoint"
            ) from error
        self._thread = threading.Thread(target=self._server.serve_forever, args=(_WAKE_SECONDS,), name="http-endpoint", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """Where it listens: what was asked for, or what the system chose for port 0."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Ends at once: connections that are open are cut."""
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

    def __init__(self, routes: Routes, host: str, port: int, token: str | None) -> None:
        [(family, _, _, _, address), *_] = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family = family
        self._routes = routes
        self._token = None if token is None else token.encode()
        self._reads = threading.BoundedSemaphore(READS_AT_ONCE)
        self._lock = threading.Lock()
        self._connections: dict[socket.socket, None] = {}  # the one that asked last is the last
        super().__init__((str(address[0]), port), _Handler)

    def answer(self, target: str, authorization: str) -> Answer:
        """The answer to `GET target`."""
        if self._routes.is_open(target):
            return self._routes.answer(target)
        if not self._allowed(authorization):
            error = "the token is missing or wrong: send the header `Authorization: Bearer <http.token>`"
            return Refusal(401, error, headers={"WWW-Authenticate": "Bearer"}).answer
        if not self._reads.acquire(blocking=False):
            return later(f"{READS_AT_ONCE} requests are being answered").answer
        try:
            return self._routes.answer(target)
        except Exception:
            logger.exception("HTTP endpoint: %s", target)
            return Refusal(500, "the endpoint failed: the instance's log tells why").answer
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
        """A request has come by this connection."""
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
        """Ends the connections that are open."""
        with self._lock:
            for connection in self._connections:
                _end(connection)

    def handle_error(self, request: object, client_address: object) -> None:
        error = sys.exception()
        if isinstance(error, OSError):
            logger.info("HTTP endpoint: a client hung up (%s)", error)
        else:
            logger.error("HTTP endpoint: a connection failed", exc_info=error)


def _end(connection: socket.socket) -> None:
    """Its thread sees the end, and closes it."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError as error:
        logger.debug("a connection was gone already: %s", error)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = IDLE_SECONDS
    wbufsize = -1  # head and body leave in one piece
    disable_nagle_algorithm = True
    protocol_version = default_request_version = "HTTP/1.1"
    server_version, sys_version = "Penstock", ""

    def do_GET(self) -> None:
        self.server.asked(self.connection)
        if self.headers.get("Transfer-Encoding") or self.headers.get("Content-Length", "0") != "0":
            self.send_error(HTTPStatus.BAD_REQUEST, "a request has no body: what is asked for stands in its path")
            return
        self._send(self.server.answer(self.path, self.headers.get("Authorization", "")))

    def do_HEAD(self) -> None:
        """As GET, without the body: some probes ask so."""
        self.do_GET()

    def _send(self, answer: Answer) -> None:
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
        """What is wrong with a request as such."""
        self.close_connection = True
        headers = {"Connection": "close"}
        if code == HTTPStatus.NOT_IMPLEMENTED:
            code, message = HTTPStatus.METHOD_NOT_ALLOWED, "everything here is read with GET"
            headers["Allow"] = "GET, HEAD"
        self._send(Refusal(code, message or HTTPStatus(code).phrase, headers=headers).answer)

    def log_message(self, format: str, *args: object) -> None:
        logger.debug("%s %r", self.address_string(), format % args)
