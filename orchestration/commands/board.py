"""`penstock board`: a live web page of the applications."""

from __future__ import annotations

import importlib
import os
import secrets
import socket
import time
import webbrowser
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote, urlsplit

import typer

from penstock.orchestration.commands.common import Servers, err, explained, fail, hint, named, warn
from penstock.orchestration.declarations.applications import Application, Applications
from penstock.orchestration.declarations.project_paths import ProjectPaths
from penstock.orchestration.embedded.ports import LOOPBACK, holder
from penstock.orchestration.instances.launcher import Launcher
from penstock.runtime.model.extras import extra

if TYPE_CHECKING:
    from penstock.orchestration.board.state import BoardState

BOARD_PORT = 3100
_TOKEN_LENGTH = 16


def board(
    applications: Annotated[
        list[str] | None, typer.Argument(metavar="[APP]…", help="Applications. Default: all that are declared.")
    ] = None,
    port: Annotated[int, typer.Option("--port", "-p", min=1, max=65535, help="Port to listen on.")] = BOARD_PORT,
    host: Annotated[
        str, typer.Option(help="Address to listen on. With another than loopback, other machines can open the page.")
    ] = LOOPBACK,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="PENSTOCK_BOARD_TOKEN",
            show_default=False,
            help=f"Token that viewers must have, at least {_TOKEN_LENGTH} characters. Better in the environment variable: other users of "
            "this machine see command lines. Default: a new one at each start, in the printed URL.",
        ),
    ] = None,
    dagster: Annotated[
        str | None,
        typer.Option(
            envvar="PENSTOCK_DAGSTER_URL",
            metavar="URL",
            help="Dagster's UI, such as http://127.0.0.1:3000: paused records link to run-books.",
        ),
    ] = None,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    bootstrap_servers: Servers = None,
) -> None:
    """Show applications live on a web page: instances, tasks, the topology with its rates, restores, paused records, the last events.

    The page is read from Kafka alone, and changes nothing. It works from any machine that reaches the brokers, with Dagster and the
    database away. Ctrl-C ends it.

    **Examples**

    `penstock board --open` shows all applications that `streams.toml` declares.

    `penstock board flight-board --bootstrap-servers kafka:9092` needs no `streams.toml`.

    `ssh -L 3100:127.0.0.1:3100 …` shows the board of another machine here; it has no encryption of its own.

    Open the printed URL: it holds the token. A person with it sees the page, with the bytes of paused records.
    """
    with explained():
        with extra("dagster", "penstock board"):
            for package in ("starlette", "uvicorn"):
                importlib.import_module(package)
        if token is not None and len(token) < _TOKEN_LENGTH:
            fail(f"The token is too short to be one: --token takes at least {_TOKEN_LENGTH} characters")
        if token is not None and not token.isascii():
            fail("The token has characters that no header can hold: --token takes ASCII")
        _serve(_states(applications, bootstrap_servers, _dagster_url(dagster)), host, port, token or secrets.token_urlsafe(24), open_page)


def _states(names: Sequence[str] | None, servers: str | None, dagster_url: str | None) -> list[tuple[Application, BoardState]]:
    """Return the applications to show, each with an empty state."""
    from penstock.orchestration.board.state import BoardState, Subject

    if servers is not None:
        if not names:
            raise typer.BadParameter("--bootstrap-servers needs to know which application: penstock board APP --bootstrap-servers …")
        return [(named(name, servers), BoardState(Subject(name, dagster_url=dagster_url))) for name in dict.fromkeys(names)]
    paths = ProjectPaths.find()
    declared = Applications.of(paths)
    found = [declared.named(name) for name in dict.fromkeys(names)] if names else list(declared.applications)
    if not found:
        fail(f"{paths.streams_toml} declares no application, so there is nothing to show. To make a project: penstock init NAME")
    launcher = Launcher(paths)
    return [(each, BoardState(Subject(each.id, each.instances, launcher, dagster_url))) for each in found]


def _dagster_url(url: str | None) -> str | None:
    """Return the URL without a slash at its end. Raises typer.BadParameter for anything but the address of a web page: the board links to
    it."""
    if not url:
        return None
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query or parts.fragment:
        raise typer.BadParameter("takes the address of Dagster's UI, such as http://127.0.0.1:3000", param_hint="--dagster")
    return url.rstrip("/")


def _serve(shown: Sequence[tuple[Application, BoardState]], host: str, port: int, token: str, open_page: bool) -> None:
    from penstock.orchestration.board.follower import Follower
    from penstock.orchestration.board.publisher import Publisher
    from penstock.orchestration.board.server import BoardServer, board_app, listening

    try:
        listener = listening(host, port)
    except OSError as error:
        taken = f" It is taken by {holder(port)}." if error.errno == 98 or error.strerror == os.strerror(98) else ""
        fail(f"Cannot listen on port {port} of {host} ({error.strerror or error}).{taken} Choose another one: penstock board --port …")
    followers = [Follower(application.streams_config(), state) for application, state in shown]

    def document() -> Mapping[str, object]:
        now_ms = _now_ms()
        return {"applications": {application.id: state.document(now_ms) for application, state in shown}}

    publisher = Publisher(document, _now_ms)
    names = [host, socket.gethostname(), socket.getfqdn()] if host not in (LOOPBACK, "localhost", "::1") else []
    server = BoardServer(board_app(publisher, token, names), publisher)
    reachable = LOOPBACK if host in ("", "0.0.0.0") else "[::1]" if host == "::" else f"[{host}]" if ":" in host else host
    url = f"http://{reachable}:{port}/#token={quote(token, safe='')}"
    if host not in (LOOPBACK, "localhost", "::1"):
        warn(f"Other machines can reach {host}:{port}, and the page is not encrypted: put a proxy with TLS before it, or use an SSH tunnel")
    err.print(f"The board of {', '.join(application.id for application, _ in shown)}: {url}", markup=False)
    hint("Ctrl-C ends it")
    if open_page and not webbrowser.open(url):
        hint("no browser was found: open the URL above")
    for follower in followers:
        follower.start()
    try:
        server.run(sockets=[listener])
    except KeyboardInterrupt:
        return  # raised again by the server after it has ended
    finally:
        for follower in followers:
            follower.stop()
        listener.close()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
