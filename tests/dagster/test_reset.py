"""`penstock reset` on a real broker and real instances: the application then counts like a new one, whatever its state was and wherever the
reset was killed; running instances and other applications are not affected."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka import TopicPartition as ClientPartition
from sqlalchemy import select
from typer.testing import CliRunner

from penstock.assets.checks import look_at
from penstock.orchestration.cli import app
from penstock.orchestration.dagster.jobs import run_book_job
from penstock.orchestration.dagster.resources import PenstockResource
from penstock.orchestration.database import ControlPlane
from penstock.orchestration.database.audit import now
from penstock.orchestration.database.models import AuditEntry
from penstock.orchestration.declarations.applications import Applications
from penstock.orchestration.declarations.project_paths import ProjectPaths, default_database_url
from penstock.orchestration.health.checks import LIVENESS
from penstock.orchestration.instances.launcher import LaunchError
from penstock.orchestration.instances.operations import Operations
from penstock.orchestration.projection.feed import SilentBrokers
from penstock.orchestration.resets.brokers import Brokers
from penstock.orchestration.run_books import ResetApplication
from penstock.orchestration.run_books.inputs import ResetApplicationInputs
from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.coordination.past import read_past
from penstock.runtime.coordination.records import DESIRED, Desired, Reset
from penstock.runtime.coordination.resets import drop_state_of_before, known_reset, last_reset
from penstock.runtime.kafka.topic_admin import TopicAdmin
from penstock.runtime.model.errors import ResetError, StreamsError
from penstock.runtime.model.ids import TopicPartition
from penstock.runtime.stores.directory import StateDirectory
from tests.dagster.telling import Project
from tests.support import ROOT, Kafka, unique, wait_until

TOML = """
[applications.{application}]
factory = "tests.dagster.topology:build_wide"
instances = ["{application}-1", "{application}-2"]

[applications.{application}.config]
"bootstrap.servers" = "{bootstrap_servers}"
"session.timeout.ms" = 6000
"""
KEYS = [f"k{number}" for number in range(8)]


@pytest.fixture
def wide(tmp_path: Path, broker: Kafka, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    """Return an application with a logged store, one without a changelog after a repartition topic, and a global table; its topics
    exist."""
    application = unique("app")
    path = tmp_path / "streams.toml"
    path.write_text(TOML.format(application=application, bootstrap_servers=broker.bootstrap_servers))
    monkeypatch.setenv("PENSTOCK_STREAMS", str(path))
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PENSTOCK_DATABASE_URL", raising=False)
    monkeypatch.setenv("PENSTOCK_TEST_APPLICATION", application)
    paths = ProjectPaths(tmp_path, tmp_path / "home", path, default_database_url(tmp_path / "home"))
    project = Project(Operations(paths, Applications.read(path), ControlPlane(paths.database_url)), broker)
    for end, partitions in (("in", 2), ("out", 2), ("moved", 2), ("names", 1)):
        broker.create_topic(f"{application}-{end}", partitions, exact=True)
    broker.produce(f"{application}-names", [(key, key.upper()) for key in KEYS])
    an_hour_ago = round(time.time() * 1000) - 3_600_000  # before any time that a test resets to, however fast it comes to it
    broker.produce(f"{application}-in", [(key, "{}") for key in KEYS], timestamps=[an_hour_ago] * len(KEYS))
    yield project
    for name in project.operations.launcher.known():
        project.operations.launcher.stop(name, 5.0, kill=True)
    project.control_plane.close()


def penstock(*arguments: str, status: int = 0, answer: str | None = None) -> str:
    """Run a command; return its output."""
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"}, input=answer)
    assert result.exit_code == status, (result.output, result.exception)
    return result.output


Ends = dict[tuple[str, int], int]
"""Next offsets, by the output topic's last word and the partition."""


def ends(project: Project) -> Ends:
    return {
        (end, partition): offset
        for end in ("out", "moved")
        for partition, offset in project.broker.end_offsets(f"{project.application.id}-{end}").items()
    }


