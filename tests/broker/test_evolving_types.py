"""The type of a store's values changes while the application is stopped: either every instance accepts it, or every instance refuses it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.runtime.coordination.topics import coordination_topic
from tests.support import Kafka, wait_until
from tests.support.instances import Application

INSTANCES = ("one", "two")


@pytest.fixture
def application(broker: Kafka, topic: Callable[..., str], application_id: str, tmp_path: Path) -> Iterator[Application]:
    app = Application(broker, application_id, topic("in", 2), topic("out", 1), tmp_path, {"commit.interval.ms": 100})
    yield app
    app.kill_all()


def run(app: Application, version: str, records: int) -> None:
    """Run both instances until this many records in total have been counted, each once and in order; stop them."""
    app.factory = f"tests.broker.evolving_apps:{version}"
    for name in INSTANCES:
        app.start(name)
    app.becomes(dict.fromkeys(INSTANCES, 1))
    app.produce(40)
    app.each_update_came_once(records)
    assert [app.stop(name) for name in INSTANCES] == [0, 0]


def refused(app: Application, version: str) -> list[str]:
    """Return the message with which each instance refuses this version; check that it opens, creates and empties nothing."""
    before = files(app)
    ends = app.broker.end_offsets(f"{app.id}-totals-changelog")
    app.factory = f"tests.broker.evolving_apps:{version}"
    logged = {name: len(app.log(name)) for name in INSTANCES}
    processes = [app.start(name) for name in INSTANCES]
    assert [process.wait(60) for process in processes] == [2] * len(processes)
    app.processes.clear()
    assert files(app) == before
    assert app.broker.end_offsets(f"{app.id}-totals-changelog") == ends
    said = [app.log(name)[logged[name] :] for name in INSTANCES]
    assert not any("emptied" in text for text in said)
    return said


def files(app: Application) -> dict[str, int]:
    """Return the stores' files with their modification times."""
    return {str(path): path.stat().st_mtime_ns for path in sorted(app.folder.rglob("rocksdb/**/*")) if path.is_file()}


def test_a_changed_serde_is_refused_by_every_instance_and_a_type_evolves_whose_every_version_the_state_remembers(
    application: Application,
) -> None:
    """A version that is refused opens nothing, so the next that is not refused continues from the same state."""
    run(application, "first", 40)
    for text in refused(application, "doubles"):
        assert "store totals: its values were json(First) and are DOUBLE now" in text
        assert f"penstock reset {application.id}" in text
    for text in refused(application, "third"):
        assert "store totals: its values: field last is new and has no default: values that were written without it cannot be read" in text
    run(application, "second", 80)
    for text in refused(application, "third"):  # it could read the output of version 2, but version 1 wrote too
        assert "field last is new and has no default" in text
    for text in refused(application, "first"):
        assert "field n is float and is read as int" in text
    run(application, "second", 120)


def test_a_store_that_was_left_out_with_its_sub_topology_is_held_against_its_bytes_when_it_comes_back(application: Application) -> None:
    """On an instance without a copy: 8 bytes of an integer would be read as a floating-point number, without an error."""

    def stopped(version: str, tasks: int, records: int) -> None:
        application.factory = f"tests.broker.evolving_apps:{version}"
        application.start("one")
        application.becomes({"one": tasks})
        application.each_update_came_once(records)
        assert application.stop("one") == 0

    application.produce(40)
    stopped("watched", 3, 40)
    stopped("only_watching", 1, 40)
    shutil.rmtree(application.folder / "one" / application.id)
    application.factory = "tests.broker.evolving_apps:watched_doubles"
    assert application.start("one").wait(60) == 2
    assert "store totals: its values were LONG and are DOUBLE now" in application.log("one")
    application.produce(40)
    stopped("watched", 3, 80)


def test_state_of_which_the_record_is_lost_is_given_to_no_program_but_the_one_that_an_operator_vouches_for(
    application: Application,
) -> None:
    """With and without a copy of the state on the instance."""
    run(application, "first", 40)
    shutil.rmtree(application.folder / "two" / application.id)
    coordination = coordination_topic(application.id)
    application.broker.delete_topic(coordination)
    wait_until(lambda: coordination not in application.broker.topics(), 30, "the end of the topic")
    texts = refused(application, "first")
    for text in texts:
        assert f"its state is in {application.id}-totals-changelog, but {coordination} says nothing about it" in text
    named = re.search(r"unrecorded[.]state[.]accepted = (\w+)", texts[0])
    assert named
    application.settings["unrecorded.state.accepted"] = named[1]
    for text in refused(application, "doubles"):
        assert f"{coordination} says nothing about it" in text
    assert coordination not in application.broker.topics(), "a program that is refused makes nothing"
    run(application, "first", 80)
    for text in refused(application, "doubles"):
        assert "store totals: its values were json(First) and are DOUBLE now" in text


def lose_the_record(application: Application) -> None:
    coordination = coordination_topic(application.id)
    application.broker.delete_topic(coordination)
    wait_until(lambda: coordination not in application.broker.topics(), 30, "the end of the topic")


def vouched(application: Application, version: str) -> None:
    """Start a version whose record is lost; take over the setting that the refusals name."""
    named = {str(re.findall(r"unrecorded[.]state[.]accepted = (\w+)", text)[-1]) for text in refused(application, version)}
    [application.settings["unrecorded.state.accepted"]] = named


def test_the_setting_that_vouched_for_a_program_does_not_vouch_for_it_after_another_has_run(application: Application) -> None:
    """The first version must not begin again with what the second wrote, although its setting is still there."""
    run(application, "first", 40)
    lose_the_record(application)
    vouched(application, "first")
    run(application, "first", 80)
    run(application, "second", 120)
    lose_the_record(application)
    for text in refused(application, "first"):
        assert "says nothing about it" in text
    vouched(application, "second")
    run(application, "second", 160)


def test_records_on_their_way_whose_record_of_formats_is_lost_are_given_to_no_program_without_a_word(application: Application) -> None:
    """An application without a changelog: its repartition topic may hold records that another program reads wrongly."""
    application.factory = "tests.broker.evolving_apps:on_their_way"
    application.start("one")
    application.becomes({"one": 4})
    assert application.stop("one") == 0
    lose_the_record(application)
    application.start("one")
    application.becomes({"one": 4})
    assert application.stop("one") == 0
    application.broker.produce(f"{application.id}-again-repartition", [("k", "v")])
    lose_the_record(application)
    assert application.start("one").wait(60) == 2
    assert f"its state is in {application.id}-again-repartition, but" in application.log("one")


def test_state_that_cannot_be_read_ends_the_instance_with_store_and_key_and_no_record_is_skipped(application: Application) -> None:
    run(application, "first", 40)
    application.broker.produce(f"{application.id}-totals-changelog", [("k0", '{"n":"many"}')])
    shutil.rmtree(application.folder / "one" / application.id)
    skipping = "penstock.LogAndContinueProcessingExceptionHandler"
    process = application.start("one", **{"processing.exception.handler": skipping, "restart.grace.ms": 0})
    application.becomes({"one": 2})
    application.broker.produce(application.source, [("k0", "v")])
    assert process.wait(60) != 0
    assert "store totals: the value of key 'k0' cannot be read by its serde json(First)" in application.log("one")
