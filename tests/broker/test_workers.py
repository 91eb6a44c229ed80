"""Workers as processes: several in one instance, queried as one, killed, suspended, added and removed (docs/workers.md)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from penstock.runtime.client.kafka_streams import KafkaStreams, StreamThreadExceptionResponse
from penstock.runtime.coordination.commands import CommandClient
from penstock.runtime.coordination.records import Member
from penstock.runtime.model.errors import ApplicationShutdownError, InvalidStateStoreError, StreamsConfigError, StreamsError
from penstock.runtime.model.ids import TopicPartition
from penstock.runtime.model.states import State
from penstock.runtime.stores.backed import UPDATE_BYTES
from penstock.runtime.worker.supervisor import process_worker
from penstock.runtime.worker.supervisor.process_worker import ProcessWorker
from tests.broker.worker_apps import counts, troubled_copy
from tests.support import PATIENCE, ROOT, Kafka, wait_until
from tests.support.engine import client, reaches
from tests.support.instances import members

Settings = Mapping[str, object]
APPS = "tests.broker.worker_apps"
SESSION = {"session.timeout.ms": 10_000, "heartbeat.interval.ms": 1_000}


@dataclass
class App:
    """An application of two workers in one instance, run by this process."""

    broker: Kafka
    id: str
    folder: Path
    source: str
    output: str
    sent: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def running(self, factory: str = "counts", workers: int = 2, settings: Settings | None = None) -> Iterator[KafkaStreams]:
        with self.client(factory, workers, settings) as streams:
            streams.start()
            reaches(streams, State.RUNNING, 60)
            yield streams

    def client(self, factory: str = "counts", workers: int = 2, settings: Settings | None = None) -> KafkaStreams:
        wanted = {**SESSION, "num.stream.threads": workers, **(settings or {})}
        return client(self.broker, f"{APPS}:{factory}", self.id, self.folder, **wanted)

    def count(self, records: int, keys: int = 20) -> None:
        self.broker.produce(self.source, [(f"k{number % keys}", "v") for number in range(records)])
        for number in range(records):
            key = f"k{number % keys}"
            self.sent[key] = self.sent.get(key, 0) + 1

    def each_update_came_once(self, seconds: float = 45) -> None:
        wanted = {key.encode(): list(range(1, times + 1)) for key, times in self.sent.items()}

        def updates() -> dict[bytes, list[int]]:
            found: dict[bytes, list[int]] = {}
            for record in self.broker.consume(self.output):
                found.setdefault(record.key or b"", []).append(int.from_bytes(record.value or b"", "big"))
            return found

        wait_until(lambda: sum(map(len, updates().values())) >= sum(self.sent.values()), seconds, "all updates")
        assert updates() == wanted


@pytest.fixture
def app(broker: Kafka, application_id: str, state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> App:
    source, output = broker.create_topic("in", 4), broker.create_topic("out", 4)
    for name, value in {"TEST_SOURCE": source, "TEST_OUTPUT": output, "TEST_FOLDER": str(state_dir)}.items():
        monkeypatch.setenv(name, value)
    return App(broker, application_id, state_dir, source, output)


def processes(streams: KafkaStreams) -> dict[int, int]:
    """Return process ids by the number of the worker."""
    return {worker.number: worker.pid for worker in streams._supervisor.workers if isinstance(worker, ProcessWorker)}


def tasks(streams: KafkaStreams) -> dict[str, set[str]]:
    """Return the tasks of each worker, by the end of its name."""
    return {
        thread.thread_name.rpartition("-")[2]: {str(task.task_id) for task in thread.active_tasks if task.state.value == "RUNNING"}
        for thread in streams.metadata_for_local_threads()
    }


def share(streams: KafkaStreams, sizes: list[int], seconds: float = 40) -> None:
    """Wait until the workers run these numbers of tasks."""
    wait_until(lambda: sorted(map(len, tasks(streams).values())) == sizes, seconds, f"{sizes} tasks")


class Restores:
    """A restore listener that keeps the number of records of each restore."""

    def __init__(self) -> None:
        self.ended: list[int] = []

    def on_restore_start(self, partition: TopicPartition, store: str, start: int, end: int) -> None: ...

    def on_batch_restored(self, partition: TopicPartition, store: str, batch_end: int, records: int) -> None: ...

    def on_restore_end(self, partition: TopicPartition, store: str, total: int) -> None:
        self.ended.append(total)

    def on_restore_suspended(self, partition: TopicPartition, store: str, total: int) -> None: ...


def test_two_workers_are_asked_and_commanded_as_one(app: App) -> None:
    """Iterations come in pieces, and may be left."""
    with app.running(settings={"client.id": "one"}) as streams:
        share(streams, [2, 2])
        app.count(2_000)
        app.each_update_came_once()
        store = streams.store("counts")
        wait_until(lambda: store.get("k3") == 100, what="the commit of the stores")
        assert store.get("nobody") is None
        assert dict(store.all()) == {f"k{number}": 100 for number in range(20)}
        assert sorted(key for key, _ in store.range("k1", "k11")) == ["k1", "k10", "k11"]  # type: ignore[type-var]
        assert store.approximate_num_entries() >= 20  # RocksDB counts a key once per commit until it merges them
        with pytest.raises(InvalidStateStoreError, match=r"store 'nothing' is unknown or not on this client \(stores here: counts\)"):
            streams.store("nothing")
        with pytest.raises(InvalidStateStoreError, match="is a key-value store: use get, range, all or prefix_scan"):
            store.fetch_all(0, 1)
        lags = streams.all_local_store_partition_lags()["counts"]
        assert set(lags) == {0, 1, 2, 3} and not any(lag.offset_lag for lag in lags.values())
        commits = {dict(name.tags)["thread-id"]: value for name, value in streams.metrics().items() if name.name == "commit-total"}
        assert len(commits) == 2 and all(commits.values())
        assert [value for name, value in streams.metrics().items() if name.name == "alive-stream-threads"] == [2]
        known = _members(app)
        assert len({member.instance for member in known}) == 1 and {member.worker for member in known} == {1, 2}
        assert {member.pid for member in known} == {os.getpid()}, "signals for the instance go to its main process"

        app.count(6_000, keys=6_000)
        wait_until(lambda: len(dict(store.all())) == 6_000, what="all keys")
        rows = store.all()
        next(rows)
        del rows
        assert len({key for key, _ in store.reverse_all()}) == 6_000

        with CommandClient(app.id, app.broker.connection, "test") as commands:
            result = commands.send("snapshot", instance="one", args={"snapshot_id": "first"})
            assert result.ok and sorted(result.data["tasks"]) == ["0_0", "0_1", "0_2", "0_3"]  # type: ignore[call-overload]
            assert commands.send("close", instance="one", args={"timeout_ms": 20_000}).ok
        assert streams.wait_for(State.NOT_RUNNING, 30_000)
    assert streams.state is State.NOT_RUNNING
    assert not members(app.broker, app.id), "all have left"


def _members(app: App) -> list[Member]:
    with CommandClient(app.id, app.broker.connection, "test") as commands:
        return commands.members()


def test_a_worker_that_is_killed_is_missed_for_a_moment(app: App) -> None:
    """Not for the whole session timeout, after which alone the group admits its successor."""
    with app.running() as streams:
        share(streams, [2, 2])
        app.count(400)
        app.each_update_came_once()
        killed = processes(streams)[1]  # the first to start leads
        os.kill(killed, signal.SIGKILL)
        at = time.monotonic()
        app.count(400)
        app.each_update_came_once()
        gap = time.monotonic() - at
        assert gap < 5, f"output stood still for {gap:.1f} s"
        share(streams, [2, 2])
        assert processes(streams)[1] != killed
        app.count(400)
        app.each_update_came_once()
        assert streams.failure is None


def test_workers_come_and_go_and_tasks_move_without_restoring(app: App) -> None:
    restores = Restores()
    streams = app.client()
    streams.set_global_state_restore_listener(restores)
    with streams:
        streams.start()
        reaches(streams, State.RUNNING, 60)
        app.count(2_000)
        app.each_update_came_once()
        share(streams, [2, 2])
        assert str(streams.add_stream_thread()).endswith("-StreamThread-3")
        share(streams, [1, 1, 2])
        app.count(2_000)
        app.each_update_came_once()
        assert str(streams.remove_stream_thread(30_000)).endswith("-StreamThread-3")
        share(streams, [2, 2])
        assert str(streams.remove_stream_thread(30_000)).endswith("-StreamThread-2")
        share(streams, [4])
        app.count(2_000)
        app.each_update_came_once()
        assert sum(restores.ended) == 0, f"records were restored: {restores.ended}"
    assert streams.add_stream_thread() is None
    assert streams.remove_stream_thread() is None


def test_pausing_reaches_all_workers_and_those_that_come_later(app: App) -> None:
    with app.running() as streams:
        share(streams, [2, 2])
        streams.pause()
        streams.add_stream_thread()
        share(streams, [1, 1, 2])
        app.count(100)
        time.sleep(1)
        assert not app.broker.consume(app.output)
        assert streams.resume()
        app.each_update_came_once()


def test_rule_7_a_worker_that_hangs_is_ended_and_replaced(app: App, caplog: pytest.LogCaptureFixture) -> None:
    with app.running("troubled_copy", settings={"max.poll.interval.ms": 10_000, "session.timeout.ms": 6_000}) as streams:
        before = processes(streams)
        app.broker.produce(app.source, [("a", "1"), ("a", "hang"), ("b", "2"), ("a", "3")])
        wait_until(lambda: len(app.broker.consume(app.output)) == 4, 60, "all records")
        assert len(set(before.values()) - set(processes(streams).values())) == 1, "one of the two was replaced"
    text = caplog.text
    assert "no progress for" in text and "worker_apps.py" in text, "the stack that hangs is in the log"


def test_a_worker_that_is_frozen_is_ended_and_replaced(app: App, caplog: pytest.LogCaptureFixture) -> None:
    with app.running(settings={"session.timeout.ms": 6_000}) as streams:
        share(streams, [2, 2])
        frozen = processes(streams)[1]
        os.kill(frozen, signal.SIGSTOP)
        app.count(400)
        app.each_update_came_once()
        share(streams, [2, 2])
        assert processes(streams)[1] != frozen
        app.count(400)
        app.each_update_came_once()
    assert "does not run: it has sent nothing" in caplog.text


def test_a_worker_that_is_frozen_before_its_first_message_is_terminated_and_replaced(app: App) -> None:
    with app.running(settings={"session.timeout.ms": 6_000}) as streams:
        share(streams, [2, 2])
        first = processes(streams)[1]
        os.kill(first, signal.SIGKILL)
        frozen = wait_until(lambda: (pid := processes(streams).get(1)) != first and pid, 20, "the next process")
        assert frozen
        os.kill(frozen, signal.SIGSTOP)
        wait_until(lambda: processes(streams).get(1) not in (None, frozen), 15, "the one after that")
        share(streams, [2, 2])
        app.count(400)
        app.each_update_came_once()


def test_a_worker_that_is_frozen_is_ended_while_a_listener_waits_for_it(app: App) -> None:
    """The state listener runs on the thread that starts workers, and each worker answers its queries."""
    streams = app.client(settings={"session.timeout.ms": 6_000})
    asked = threading.Event()

    def listen(new: State, old: State) -> None:
        if frozen:
            asked.set()
            streams.all_local_store_partition_lags()

    frozen: list[int] = []
    streams.set_state_listener(listen)
    with streams:
        streams.start()
        reaches(streams, State.RUNNING, 60)
        share(streams, [2, 2])
        pids = processes(streams)
        frozen.append(pids[1])
        os.kill(pids[1], signal.SIGSTOP)
        os.kill(pids[2], signal.SIGKILL)  # the state changes, and the listener is called
        assert asked.wait(60)
        wait_until(lambda: not psutil.pid_exists(pids[1]) or processes(streams).get(1) != pids[1], 13, "the end of the frozen one")
        frozen.clear()
        share(streams, [2, 2])
        app.count(400)
        app.each_update_came_once()


def test_a_worker_that_is_frozen_after_its_last_message_does_not_hold_up_the_close(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_worker, "END_SECONDS", 3.0)
    with app.running("frozen_at_its_end") as streams:
        share(streams, [2, 2])
        closed = streams.close(int(40_000 * PATIENCE))
        pid = int((app.folder / "stopped").read_text().rstrip("."))
        if alive := psutil.pid_exists(pid):
            os.kill(pid, signal.SIGKILL)  # or the end of the block would wait for it
        assert closed and not alive


def test_uncommitted_bytes_are_a_budget_that_workers_share(app: App) -> None:
    """Each of the two has less than the total to commit, and more than half."""
    keys = 400
    whole = keys * (UPDATE_BYTES + len("k100") + 16) * 3 // 4
    settings = {"commit.interval.ms": 60_000, "statestore.uncommitted.max.bytes": whole}
    with app.running(settings=settings) as streams:
        share(streams, [2, 2])
        app.count(keys, keys)
        for worker in tasks(streams).values():
            partitions = {int(task.partition("_")[2]) for task in worker}
            wait_until(lambda partitions=partitions: partitions & _committed(app).keys(), 20, "a commit long before its interval")  # type: ignore[misc]  # a default argument


def _committed(app: App) -> dict[int, int]:
    """Return the committed input offsets of partitions with processed records."""
    return {partition: offset for partition, offset in app.broker.committed_offsets(app.id, app.source).items() if offset > 0}


def test_the_handler_of_failures_is_asked_in_the_main_process(app: App) -> None:
    asked: list[BaseException] = []

    def decide(error: BaseException) -> StreamThreadExceptionResponse:
        asked.append(error)
        return StreamThreadExceptionResponse.REPLACE_THREAD

    streams = app.client("troubled_copy")
    streams.set_uncaught_exception_handler(decide)
    with streams:
        streams.start()
        reaches(streams, State.RUNNING, 60)
        app.broker.produce(app.source, [("a", "1"), ("a", "fail once"), ("a", "2")])
        wait_until(lambda: len(app.broker.consume(app.output)) == 3, 60, "all records")
    [error] = asked
    assert isinstance(error, StreamsError) and isinstance(error.__cause__, ValueError)


def test_the_handler_may_shut_down_the_whole_application(app: App, tmp_path: Path) -> None:
    """KIP-671: workers and other instances hear it, commit and end in ERROR; handlers are asked once. A later start is not concerned."""
    asked: list[BaseException] = []

    def decide(error: BaseException) -> StreamThreadExceptionResponse:
        asked.append(error)
        return StreamThreadExceptionResponse.SHUTDOWN_APPLICATION

    settings = {**SESSION, "client.id": "other", "commit.interval.ms": 60_000}
    both = (
        app.client("troubled_copy", settings={"commit.interval.ms": 60_000}),
        client(app.broker, troubled_copy(), app.id, tmp_path, **settings),
    )
    with both[0], both[1]:
        for streams in both:
            streams.set_uncaught_exception_handler(decide)
            streams.start()
        for streams in both:
            reaches(streams, State.RUNNING, 60)
        wait_until(lambda: sorted(sum(map(len, tasks(each).values())) for each in both) in ([1, 3], [2, 2]), 60, "tasks at both")
        app.broker.produce(app.source, [(f"k{number}", str(number)) for number in range(40)])
        processed = "process-total"
        wait_until(lambda: sum(value for each in both for name, value in each.metrics().items() if name.name == processed) >= 40, 60, "all")
        app.broker.produce(app.source, [("a", "fail once")])
        assert all(streams.wait_for(State.ERROR, 60_000) for streams in both)
    [error] = asked
    heard = [streams.failure for streams in both if isinstance(streams.failure, ApplicationShutdownError)]
    assert len(heard) == 1 and "answered SHUTDOWN_APPLICATION to" in str(heard[0]) and str(error) in str(heard[0])
    committed = sum(app.broker.committed_offsets(app.id, app.source).values())
    assert 0 < committed < 41, "the instance that heard it has committed"
    with app.running("troubled_copy"):
        wait_until(lambda: len(app.broker.consume(app.output)) == 41, 60, "all records")


class ExitsOnRestore:
    """Exits when the first store is restored."""

    def on_restore_start(self, partition: TopicPartition, store: str, start: int, end: int) -> None:
        raise SystemExit(0)

    def on_batch_restored(self, partition: TopicPartition, store: str, batch_end: int, records: int) -> None: ...

    def on_restore_end(self, partition: TopicPartition, store: str, total: int) -> None: ...

    def on_restore_suspended(self, partition: TopicPartition, store: str, total: int) -> None: ...


@pytest.mark.parametrize("answer", [StreamThreadExceptionResponse.SHUTDOWN_CLIENT, StreamThreadExceptionResponse.REPLACE_THREAD])
def test_a_listener_that_exits_is_a_failure_that_the_handler_decides(app: App, answer: StreamThreadExceptionResponse) -> None:
    """It runs in the main process, where no worker fails of it."""
    asked: list[BaseException] = []

    def decide(error: BaseException) -> StreamThreadExceptionResponse:
        asked.append(error)
        return answer

    with app.client("counts") as streams:
        streams.set_global_state_restore_listener(ExitsOnRestore())
        streams.set_uncaught_exception_handler(decide)
        streams.start()
        if answer is StreamThreadExceptionResponse.SHUTDOWN_CLIENT:
            wait_until(lambda: streams.state is State.ERROR, 60, "the end")
            assert streams.failure is asked[0]
        else:
            wait_until(lambda: len(asked) == 4, 60, "a call for each task")
            reaches(streams, State.RUNNING, 60)
    named = "the listener ExitsOnRestore.on_restore_start, called for store counts ("
    assert all(named in str(error) and str(error).endswith("SystemExit: 0") for error in asked)


@pytest.mark.parametrize("value", ["fail", "exit"])
def test_a_worker_that_fails_for_good_ends_the_client(app: App, caplog: pytest.LogCaptureFixture, value: str) -> None:
    with app.running("troubled_copy") as streams:
        children = list(processes(streams).values())
        app.broker.produce(app.source, [("a", value)])
        assert streams.wait_for(State.ERROR, 60_000)
        assert isinstance(streams.failure, StreamsError) and "cannot continue" in str(streams.failure)
        assert f"record {app.source}-" in str(streams.failure)
        wait_until(lambda: not any(psutil.pid_exists(pid) for pid in children), 5, "the end of the workers")
    assert "the stream thread of" in caplog.text and "trouble" in caplog.text, "the worker's log is this process's, its trace too"


def test_each_worker_has_the_global_tables_and_a_query_reads_one(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    names = app.broker.create_topic("names", config={"cleanup.policy": "compact"})
    monkeypatch.setenv("TEST_NAMES", names)
    app.broker.produce(names, [(f"k{number}", f"name {number}") for number in range(20)])
    with app.running("with_names") as streams:
        share(streams, [2, 2])
        app.count(100)
        wait_until(lambda: len(app.broker.consume(app.output)) == 100, what="all joined")
        assert len(list(streams.store("names").all())) == 20, "not once per worker"
    root = app.folder / app.id
    assert (root / "global").is_dir() and (root / "global-2").is_dir()
    with app.running("with_names", workers=1):
        assert not (root / "global-2").exists(), "the copy of a worker that is no more is removed"


def test_a_ready_made_topology_cannot_have_workers(app: App) -> None:
    with pytest.raises(StreamsConfigError, match=r"num\.stream\.threads above 1: each worker is a process of its own"):
        client(app.broker, counts(), app.id, app.folder, **{"num.stream.threads": 2})
    with client(app.broker, counts(), app.id, app.folder) as streams, pytest.raises(StreamsConfigError, match="name of a function"):
        streams.add_stream_thread()


class Instance:
    """An instance as a process, as leader of a process group, as under a terminal."""

    def __init__(self, app: App) -> None:
        self.log = app.folder / "instance.log"
        config = {
            "bootstrap.servers": app.broker.bootstrap_servers,
            "state.dir": str(app.folder),
            "num.stream.threads": 2,
            **SESSION,
        }
        path = app.folder / "instance.json"
        reported = {"application": app.id, "instance": "one", "factory": f"{APPS}:counts", "config": config, "log_path": str(self.log)}
        path.write_text(json.dumps(reported))
        command = [sys.executable, "-m", "penstock.runtime.instance", "--config", str(path)]
        self.process = subprocess.Popen(command, cwd=ROOT, start_new_session=True)

    @property
    def workers(self) -> list[psutil.Process]:
        """The existing workers, of this and of earlier main processes."""
        return [
            each
            for each in psutil.process_iter()
            if str(self.log.parent) in _environment(each) and "penstock.runtime.worker.supervisor.process" in each.cmdline()
        ]

    def runs(self) -> None:
        wait_until(lambda: "to RUNNING" in self.text, 60, "RUNNING")

    @property
    def text(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def lines(self) -> list[dict[str, str]]:
        return [json.loads(line) for line in self.text.splitlines()]

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for worker in self.workers:
            worker.kill()


def _environment(process: psutil.Process) -> str:
    try:
        return process.environ().get("TEST_FOLDER", "")
    except psutil.Error:
        return ""


@pytest.fixture
def instance(app: App) -> Iterator[Callable[[], Instance]]:
    made: list[Instance] = []

    def make() -> Instance:
        made.append(Instance(app))
        return made[-1]

    yield make
    for each in made:
        each.end()


def test_ctrl_c_closes_an_instance_as_one_program(app: App, instance: Callable[[], Instance]) -> None:
    one = instance()
    one.runs()
    app.count(100)
    app.each_update_came_once()
    workers = one.workers
    assert len(workers) == 2
    os.killpg(one.process.pid, signal.SIGINT)  # what a terminal sends
    for worker in workers:
        worker.send_signal(signal.SIGTERM)  # what a service manager may send: the main process alone decides
    assert one.process.wait(30) == 0
    assert "closed cleanly" in one.text.splitlines()[-1]
    assert not any(worker.is_running() for worker in workers)
    assert "killed" not in one.text and "died" not in one.text
    reported = {line["worker"] for line in one.lines() if "worker" in line}
    assert reported == {"one-StreamThread-1", "one-StreamThread-2"}, "the log is one, and says of whom"


def test_workers_do_not_outlive_a_main_process_that_is_killed(app: App, instance: Callable[[], Instance]) -> None:
    one = instance()
    one.runs()
    app.count(400)
    app.each_update_came_once()
    frozen, other = one.workers
    frozen.send_signal(signal.SIGSTOP)
    one.process.kill()
    again = instance()
    killed = time.monotonic()
    wait_until(lambda: not frozen.is_running() and not other.is_running(), 12, "the end of the workers, also of the frozen one")
    assert time.monotonic() - killed < 8
    app.count(400)
    app.each_update_came_once(60)
    again.process.terminate()
    assert again.process.wait(30) == 0


def test_a_warning_about_the_topology_is_logged_once_and_not_by_each_worker(app: App, caplog: pytest.LogCaptureFixture) -> None:
    with app.running("short_windows"):
        warnings = [record.getMessage() for record in caplog.records if "the window size of 5 is 5 ms" in record.getMessage()]
    assert len(warnings) == 1 and "worker_apps.py:" in warnings[0]