def counts(project: Project, end: str, behind: Ends) -> dict[str, int]:
    """Return the newest count of each key on an output topic, in the records after these offsets."""
    return {
        (record.key or b"").decode(): int.from_bytes(record.value or b"", "big")
        for record in project.broker.consume(f"{project.application.id}-{end}")
        if record.offset >= behind.get((end, record.partition), 0)
    }


def run_all(project: Project, times: int = 1, behind: Ends | None = None) -> None:
    """Run both instances until all input was counted this many times from an empty state, and stop them."""
    once = dict.fromkeys(KEYS, times), dict.fromkeys(map(str.upper, KEYS), times)
    for name in project.application.instances:
        project.operations.start(name, actor="ann")
    wait_until(lambda: (counts(project, "out", behind or {}), counts(project, "moved", behind or {})) == once, 40, f"the counts {times}")
    stop_all(project)


def stop_all(project: Project) -> None:
    for name in project.application.instances:
        project.operations.stop(name, actor="ann")


def folders(project: Project) -> list[Path]:
    return [project.operations.paths.state_dir(name) / project.application.id for name in project.application.instances]


def own(project: Project) -> set[str]:
    return {
        name for name in project.broker.topics() if name.startswith(project.application.id) and name.endswith(("changelog", "repartition"))
    }


def reset_named(project: Project) -> str:
    """Return what the sentence on the application in Dagster says first if it is about a reset; else nothing. The check of its instances
    says the same."""
    results, found, _ = look_at(project.operations, project.application, now(), logging.getLogger(__name__), SilentBrokers())
    (alive,) = (result for result in results if result.name == LIVENESS)
    named = found.sentence.partition("; ")[0] if "reset" in found.sentence else ""  # other checks may fail, too
    assert (alive.passed, named) == (True, "") or (alive.passed, named) == (False, alive.summary)
    return named


def test_a_reset_application_counts_as_a_fresh_one(wide: Project) -> None:
    """One instance's state is moved away and restored later, as if from another machine: it is recognised and dropped."""
    id_, neighbour = wide.application.id, f"{wide.application.id}-b"
    for name in (f"{neighbour}-coordination", f"{neighbour}-counts-changelog", f"{id_}-forgotten-changelog"):
        wide.broker.create_topic(name, 1, exact=True)
    assert "nothing is known" not in penstock("reset", id_, "--dry-run")
    run_all(wide)
    away = folders(wide)[0]
    shutil.copytree(away, away.with_name("away"))
    internal = own(wide) - {f"{neighbour}-counts-changelog", f"{id_}-forgotten-changelog"}
    assert internal == {f"{id_}-counts-changelog", f"{id_}-by-name-repartition"}
    shown = penstock("reset", id_, "--dry-run")
    assert f"repartition topics deleted: {id_}-by-name-repartition, {id_}-counts-changelog" in shown
    assert f"left alone, since no topology of {id_} that is known has them: {id_}-forgotten-changelog" in shown
    assert f"{neighbour}-counts" not in shown
    assert "nothing was done" in shown
    assert own(wide) >= internal
    assert "nothing was done" in penstock("reset", id_, status=1, answer="n\n")
    assert "there was no answer; in a script add --yes" in penstock("reset", id_, status=1)
    done = penstock("reset", id_, answer="y\n")
    assert f"application {id_} begins without state, at earliest" in done
    assert done.count("repartition topics deleted") == 1 and "[" not in done.replace("[y/N]", "")
    assert own(wide) == {f"{neighbour}-counts-changelog", f"{id_}-forgotten-changelog"}
    assert all(StateDirectory(folder.parent, id_).tasks_on_disk() == [] for folder in folders(wide))
    assert wide.broker.committed_offsets(id_, f"{id_}-in") == {0: 0, 1: 0}
    assert wide.broker.consume(f"{id_}-events") == []
    assert "it was never started here" in penstock("describe", id_)
    with wide.control_plane.reading() as session:
        trail = session.scalars(select(AuditEntry.action)).all()
    assert {"step topics done", "step end done", "run-book done"} <= set(trail)
    reset = known_reset(StateDirectory(away.parent, id_))
    shutil.rmtree(away)
    shutil.move(away.with_name("away"), away)
    assert known_reset(StateDirectory(away.parent, id_)) is None
    assert StateDirectory(away.parent, id_).tasks_on_disk()
    run_all(wide, behind=ends(wide))
    assert known_reset(StateDirectory(away.parent, id_)) == reset
    penstock("reset", id_, "--yes", "--to", "latest", "--delete-outputs", "yes", "--internal-topics", f"{id_}-forgotten-changelog")
    assert [wide.broker.consume(f"{id_}-{end}") for end in ("out", "moved")] == [[], []]
    assert own(wide) == {f"{neighbour}-counts-changelog"}
    wide.broker.produce(f"{id_}-in", [(key, "{}") for key in KEYS])
    run_all(wide)


