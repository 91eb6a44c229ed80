"""The live board without a broker: documents of an application's state, their differences, viewers, and who is let in."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re
import select
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient
from typer.testing import CliRunner

from penstock.orchestration.board import server as board_server
from penstock.orchestration.board.difference import Document, difference, patched
from penstock.orchestration.board.publisher import Publisher
from penstock.orchestration.board.server import FILES, BoardServer, board_app, listening
from penstock.orchestration.board.state import BoardState, Subject
from penstock.orchestration.cli import app
from penstock.orchestration.drawing.description import parse
from penstock.orchestration.drawing.flow import flow
from penstock.orchestration.kafka.rates import LONGEST_STEP_MS, OLD_MS, Rates
from penstock.orchestration.kafka.topic_offsets import TopicOffsets
from penstock.orchestration.run_books import SkipRecord
from penstock.runtime.coordination.records import (
    Desired,
    GlobalStoreReport,
    Member,
    PausedAt,
    Reset,
    RestoreReport,
    TaskReport,
    TopologyText,
    encode,
)
from penstock.runtime.model.clock import SystemClock
from penstock.runtime.model.events import Event, EventKind
from penstock.runtime.model.ids import TopicPartition
from penstock.runtime.model.states import State, TaskKind, TaskState

TOKEN = "a token for the tests"
TEXT = """Topologies:
   Sub-topology: 0
    Source: source (topics: [in])
      --> select
    Processor: select (stores: [])
      --> sink
    Sink: sink (topic: app-by-name-repartition)

   Sub-topology: 1
    Source: again (topics: [app-by-name-repartition])
      --> count
    Processor: count (stores: [counts])
      --> last
    Sink: last (topic: out)
