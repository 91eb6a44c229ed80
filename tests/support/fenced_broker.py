"""A stand-in for a broker that answers requests for metadata, and lists no broker while it is fenced. A real controller fences a broker
whose heartbeats come late, which a test cannot bring about at will."""

from __future__ import annotations

import socketserver
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

_FETCH, _METADATA, _METADATA_VERSION, _API_VERSIONS = 1, 3, 8, 18
_UNSUPPORTED_VERSION, _UNKNOWN_TOPIC, _NO_OPERATIONS = 35, 3, -(2**31)


class FencedBroker(socketserver.ThreadingTCPServer):
    """Server on a free port of the loopback interface. It knows no topics."""

    daemon_threads = True
    fenced = False
    fetch_version = 16
    """Newest version of Fetch, which shows the release: 16 since Kafka 3.7."""

    @property
    def servers(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


class _Connection(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        while len(size := self.rfile.read(4)) == 4:
            request = self.rfile.read(*struct.unpack(">i", size))
            api, version, correlation = struct.unpack_from(">hhi", request)
            answer = self._metadata(request) if api == _METADATA else self._versions(version)
            self.wfile.write(struct.pack(">ii", len(answer) + 4, correlation) + answer)

    def _versions(self, asked: int) -> bytes:
        error = _UNSUPPORTED_VERSION if asked else 0  # the client asks again, with version 0
        server = self.server
        assert isinstance(server, FencedBroker)
        known = (_FETCH, 0, server.fetch_version, _METADATA, 0, _METADATA_VERSION, _API_VERSIONS, 0, 0)
        return struct.pack(">hi9h", error, 3, *known)

    def _metadata(self, request: bytes) -> bytes:
        server = self.server
        assert isinstance(server, FencedBroker)
        broker = b"" if server.fenced else struct.pack(">i", 1) + _text("127.0.0.1") + struct.pack(">ih", server.server_address[1], -1)
        brokers = struct.pack(">ii", 0, 0 if server.fenced else 1) + broker
        topics = [
            struct.pack(">h", _UNKNOWN_TOPIC) + _text(name) + struct.pack(">?ii", False, 0, _NO_OPERATIONS) for name in _topics(request)
        ]
        controller = struct.pack(">ii", -1 if server.fenced else 1, len(topics))
        return brokers + _text("cluster") + controller + b"".join(topics) + struct.pack(">i", _NO_OPERATIONS)


def _topics(request: bytes) -> Iterator[str]:
    (client,) = struct.unpack_from(">h", request, 8)
    at = 10 + max(client, 0)
    (count,) = struct.unpack_from(">i", request, at)
    at += 4
    for _ in range(max(count, 0)):
        (length,) = struct.unpack_from(">h", request, at)
        yield request[at + 2 : at + 2 + length].decode()
        at += 2 + length


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


@contextmanager
def fenced_broker() -> Iterator[FencedBroker]:
    """Run the stand-in; not fenced at first."""
    with FencedBroker(("127.0.0.1", 0), _Connection) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()