def test_a_reset_that_is_killed_at_any_step_keeps_instances_out_and_is_brought_to_its_end(wide: Project) -> None:
    """Killed at its first step, it has changed nothing; from the second on no instance starts, and the last attempt knows what to
    delete."""
    id_, name = wide.application.id, wide.application.instances[0]
    run_all(wide)
    internal = own(wide)
    for step in ResetApplication.STEPS:
        if step.name == "outputs":
            continue  # these are kept here
        killed = subprocess.run([sys.executable, "-m", "tests.dagster.killed", ResetApplication.NAME, step.name], cwd=ROOT, check=False)
        assert killed.returncode == -signal.SIGKILL, step.name
        assert "topics" not in step.name or not own(wide) & internal
        said = f"a reset of application {id_} was begun by a test at .* and has not ended: end it with penstock reset {id_}"
        assert re.fullmatch("" if step.name in ("check", "end") else said, reset_named(wide)), step.name
        if step.name in ("begin", "disks"):
            with pytest.raises(LaunchError, match=f"has not ended: end it with penstock reset {id_}, then start again"):
                wide.operations.start(name, actor="ann")
            stop_all(wide)
    penstock("reset", id_, "--yes")
    assert reset_named(wide) == ""
    run_all(wide, behind=ends(wide))


def test_a_duration_back_from_now_counts_from_the_first_attempt_of_a_reset_that_was_killed(wide: Project) -> None:
    id_, source = wide.application.id, f"{wide.application.id}-in"
    killing = [sys.executable, "-m", "tests.dagster.killed", ResetApplication.NAME]
    assert subprocess.run([*killing, "offsets", "PT1S"], cwd=ROOT, check=False).returncode == -signal.SIGKILL
    config = StreamsConfig({**wide.application.config, "application.id": id_})
    first = last_reset(config, TopicAdmin(config))
    assert first is not None
    ends = wide.broker.end_offsets(source)
    wide.broker.produce(source, [(KEYS[0], "{}")], partition=0, timestamps=[first.to_ms + 1])
    assert subprocess.run([*killing, "begin", "PT1S"], cwd=ROOT, check=False).returncode == -signal.SIGKILL
    shown = datetime.fromtimestamp(first.to_ms / 1000, UTC).isoformat(timespec="milliseconds")
    assert f"input offsets set to {shown}" in penstock("reset", id_, "--to", "PT1S", "--yes")
    assert wide.broker.committed_offsets(id_, source) == ends, "in front of the record, which came within the duration"


def test_topics_that_a_killed_reset_was_told_to_delete_may_be_gone_when_it_is_run_again(wide: Project) -> None:
    """The error of an instance names the command with all options of the reset, `--internal-topics` too."""
    id_ = wide.application.id
    forgotten = f"{id_}-forgotten-changelog"
    wide.broker.create_topic(forgotten, exact=True)
    killing = [sys.executable, "-m", "tests.dagster.killed", ResetApplication.NAME, "topics", "earliest", forgotten]
    assert subprocess.run(killing, cwd=ROOT, check=False).returncode == -signal.SIGKILL
    assert forgotten not in wide.broker.topics()
    penstock("reset", id_, "--yes", "--internal-topics", forgotten)
    run_all(wide)
    assert "no topic of that name looks like" in penstock("reset", id_, "--yes", "--internal-topics", forgotten, status=1)