"""
HOSTILE = b"<img src=x onerror=alert(1)>\xff\x00"

documents = st.recursive(
    st.integers() | st.text(max_size=3) | st.booleans() | st.lists(st.integers(), max_size=2),
    lambda inner: st.dictionaries(st.sampled_from("abcd"), inner, max_size=4),
    max_leaves=12,
)


def now() -> int:
    return SystemClock().wall_ms()


# -- differences -----------------------------------------------------------------------------------------------------------------


@given(st.dictionaries(st.sampled_from("abc"), documents), st.dictionaries(st.sampled_from("abc"), documents))
def test_a_difference_makes_the_new_document_of_the_old_one(before: Document, after: Document) -> None:
    assert patched(before, difference(before, after)) == after
    assert difference(after, after) == {} and difference(after, dict(after)) == {}


def test_a_difference_names_only_what_has_changed() -> None:
    before = {"tasks": {"0_0": {"lag": 1, "state": "RUNNING"}, "0_1": {"lag": 2}}, "idle": {"0_2": "why"}}
    after = {"tasks": {"0_0": {"lag": 3, "state": "RUNNING"}, "0_1": {"lag": 2}}, "idle": {}}
    assert difference(before, after) == {"tasks": {"0_0": {"lag": 3}}, "idle": {"0_2": None}}


# -- rates, the graph ------------------------------------------------------------------------------------------------------------


def test_a_rate_is_the_mean_of_the_last_seconds_and_unknown_without_samples() -> None:
    rates = Rates()
    assert rates.per_second("a", 0) is None
    for second in range(10):
        rates.add("a", 100 * second if second < 5 else 400 + 10 * (second - 4), second * 1000)
    assert rates.per_second("a", 9_000) == 10
    rates.add("a", 5, 10_000)
    assert rates.per_second("a", 10_000) is None, "a counter that decreases begins again"
    rates.add("a", 15, 11_000)
    assert rates.per_second("a", 11_000) == 10 and rates.per_second("a", 11_001 + OLD_MS) is None


def test_a_counter_that_changes_in_steps_has_their_mean_rate_until_it_stops() -> None:
    """Committed offsets of an application with at least once change every 30 s."""
    rates, shown = Rates(), set()
    for second in range(300):
        rates.add("a", 30 * 100 * (second // 30), second * 1000)
        shown.add(rates.per_second("a", second * 1000) if second > 30 else 100.0)
    assert shown == {100.0}
    for second in range(300, 300 + LONGEST_STEP_MS // 1000 + 1):
        rates.add("a", 27_000, second * 1000)
    assert rates.per_second("a", second * 1000) == 0
    rates.add("a", 27_050, (second + 1) * 1000)
    assert rates.per_second("a", (second + 1) * 1000) == 50, "the time in which it stood still is not averaged in"


def test_a_paused_task_lags_more_while_records_arrive_and_the_reader_is_late() -> None:
    """Its report has the lag at which it paused, since it reads nothing."""
    paused = report(state=TaskState.PAUSED, lag=7, paused=PausedAt(topic="in", partition=0, offset=5, since_ms=now()))
    state = board_state(member({"0_0": paused}))
    at_ms = now()
    for second in range(6):
        state.offsets(
            TopicOffsets({TopicPartition("in", 0): 5 + 100 * second}, {TopicPartition("in", 0): 5}), {"in": 1}, at_ms + 1000 * second
        )
    document = state.document(at_ms + 5_000)
    assert section(document, "tasks")["0_0@app-1"]["lag"] == totals(document)["lag"] == 500
    assert document["lags"] == {"in": 500} and document["late"] == {"in": True}


def test_records_flow_to_the_right_and_nothing_overlaps() -> None:
    graph = flow(parse(TEXT))
    columns = {place.key: place.column for place in graph.places}
    order = ["topic in", "part 0", "topic app-by-name-repartition", "part 1", "topic out"]
    assert [columns[key] for key in order] == [0, 1, 2, 3, 4]
    assert all(columns[edge.start] < columns[edge.end] for edge in graph.edges) and len(graph.edges) == 4
    places = [(place.column, place.row) for place in graph.places]
    assert all(abs(a[1] - b[1]) >= 1 for a in places for b in places if a is not b and a[0] == b[0])


def test_a_cycle_of_topics_is_drawn() -> None:
    graph = flow(parse("Sub-topology: 0\n Source: a (topics: [x])\n --> b\n Sink: b (topic: x)\n"))
    assert len(graph.places) == 2 and len(graph.edges) == 2


# -- the state -------------------------------------------------------------------------------------------------------------------


def report(kind: TaskKind = TaskKind.ACTIVE, state: TaskState = TaskState.RUNNING, **more: object) -> TaskReport:
    fields: dict[str, object] = {"kind": kind, "state": state, "offset_sum": 10, "end_sum": 10, "lag": 0, **more}
    return msgspec.convert(msgspec.to_builtins(fields), TaskReport)


def member(tasks: Mapping[str, TaskReport], instance: str = "app-1", at_ms: int | None = None, **more: object) -> Member:
    fields: dict[str, object] = {
        "instance": instance,
        "incarnation": 1,
        "transactional_id": "secret-transactional-id",
        "state_dir": "/secret/state",
        "host": "elsewhere",
        "pid": 1,
        "state": State.RUNNING,
        "topology_hash": "h",
        "heartbeat_ms": now() if at_ms is None else at_ms,
        **more,
    }
    return msgspec.structs.replace(msgspec.convert(msgspec.to_builtins(fields), Member), tasks=dict(tasks))


def board_state(*members: Member, dagster_url: str | None = None) -> BoardState:
    state = BoardState(Subject("app", dagster_url=dagster_url))
    state.contact(now(), missing=False)
    topology = TopologyText(hash="h", text=TEXT)
    state.coordination(topology.key, encode(topology))
    for each in members:
        state.coordination(each.key, encode(each))
        desired = Desired(instance=each.instance, running=True, at_ms=now(), by="test")
        state.coordination(desired.key, encode(desired))
    state.complete()
    return state


def event(kind: EventKind, task: str | None = None, payload: dict[str, object] | None = None, number: int = 1) -> Event:
    return Event(
        id=str(number), application="app", instance="app-1", incarnation=1, kind=kind, task=task, at_ms=now(), payload=payload or {}
    )


def section(document: Document, name: str) -> Mapping[str, Mapping[str, object]]:
    found = document[name]
    assert isinstance(found, Mapping)
    return found


def totals(document: Document) -> Mapping[str, object]:
    found = document["totals"]
    assert isinstance(found, Mapping)
    return found


def headline(state: BoardState) -> tuple[object, object]:
    shown = section(state.document(now()), "headline")
    return shown["level"], shown["text"]


def test_a_reset_leaves_nothing_of_before_it_but_the_wanted_instances() -> None:
    """The page is that of a board opened after the reset. Records that came later may have been read before the record of the reset."""
    state = board_state(member({"0_0": report()}))
    old = event(EventKind.TASK_RESUMED, "0_0", number=1)
    new = msgspec.structs.replace(event(EventKind.INSTANCE_STATE, number=2), at_ms=old.at_ms + 60_000)
    for each in (old, new):
        state.event(each)
    began = Reset(id="r", at_ms=old.at_ms + 30_000, by="ann")
    state.coordination(began.key, encode(began))
    assert len(section(state.document(now()), "events")) == 2, "it has not ended"
    level, said = headline(state)
    assert level == "bad" and re.match("A reset of application app was begun by ann .*: end it with penstock reset app$", str(said))
    ended = msgspec.structs.replace(began, ended=True)
    state.coordination(ended.key, encode(ended))
    document = state.document(now())
    assert [row["kind"] for row in section(document, "events").values()] == [EventKind.INSTANCE_STATE.value]
    assert section(document, "tasks") == {} and state.topics() == (set(), set())
    assert list(section(document, "instances")) == ["app-1"], "it is wanted"


PAUSED = report(
    state=TaskState.PAUSED,
    paused=PausedAt(topic="in", partition=0, offset=7, error_type="ValueError", error="no <b>json</b>", location="board.py:3", since_ms=5),
)
PAYLOAD: dict[str, object] = {
    "topic": "in",
    "partition": 0,
    "offset": 7,
    "key_base64": None,
    "value_base64": base64.b64encode(HOSTILE).decode(),
    "error_type": "ValueError",
    "error": "no",
}


def test_a_pause_whose_event_has_not_arrived_is_not_said_to_be_an_old_one() -> None:
    """Reports and events are on two topics: with several brokers, one of them away, the event may arrive ten seconds later."""
    state = board_state(member({"0_0": PAUSED, "0_1": report()}))

    def absent() -> object:
        return section(state.document(now()), "paused")["0_0"].get("absent")

    assert absent() == "The event of this pause, which has the bytes, is not read yet"
    state.event(event(EventKind.TASKS_ASSIGNED, None, {}))
    assert "is not among the last ones" in str(absent()), "a later event was read"
    state.event(event(EventKind.TASK_PAUSED, "0_0", PAYLOAD, number=2))
    assert absent() is None


def test_a_pause_is_shown_with_its_bytes_and_the_run_book_and_goes() -> None:
    state = board_state(member({"0_0": PAUSED, "0_1": report()}), dagster_url="http://dagster:3000")
    state.event(event(EventKind.TASK_PAUSED, "0_0", PAYLOAD))
    assert headline(state) == ("bad", "Task 0_0 is paused at in-0@7")
    shown = section(state.document(now()), "paused")["0_0"]
    value = shown["value"]
    assert isinstance(value, Mapping) and value["size"] == len(HOSTILE) and value["text"] == r"<img src=x onerror=alert(1)>\xff\x00"
    assert str(value["hex"]).startswith("00000000  3c 69 6d 67")
    assert shown["error"] == "ValueError: no <b>json</b>" and shown["location"] == "board.py:3"
    assert shown["command"] == "penstock run-book skip-record app 0_0 --record in-0@7"
    link = urlsplit(str(shown["link"]))
    assert f"{link.scheme}://{link.netloc}{link.path}" == "http://dagster:3000/guess/skip_record/playground/setup"
    form = parse_qs(link.query)["config"][0]
    said = [line.removeprefix("# ") for line in form.replace("\n#   ", " ").splitlines() if line.startswith("#")]
    known = ["record: in-0@7", "task: 0_0", "error: ValueError: no <b>json</b>"]
    value_text = r"first bytes of the value: <img src=x onerror=alert(1)>\xff\x00"
    assert said == [*known, value_text, *(f"step {step.name}: {step.what}" for step in SkipRecord.STEPS)]
    inputs = {"application": "app", "task": "0_0", "topic": "in", "partition": 0, "offset": 7}
    assert yaml.safe_load(form) == {"ops": {"skip": {"config": inputs}}}
    later = member({"0_0": report(), "0_1": report()}, at_ms=now() + 1)
    state.coordination(later.key, encode(later))
    assert section(state.document(now()), "paused") == {} and headline(state) == ("good", "All 2 tasks run on 1 instance")


def test_a_global_table_that_is_rebuilt_is_in_the_headline() -> None:
    """Tasks that read it wait, and report no restore of their own."""
    restore = RestoreReport(records=30, remaining=70, rate=7.0, seconds_left=10.0)
    rebuilt = GlobalStoreReport(topic="names", state=TaskState.RESTORING, restore=restore, reason="records were deleted")
    state = board_state(member({"0_0": report()}, global_stores={"names": rebuilt}))
    assert headline(state) == ("warn", "Global table names on app-1 is being restored")
    there = GlobalStoreReport(topic="names", state=TaskState.RUNNING)
    later = member({"0_0": report()}, global_stores={"names": there}, at_ms=now() + 1)
    state.coordination(later.key, encode(later))
    assert headline(state) == ("good", "1 task runs on 1 instance")


def test_while_no_broker_answers_the_last_known_state_stays_however_long() -> None:
    """An instance cannot be heard then, and is not silent for that reason."""
    long_ago = now() - 3_600_000
    state = board_state(member({"0_0": PAUSED, "0_1": report()}, at_ms=long_ago))
    state.contact(long_ago + 1_000, missing=False)
    assert headline(state)[1] == "app-1 should run: silent"
    state.lost("No broker answers")
    document = state.document(now())
    assert headline(state) == ("bad", "Task 0_0 is paused at in-0@7") and document["idle"] == {}
    assert section(document, "instances")["app-1"]["state"] == "RUNNING"


def test_bytes_of_another_pause_of_the_task_are_not_shown() -> None:
    state = board_state(member({"0_0": PAUSED}))
    state.event(event(EventKind.TASK_PAUSED, "0_0", {**PAYLOAD, "offset": 6}))
    shown = section(state.document(now()), "paused")["0_0"]
    assert "value" not in shown and "link" not in shown and "penstock events app" in str(shown["absent"])


def test_a_learner_and_a_restore_show_their_progress() -> None:
    learner = {"0_0": report(TaskKind.LEARNER, lag=1_000, position=0)}
    state = board_state(member({"0_0": report()}), member(learner, "app-2", at_ms=now() - 2_000))
    assert section(state.document(now()), "tasks")["0_0@app-2"]["move"] == {"left": 1_000, "of": 1_000, "rate": 0.0}
    nearer = member({"0_0": report(TaskKind.LEARNER, lag=400, position=600)}, "app-2", at_ms=now())
    state.coordination(nearer.key, encode(nearer))
    move = section(state.document(now()), "tasks")["0_0@app-2"]["move"]
    assert isinstance(move, Mapping) and move["left"] == 400 and move["of"] == 1_000 and move["rate"] > 0
    assert headline(state) == ("busy", "1 task restoring or moving")
    restore = RestoreReport(records=30, remaining=70, rate=7.0, seconds_left=10.0)
    restoring = member({"0_0": report(state=TaskState.RESTORING, restore=restore)}, at_ms=now() + 1)
    state.coordination(restoring.key, encode(restoring))
    assert section(state.document(now()), "tasks")["0_0@app-1"]["move"] == {"left": 70, "of": 100, "rate": 7.0, "seconds": 10}


def test_instances_show_what_they_read_and_write_and_their_total_is_the_sum_of_what_is_shown() -> None:
    """Rates below 10 are not whole numbers. An instance of which nothing is known is left out of the sum, which says so."""
    at_ms, state = now(), board_state()
    for second in (4, 0):
        for number, (read, written) in enumerate(((0.4, 12.6), (0.4, 12.6), (0.5, 0.4)), 1):
            done = 10 - second
            reports = {f"0_{number}": report(offset_sum=round(1000 + read * done * 10), state=TaskState.RUNNING)}
            each = member(reports, f"app-{number}", at_ms - second * 10 * 100, written=round(written * done * 10))
            state.coordination(each.key, encode(each))
    document = state.document(at_ms)
    rows = section(document, "instances")
    assert [(row["read"], row["written"]) for _, row in sorted(rows.items())] == [(4.0, 126), (4.0, 126), (5.0, 4.0)]
    assert (totals(document)["rate"], totals(document)["written"]) == (13, 256) and "rate_of" not in totals(document)
    late = member({"0_4": report()}, "app-4", at_ms)
    state.coordination(late.key, encode(late))
    document = state.document(at_ms)
    assert "read" not in section(document, "instances")["app-4"]
    assert (totals(document)["rate"], totals(document)["rate_of"], totals(document)["running"]) == (13, 3, 4)


def test_a_copy_that_becomes_active_has_no_rate_from_its_position_to_its_offsets() -> None:
    state = board_state(member({"0_0": report(TaskKind.LEARNER, position=5)}, at_ms=now() - 4_000))
    active = member({"0_0": report(offset_sum=1_000_000)}, at_ms=now())
    state.coordination(active.key, encode(active))
    assert "rate" not in section(state.document(now()), "tasks")["0_0@app-1"]


def test_edges_have_rates_and_sources_their_lag() -> None:
    state = board_state(member({"0_0": report()}))
    place, out, at_ms = TopicPartition("in", 0), TopicPartition("out", 0), now()
    for second in range(3):
        found = TopicOffsets({place: 1_000 + 100 * second, out: 5 * second}, {place: 50 * second})
        state.offsets(found, {"in": 1, "out": 1}, at_ms + 1000 * second)
    document = state.document(at_ms + 2_000)
    assert document["rates"] == {"topic in > part 0": 50, "part 1 > topic out": 5.0}
    assert document["lags"] == {"in": 1_100}
    assert state.topics() == ({"in", "out", "app-by-name-repartition"}, {"in", "app-by-name-repartition"})


def test_a_broker_that_is_away_is_said_with_the_time_of_what_is_shown() -> None:
    state = board_state(member({"0_0": report()}))
    since_ms = now() - 5_000
    state.contact(since_ms, missing=False)
    state.lost("No broker answers at sasl://user:word@kafka:9092")
    assert state.document(now())["reading"] == {"state": "lost", "error": "No broker answers at sasl://kafka:9092", "since_ms": since_ms}
    assert not state.answered
    state.contact(now(), missing=False)
    assert state.document(now())["reading"] == {"state": "live"}


def test_an_application_that_was_never_started_says_what_to_do() -> None:
    state = BoardState(Subject("app", ("app-1",)))
    assert state.document(now())["reading"] == {"state": "reading"}
    state.contact(now(), missing=True)
    assert headline(state) == ("none", "app has never been started on this Kafka. To start it: penstock start app-1")


def test_a_silent_instance_is_not_shown_as_running_nor_are_its_tasks() -> None:
    state = board_state(member({"0_0": report()}, at_ms=now() - 60_000))
    document = state.document(now())
    assert section(document, "instances")["app-1"]["state"] == "silent" and section(document, "tasks") == {}
    assert headline(state)[0] != "good"


def test_the_document_has_no_null_and_no_field_that_it_does_not_name() -> None:
    state = board_state(member({"0_0": PAUSED, "0_1": report(TaskKind.STANDBY)}))
    state.event(event(EventKind.INSTANCE_STATE, None, {"old": "CREATED", "new": "RUNNING", "pid": 1, "log_path": "/secret/log"}))
    data = msgspec.json.encode(state.document(now()))
    assert b"null" not in data and b"secret" not in data


def test_the_last_events_are_kept_each_once_and_without_checkpoints() -> None:
    state = board_state()
    for number in range(200):
        state.event(event(EventKind.TASK_RESUMED, "0_0", {}, number))
        state.event(event(EventKind.CHECKPOINT, "0_0", {}, 1_000 + number))
        state.event(event(EventKind.TASK_RESUMED, "0_0", {}, number))
    shown = section(state.document(now()), "events")
    assert list(shown) == [str(number) for number in range(141, 201)]


# -- viewers ---------------------------------------------------------------------------------------------------------------------


def test_each_viewer_gets_the_whole_document_and_then_differences_and_a_slow_one_skips() -> None:
    current: dict[str, object] = {"n": 0, "same": {"x": 1}}

    async def run() -> None:
        publisher = Publisher(lambda: dict(current), lambda: 5)
        making = asyncio.create_task(publisher.run())
        quick, slow = publisher.differences(), publisher.differences()
        seen: dict[str, object] = {}
        seen = patched(seen, await patch_of(quick, lambda found: "n" in found))
        behind = patched({}, await patch_of(slow, lambda found: "n" in found))
        assert seen == behind == current
        for number in range(1, 4):
            current["n"] = number
            patch = await patch_of(quick, lambda found: "n" in found)
            assert patch == {"n": number}, "only what has changed"
        assert await patch_of(slow, lambda found: "n" in found) == {"n": 3}, "what is in between is skipped"
        publisher.stop()
        assert [data async for data in quick] == [], "a viewer's stream ends with the board"
        making.cancel()

    asyncio.run(asyncio.wait_for(run(), 60))


async def patch_of(stream: AsyncIterator[bytes], wanted: Callable[[Document], bool]) -> Document:
    async for data in stream:
        message = msgspec.json.decode(data)
        assert message["now"] == 5
        if wanted(message.get("patch", {})):
            found: Document = message["patch"]
            return found
    raise AssertionError("the stream has ended")


@pytest.fixture
def client() -> TestClient:
    return TestClient(board_app(Publisher(dict, lambda: 0), TOKEN, ["board.example"]), base_url="http://127.0.0.1:3100")


def test_a_request_that_does_not_end_is_cut_off_and_a_stream_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line of a header every 20 ms held a connection for as long as its sender liked."""
    monkeypatch.setattr(board_server, "REQUEST_SECONDS", 0.3)
    publisher, sock = Publisher(lambda: {"n": time.monotonic()}, lambda: 5), listening("127.0.0.1", 0)
    server = BoardServer(board_app(publisher, TOKEN, []), publisher)
    serving = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
    serving.start()
    try:
        with socket.create_connection(sock.getsockname()) as viewer, socket.create_connection(sock.getsockname()) as slow:
            for connection in (viewer, slow):
                connection.settimeout(30)
            viewer.sendall(f"GET /stream HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode())
            slow.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")  # in time: answered
            while not slow.recv(65_536).endswith(b"</html>\n"):
                pass
            with contextlib.suppress(ConnectionError):
                slow.sendall(b"GET / HTTP/1.1\r\n")
                for _ in range(500):
                    if select.select([slow], [], [], 0.02)[0]:
                        break
                    slow.sendall(b"X-More: 1\r\n")
                assert slow.recv(1) == b"", "it is closed without an answer"
            for _ in range(3):
                assert viewer.recv(65_536), "the stream goes on"
    finally:
        server.should_exit = True
        publisher.stop()
        serving.join()


@pytest.mark.parametrize("header", [None, "Bearer wrong", f"Basic {TOKEN}", "Bearer", "Bearer ÿ"])
def test_the_stream_takes_the_token(client: TestClient, header: str | None) -> None:
    refused = client.get("/stream", headers={} if header is None else {b"Authorization": header.encode("latin-1")})
    assert refused.status_code == 401 and "penstock board" in refused.text
    assert client.get(f"/stream?token={TOKEN}").status_code == 401, "a token in a URL would be in logs"


@pytest.mark.parametrize("name", ["", *FILES])
def test_the_page_is_the_same_for_everyone_and_runs_only_its_own_files(client: TestClient, name: str) -> None:
    page = client.get(f"/{name}")
    assert page.status_code == 200 and TOKEN not in page.text
    policy = page.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
    for sink in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", " style=", "onclick="):
        assert sink not in page.text, f"{sink}: bytes of records must become text"
    assert not re.search(r"https?://(?!www\.w3\.org)[a-z]", page.text), "nothing comes from elsewhere"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:3100", 200),
        ("localhost:3100", 200),
        ("[::1]:3100", 200),
        ("10.0.0.7", 200),
        ("Board.Example:3100", 200),
        ("evil.example:3100", 421),
        ("127.0.0.1.evil.example", 421),
        ("localhost.evil", 421),
    ],
)
def test_a_foreign_host_name_is_refused(client: TestClient, host: str, status: int) -> None:
    for path in ("/", "/stream"):
        found = client.get(path, headers={"Host": host}).status_code
        assert found == (401 if status == 200 and path == "/stream" else status)


