"""`penstock query`: read a key of a store from the instance that has it."""

from __future__ import annotations

from collections.abc import Sequence
from http.client import HTTPException
from typing import Annotated
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode
from urllib.request import ProxyHandler, Request, build_opener

import msgspec
import typer

from penstock.orchestration.commands.common import Json, Servers, err, explained, hint, named, out, print_json, table
from penstock.orchestration.declarations.applications import Application
from penstock.orchestration.kafka.observer import Observer
from penstock.runtime.model.errors import StreamsError

_SECONDS = 10.0
_ROWS = 1_000
"""Maximum number of windows or sessions of a key: the page size."""
_opener = build_opener(ProxyHandler({}))
"""Opener that connects to instances without a proxy, and follows their redirects with the token."""


def query(
    application: Annotated[str, typer.Argument(help="The application.id.")],
    store: Annotated[str, typer.Argument(help="The store's name.")],
    key: Annotated[str, typer.Argument(help="The key; a number or UUID is parsed if the store's keys have that type.")],
    form: Annotated[str, typer.Option("--format", help="Format of the key: text, json, or base64 of its bytes.")] = "text",
    stale: Annotated[bool, typer.Option("--stale", help="Also read from a copy, or from a part that is being restored.")] = False,
    uncommitted: Annotated[bool, typer.Option("--uncommitted", help="Also read updates that are not committed yet.")] = False,
    url: Annotated[
        str | None, typer.Option(help="Address of an instance, for example http://10.0.0.5:8080. Default: one that Kafka knows.")
    ] = None,
    token: Annotated[
        str | None, typer.Option(envvar="PENSTOCK_HTTP_TOKEN", help="The instances' http.token. Default: that of streams.toml.")
    ] = None,
    bootstrap_servers: Servers = None,
    as_json: Json = False,
) -> None:
    """Read a key of a store from the instance that has it, over the instances' HTTP endpoints (`http.port`)."""
    with explained():
        asked, token = _instances(application, bootstrap_servers, url, token)
        more = {**({"stale": "true"} if stale else {}), **({"isolation": "read_uncommitted"} if uncommitted else {})}
        described, found = _answer(asked, store, {"key": key, "format": form, **more}, token)
    _print(found, store, as_json=as_json)
    if not described.get("global") and (found["rows"] == [] if "rows" in found else found["value"] is None):
        hint(_nothing_text(store, key, described, found))


def _print(found: dict[str, object], store: str, *, as_json: bool) -> None:
    if as_json:
        print_json(found)
    elif "rows" in found:
        shown = table("start", "end", "value")
        for row in msgspec.convert(found["rows"], list[dict[str, object]]):
            shown.add_row(str(row["start"]), str(row["end"]), _text(row["value"]))
        out.print(shown)
        if found["next"] is not None:
            err.print(f"these are the first {_ROWS}; /stores/{store}/fetch gives pages", style="dim", markup=False)
    else:
        typer.echo(_text(found["value"]))
        lag = "" if found["lag"] is None else f", {found['lag']} records behind"
        hint(f"partition {found['partition']}, {found['kind']}{lag}")


def _nothing_text(store: str, key: str, described: dict[str, object], found: dict[str, object]) -> str:
    """Return a hint for a key without a value, which may be in another partition than the one that was read."""
    read = (
        "fetch?" if "rows" in found else "range?" if described["kind"] == "versioned" else f"range?{urlencode({'from': key, 'to': key})}&"
    )
    place = f" {found['partition']}" if "partition" in found else ""
    return (
        f"nothing is stored for {key!r} in the partition{place} to which Kafka's default partitioner (murmur2) sends it. Did another one "
        "choose the partitions of the store's input? librdkafka's clients use another one unless partitioner=murmur2_random is set. "
        f"GET /stores/{quote(store, safe='')}/{read}partition=N reads partition N (`penstock docs queries`)"
    )


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _instances(application: str, servers: str | None, url: str | None, token: str | None) -> tuple[list[str], str | None]:
    """Return the endpoints' addresses, most recently active first, and the token."""
    if url is not None:
        return [(url if "://" in url else f"http://{url}").rstrip("/")], token
    declared = named(application, servers)
    members = Observer(application, declared.connection).observe().members.values()
    newest = sorted(members, key=lambda member: -member.heartbeat_ms)
    addresses = list(dict.fromkeys(f"http://{member.application_server}" for member in newest if member.application_server))
    if not addresses:
        raise StreamsError(f"no instance of {application} has a known address: set http.port (and application.server) and restart them")
    return addresses, token or _declared_token(declared)


def _declared_token(application: Application) -> str | None:
    own = application.value("http.token")
    return None if own is None else str(own)


def _answer(asked: Sequence[str], store: str, parameters: dict[str, str], token: str | None) -> tuple[dict[str, object], dict[str, object]]:
    """Return the store's description and the answer of the first instance that gives one. Raises StreamsError with the last instance's
    error."""
    path = f"/stores/{quote(store, safe='')}"
    silent: list[str] = []
    for address in asked:
        what = "does not answer"
        try:
            described = _get(f"{address}{path}", token)
            read, more = ("fetch", {"limit": str(_ROWS)}) if described["kind"] in ("window", "session") else ("get", {})
            what = "sends us to the owner of the key, which does not answer: it has just gone; ask again, or read a copy with --stale"
            return described, _get(f"{address}{path}/{read}?{urlencode({**parameters, **more})}", token)
        except HTTPError as error:
            with error:
                body = error.read()
            message = msgspec.json.decode(body)["error"] if error.headers.get_content_type() == "application/json" else error.reason
            raise StreamsError(f"{error.url}: {message}") from error
        except (URLError, HTTPException, OSError) as error:
            silent.append(f"{address} {what} ({getattr(error, 'reason', error)})")
    raise StreamsError("\n".join(silent))


def _get(url: str, token: str | None) -> dict[str, object]:
    request = Request(url, headers={} if token is None else {"Authorization": f"Bearer {token}"})
    with _opener.open(request, timeout=_SECONDS) as answer:
        return msgspec.json.decode(answer.read(), type=dict[str, object])