def test_a_topic_that_the_application_writes_and_reads_begins_at_its_end(wide: Project) -> None:
    """Its records are written again: read from their start, each would count twice."""
    id_, path = wide.application.id, wide.operations.paths.streams_toml
    path.write_text(path.read_text().replace("build_wide", "build_chained"))
    wide.operations = Operations(wide.operations.paths, Applications.read(path), wide.control_plane)
    behind, keys = Ends(), list(KEYS)
    for options in ([], ["--delete-outputs", "yes"], ["--to", "P1D"], ["--to", f"{id_}-in:0=0,{id_}-in:1=0"]):
        wide.operations.start(wide.application.instances[0], actor="ann")
        last = [f"{len(keys)}-{number}" for number in range(8)]  # of both partitions, behind the copies that are there
        wide.broker.produce(f"{id_}-in", [(key, "{}") for key in last])
        keys += last
        wait_until(lambda last=last, behind=behind: counts(wide, "moved", behind).keys() >= set(last), 40, "the counts")  # type: ignore[misc]
        stop_all(wide)
        assert counts(wide, "moved", behind) == dict.fromkeys(keys, 1), "as if it ran for the first time"
        shown = penstock("reset", id_, "--yes", *options)
        assert f"written by {id_} itself, and therefore read from their end: {id_}-out" in shown
        behind = ends(wide)
    given = ",".join(f"{id_}-{end}:{partition}=0" for end in ("in", "out") for partition in (0, 1))
    assert "read from their end" not in penstock("reset", id_, "--yes", "--to", given)
    assert wide.broker.committed_offsets(id_, f"{id_}-out") == {0: 0, 1: 0}


def test_a_reset_that_was_killed_while_it_emptied_a_compacted_output_leaves_it_compacted(wide: Project) -> None:
    """Brokers delete records only of topics with `delete` in their policy. Left there, it would delete records older than the retention;
    also if the reset is ended without emptying anything. The error names the original options."""
    id_, out = wide.application.id, f"{wide.application.id}-out"
    config = StreamsConfig({**wide.application.config, "application.id": id_})
    topics = TopicAdmin(config)
    brokers = Brokers(config, topics)
    brokers.mark(Reset(id="killed", at_ms=0, by="ann", policies={out: "compact"}, options="--to latest --delete-outputs yes"))
    brokers.close()
    assert brokers.policies([out]) == {out: "delete"}
    with pytest.raises(ResetError, match=f"end it with penstock reset {id_} --to latest --delete-outputs yes, then start again"):
        drop_state_of_before(config, topics, StateDirectory(config.state_dir, id_))
    assert f"(it was penstock reset {id_} --to latest --delete-outputs yes)" in penstock("reset", id_, "--yes")
    assert brokers.policies([out]) == {out: "compact"}


def test_a_reset_is_refused_while_an_instance_lives_and_the_job_does_what_the_command_does(wide: Project) -> None:
    """Running, suspended for longer than its session timeout, and killed a moment ago; then as a job."""
    id_, name = wide.application.id, wide.application.instances[0]
    started = wide.operations.start(name, actor="ann")
    internal = own(wide)
    refused = penstock("reset", id_, "--yes", status=1)
    assert f"group {id_}-members has members ({name})" in refused
    assert f"in use by process {started.process.pid}" in refused
    os.kill(started.process.pid, signal.SIGSTOP)
    config = StreamsConfig({"application.id": id_, "bootstrap.servers": wide.broker.bootstrap_servers})
    admin = TopicAdmin(config)
    wait_until(lambda: not admin.members(f"{id_}-members"), 30, "the end of its session")
    assert f"in use by process {started.process.pid}" in penstock("reset", id_, "--yes", status=1)
    os.kill(started.process.pid, signal.SIGKILL)
    wait_until(lambda: not started.process.alive, what="its death")
    assert own(wide) == internal
    assert last_reset(config, admin) is None, "a reset that is refused leaves no mark, on which what lives would end"
    with dg.DagsterInstance.ephemeral() as dagster:
        run_config = {"ops": {"reset": {"config": {"application": id_, "to": "PT0S", "reason": "a test"}}}}
        penstock_ = {"penstock": PenstockResource()}
        assert run_book_job(ResetApplicationInputs).execute_in_process(run_config=run_config, resources=penstock_, instance=dagster).success
    behind = ends(wide)
    wide.broker.produce(f"{id_}-in", [(key, "{}") for key in KEYS])
    wide.operations.start(name, actor="ann")
    wait_until(lambda: counts(wide, "out", behind) == dict.fromkeys(KEYS, 1), 40, "the counts of what came since")