def test_the_board_is_only_read_and_has_no_other_files(client: TestClient) -> None:
    assert client.post("/stream").status_code == 405 and client.put("/").status_code == 405
    assert client.get("/state.py").status_code == 404 and client.get("/..%2Fstate.py").status_code == 404


# -- the command -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--bootstrap-servers", "127.0.0.1:9"], "penstock board APP --bootstrap-servers"),
        (["app", "-b", "127.0.0.1:9", "--token", "short"], "at least 16 characters"),
        (["app", "-b", "127.0.0.1:9", "--dagster", "javascript:alert(1)"], "--dagster"),
        (["app", "-b", "127.0.0.1:9", "--dagster", "http://user:word@host"], "--dagster"),
    ],
)
def test_wrong_arguments_are_explained(arguments: list[str], text: str) -> None:
    done = CliRunner().invoke(app, ["board", *arguments], env={"COLUMNS": "200", "TERM": "dumb"})
    assert done.exit_code != 0 and text in done.output and "Traceback" not in done.output


def test_a_port_that_is_taken_is_said_with_the_option() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = CliRunner().invoke(app, ["board", "app", "-b", "127.0.0.1:9", "--port", port])
    text = " ".join(done.output.split())
    assert done.exit_code == 1 and port in text and "penstock board --port" in text and "taken by process" in text
