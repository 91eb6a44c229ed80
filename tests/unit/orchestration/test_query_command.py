"""`penstock query` against instances that answer as they do while one has just died, and with more rows than a page has."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec
from typer.testing import CliRunner, Result

from penstock.orchestration.cli import app
from penstock.orchestration.embedded.ports import free_port

Answers = Mapping[str, tuple[int, object]]


@contextmanager
def instance(answers: Answers) -> Iterator[str]:
    """An instance that gives these answers by path; a status 307 redirects to what is said. Its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answers[self.path.partition("?")[0]]
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            if status == 307:
                self.send_header("Location", str(body))
            self.end_headers()
            self.wfile.write(msgspec.json.encode(body))

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def query(url: str, store: str) -> Result:
    return CliRunner().invoke(app, ["query", "app", store, "k", "--url", url])


def test_a_dead_owner_is_distinguished_from_an_instance_that_does_not_answer() -> None:
    dead = f"127.0.0.1:{free_port()}"
    with instance({"/stores/counts": (200, {"kind": "key_value"}), "/stores/counts/get": (307, f"//{dead}/stores/counts/get")}) as here:
        found = query(here, "counts")
    assert found.exit_code == 1 and f"http://{here} sends us to the owner of the key, which does not answer" in found.output
    assert "--stale" in found.output
    found = query(f"http://{dead}", "counts")
    assert found.exit_code == 1 and f"http://{dead} does not answer" in found.output


def test_a_key_without_a_value_may_be_in_another_partition_which_stderr_says() -> None:
    part = {"partition": 3, "kind": "ACTIVE", "lag": 0}
    for value, is_global, reported in ((None, False, True), (7, False, False), (None, True, False)):
        answers = {
            "/stores/s": (200, {"kind": "key_value", "global": is_global}),
            "/stores/s/get": (200, {**part, "value": value}),
        }
        with instance(answers) as here:
            found = query(here, "s")
            asked = CliRunner().invoke(app, ["query", "app", "s", "k", "--url", here, "--json"])
        assert found.stdout.strip() == msgspec.json.encode(value).decode()
        assert ("nothing is stored for 'k' in the partition 3 to which" in found.stderr) is reported
        assert ("GET /stores/s/range?from=k&to=k&partition=N" in found.stderr) is reported
        assert msgspec.json.decode(asked.stdout)["value"] == value
    with instance({"/stores/w": (200, {"kind": "window", "global": False}), "/stores/w/fetch": (200, {"rows": [], "next": None})}) as here:
        assert "GET /stores/w/fetch?partition=N" in query(here, "w").stderr


def test_more_windows_than_a_page_has_are_not_passed_over_in_silence() -> None:
    window = {"start": 0, "end": 10, "value": 7}
    for following, reported in (("more", True), (None, False)):
        answers = {"/stores/w": (200, {"kind": "window"}), "/stores/w/fetch": (200, {"rows": [window], "next": following})}
        with instance(answers) as here:
            found = query(here, "w")
        assert found.exit_code == 0 and ("these are the first 1000" in found.output) is reported