@pytest.mark.parametrize("before", [None, Reset(id="one", at_ms=1, by="ann", ended=True)])
def test_an_instance_that_starts_between_the_check_and_the_mark_has_the_mark_taken_back(
    wide: Project, monkeypatch: pytest.MonkeyPatch, before: Reset | None
) -> None:
    """It holds the lock of its folder, and did not exist at the first step's check. A refusal changes nothing."""
    id_, name = wide.application.id, wide.application.instances[0]
    config = StreamsConfig({**wide.application.config, "application.id": id_})
    topics = TopicAdmin(config)
    directory = StateDirectory(wide.operations.paths.state_dir(name), id_)
    directory.path.mkdir(parents=True)
    if before is not None:
        brokers = Brokers(config, topics)
        brokers.mark(before)
        brokers.close()
    mark, marks = Brokers.mark, list[Reset]()

    def start_first(self: Brokers, reset: Reset) -> None:
        directory.lock()
        mark(self, reset)
        marks.append(reset)

    monkeypatch.setattr(Brokers, "mark", start_first)
    try:
        reported = penstock("reset", id_, "--yes", status=1)
    finally:
        directory.unlock()
    assert marks and f"in use by process {os.getpid()}" in reported and "Nothing was changed" in reported
    assert last_reset(config, topics) == before
    assert not any(isinstance(record, Desired) for record in read_past(config, DESIRED)), "what should run is as it was"
    monkeypatch.setattr(Brokers, "mark", mark)
    penstock("reset", id_, "--yes")
    assert (last := last_reset(config, topics)) is not None and last.ended and last != before


def test_a_reset_is_refused_while_an_instance_is_closed_for_its_restart(wide: Project) -> None:
    """A deploy or restart of a single instance leaves no process for a moment, and then starts the instance with the state of before."""
    id_, (name, _) = wide.application.id, wide.application.instances
    wide.operations.start(name, actor="ann")
    wide.operations.close_for_restart(name, actor="ann")
    internal = own(wide)
    assert f"{name} is being started, restarted or deployed" in penstock("reset", id_, "--yes", status=1)
    assert own(wide) == internal
    wide.operations.start(name, actor="ann")
    stop_all(wide)
    penstock("reset", id_, "--yes")
    run_all(wide, behind=ends(wide))


