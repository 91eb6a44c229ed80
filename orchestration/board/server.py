"""HTTP server of the board: the page, which is the same for everyone and open, and the stream of differences, which takes the token.

The token is sent as `Authorization: Bearer`, like that of an instance's endpoint; the page takes it from the fragment of its URL, which
browsers do not send. (Rejected: a cookie. Cookies of an address are sent to every port of it, so every other local server would get it.)
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from importlib.resources import files
from types import FrameType

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from penstock.orchestration.board.publisher import Publisher

FILES = {
    "board.html": "text/html",
    "board.css": "text/css",
    "board.js": "text/javascript",
    "flow.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
"""Files of `static/`, with their content types."""
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
MOST_VIEWERS = 64
"""Concurrent streams; more get a 503."""
REQUEST_SECONDS = 10.0
"""For a whole request, from the connection or from the end of the response before it."""
_END_SECONDS = 1


def board_app(publisher: Publisher, token: str, names: Sequence[str]) -> ASGIApp:
    """Return the web application. `names`: host names that requests may name, besides addresses and `localhost`."""
    secret, viewers = token.encode(), 0

    async def file(request: Request) -> Response:
        name = request.path_params.get("name", "board.html")
        if name not in FILES:
            return PlainTextResponse("There is no such file; the board is at /\n", 404)
        return Response(files("penstock.orchestration.board").joinpath("static", name).read_bytes(), media_type=FILES[name])

    async def stream(request: Request) -> Response:
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode("latin-1", "replace"), secret):
            text = "The token is missing or wrong: open the URL that `penstock board` printed\n"
            return PlainTextResponse(text, 401, headers={"WWW-Authenticate": "Bearer"})
        if viewers >= MOST_VIEWERS:
            return PlainTextResponse(f"{MOST_VIEWERS} viewers have the board open: close one\n", 503)

        async def events() -> AsyncIterator[bytes]:
            nonlocal viewers
            viewers += 1
            try:
                async for data in publisher.differences():
                    yield b"data: " + data + b"\n\n"
            finally:
                viewers -= 1

        return StreamingResponse(events(), media_type="text/event-stream")

    @asynccontextmanager
    async def running(_: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(publisher.run())
        try:
            yield
        finally:
            task.cancel()

    routes = [Route("/", file), Route("/stream", stream), Route("/{name}", file)]
    return _Guarded(Starlette(routes=routes, lifespan=running), frozenset(name.lower() for name in names))


class _Guarded:
    """Refuses requests for foreign host names, by which a web site could read the board through its viewer's browser (DNS rebinding), and
    adds the security headers to every response."""

    def __init__(self, app: ASGIApp, names: frozenset[str]) -> None:
        self._app = app
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: dict[str, object]) -> None:
            if message["type"] == "http.response.start":
                sent = message.get("headers")
                own = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*(sent if isinstance(sent, list) else []), *own]}
            await send(message)

        sender: Callable[[dict[str, object]], Awaitable[None]] = with_headers
        app: ASGIApp = self._app
        if not self._is_known(dict(scope["headers"]).get(b"host", b"").decode("latin-1")):
            app = PlainTextResponse("The board does not answer to this host name: open it by the URL that `penstock board` printed\n", 421)
        elif scope["method"] not in ("GET", "HEAD"):
            app = PlainTextResponse("The board is only read: GET\n", 405, headers={"Allow": "GET, HEAD"})
        await app(scope, receive, sender)  # type: ignore[arg-type]  # Starlette's messages are mutable mappings of Any

    def _is_known(self, host: str) -> bool:
        """Return True for an address, `localhost` and the board's own names: no other name can be pointed at it by strangers."""
        name = host[1:].partition("]")[0] if host.startswith("[") else host.rpartition(":")[0] or host
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name.lower() in self._names or name.lower() == "localhost"
        return True


class _InTime(H11Protocol):
    """A connection of which each request is there within `REQUEST_SECONDS`, or it is closed: uvicorn limits only the time in which none
    begins, so that a line of a header every few seconds would hold it."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn
        super().connection_made(transport)
        self._wait_for_request()

    def on_response_complete(self) -> None:
        self._wait_for_request()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    def _wait_for_request(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(REQUEST_SECONDS, self._end_if_silent)

    def _end_if_silent(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()


class BoardServer(uvicorn.Server):
    """Server that ends the viewers' streams when it is asked to end, so that it ends at once."""

    def __init__(self, app: ASGIApp, publisher: Publisher) -> None:
        settings = uvicorn.Config(
            app,
            http=_InTime,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=_END_SECONDS,
            ws="none",
            lifespan="on",
        )
        super().__init__(settings)
        self._publisher = publisher

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle Ctrl-C and SIGTERM."""
        super().handle_exit(sig, frame)
        self._publisher.stop()


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens. Raises OSError."""
    [(family, _, _, _, address), *_] = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    opened = socket.socket(family)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
        opened.listen(128)
    except OSError:
        opened.close()
        raise
    return opened