def test_after_a_start_that_failed_or_did_nothing_an_application_that_is_stopped_can_be_reset(
    wide: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first instance of two is refused, as after a change that does not fit: the second one is not about to be started."""
    id_ = wide.application.id
    with monkeypatch.context() as broken:
        broken.setenv("PENSTOCK_TEST_APPLICATION", "another")  # the first one's source topic does not exist
        assert "does not exist" in penstock("start", status=1)
    penstock("reset", id_, "--yes")
    for _ in range(2):
        wide.operations.start(wide.application.instances[0], actor="ann")
    wide.operations.launcher.stop(wide.application.instances[0], 30.0)
    penstock("reset", id_, "--yes")
    wide.operations.mark_starting(wide.application.instances[1])
    penstock("stop", id_)
    penstock("reset", id_, "--yes")


def test_a_reset_right_after_a_process_died_in_an_open_transaction_ends_that(wide: Project) -> None:
    """The transaction contains an offset of the group, which has no stable offset to read until the abort."""
    id_, topic = wide.application.id, f"{wide.application.id}-in"
    dead = Producer(
        {"bootstrap.servers": wide.broker.bootstrap_servers, "transactional.id": f"{id_}-leader", "transaction.timeout.ms": 600_000}
    )
    dead.init_transactions(30)
    group = Consumer({"bootstrap.servers": wide.broker.bootstrap_servers, "group.id": id_})
    for offset in (1, 2):
        dead.begin_transaction()
        dead.send_offsets_to_transaction([ClientPartition(topic, 0, offset)], group.consumer_group_metadata(), 30)
        if offset == 1:
            dead.commit_transaction(30)
    group.close()
    topics = TopicAdmin(StreamsConfig({**wide.application.config, "application.id": id_}))
    with pytest.raises(StreamsError, match="cannot be read"):
        topics.committed_offsets(id_)
    assert "nothing was done" in penstock("reset", id_, "--dry-run")
    with pytest.raises(StreamsError, match="cannot be read"):
        topics.committed_offsets(id_)
    penstock("reset", id_, "--yes")
    assert topics.committed_offsets(id_) == {TopicPartition(topic, number): 0 for number in (0, 1)}
    with pytest.raises(KafkaException):
        dead.commit_transaction(30)


def test_without_a_broker_or_an_application_a_reset_says_so(wide: Project) -> None:
    servers = wide.broker.bootstrap_servers
    nobody = unique("nobody")
    assert f"nothing is known of an application {nobody}" in penstock("reset", nobody, "-b", servers, "--yes", status=1)
    assert f"no application '{nobody}' is declared" in penstock("reset", nobody, "--yes", status=1)
    assert "no broker answers at 127.0.0.1:1 " in penstock("reset", nobody, "-b", "127.0.0.1:1", "--yes", status=1)
    reported = penstock("reset", wide.application.id, "--to", f"{wide.application.id}-in:0=99", status=1)
    assert "in-0 holds offsets 0 to 4, not 99" in reported
    assert "in-1 has no offset, and the application reads it" in reported
    assert "expected earliest, latest, a time" in penstock("reset", nobody, "--to", "yesterday", status=2).replace("\n", " ").replace(
        "│ ", ""
    )


def test_a_snapshot_taken_at_rest_seeds_the_application_after_a_reset(wide: Project, tmp_path: Path) -> None:
    """The repartition topic is deleted by then: the snapshot records that it held no records in flight."""
    id_, (first, _) = wide.application.id, wide.application.instances
    done = [(dict.fromkeys(KEYS, times), dict.fromkeys(map(str.upper, KEYS), times)) for times in range(4)]

    def settled() -> bool:
        """Take a snapshot."""
        reported = "records were in transit between tasks" in penstock("snapshot", "take", id_)
        assert json.loads(penstock("snapshot", "show", id_, "--json"))["settled"] is not reported
        return not reported

    wide.operations.start(first, actor="ann")
    wait_until(lambda: (counts(wide, "out", {}), counts(wide, "moved", {})) == done[1], 40, "the counts")
    for task in ("2_0", "2_1"):  # after the repartition topic
        penstock("pause", id_, task)
    wide.broker.produce(f"{id_}-in", [(key, "{}") for key in KEYS])
    wait_until(lambda: counts(wide, "out", {}) == done[2][0], 40, "records on the repartition topic that no instance reads")
    assert not settled()
    for task in ("2_0", "2_1"):  # after the repartition topic
        penstock("resume", id_, task)
    wait_until(lambda: (counts(wide, "out", {}), counts(wide, "moved", {})) == done[2], 40, "the counts")
    wait_until(settled, 40, "a snapshot of which it is known that nothing was in transit")
    penstock("snapshot", "export", id_, "--to", str(tmp_path / "kept"))
    wide.operations.stop(first, actor="ann")
    penstock("reset", id_, "--yes")
    assert f"{id_}-by-name-repartition" not in wide.broker.topics()
    behind = ends(wide)
    wide.broker.produce(f"{id_}-in", [(key, "{}") for key in KEYS])
    penstock("start", first, "--seed", str(tmp_path / "kept"))
    wait_until(lambda: (counts(wide, "out", behind), counts(wide, "moved", behind)) == done[3], 40, "the counts that continue")
