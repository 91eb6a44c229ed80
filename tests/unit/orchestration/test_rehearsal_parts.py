"""Durations, limits, comparison and texts of rehearsals."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock import Materialized, StreamsBuilder, StreamsConfig, TimeWindows, serdes
from penstock.orchestration.declarations.applications import Applications
from penstock.orchestration.declarations.rehearsal_limits import allowances, span_ms
from penstock.orchestration.declarations.spark_settings import SparkSettings
from penstock.orchestration.declarations.toml_table import WrongDeclarationError
from penstock.orchestration.rehearsals import messages, processes
from penstock.orchestration.rehearsals.comparison import Difference, compare_outputs, merged
from penstock.orchestration.rehearsals.engines import SPARK_RECORDS, Engine, chosen_engine
from penstock.orchestration.rehearsals.outputs import OutputWriter
from penstock.orchestration.rehearsals.processes import Build, BuildProcess, RehearsalError
from penstock.orchestration.rehearsals.rehearsal import NEW, RUNNING, Comparison, _sweep
from penstock.orchestration.rehearsals.spark_builds import SHARED, spans_of
from penstock.orchestration.rehearsals.texts import sink_texts, store_texts
from penstock.orchestration.rehearsals.verdict import failures, unknown_names
from penstock.runtime.model.ids import NextOffset, TopicPartition
from penstock.runtime.serdes.keys import window_store_key


@pytest.mark.parametrize(
    ("text", "expected"),
    [("6h", 21_600_000), ("30min", 1_800_000), ("90s", 90_000), ("1.5d", 129_600_000), ("PT6H", 21_600_000), ("5m", 300_000)],
)
def test_durations(text: str, expected: int) -> None:
    assert span_ms(text) == expected


def test_a_process_that_is_killed_while_it_answers_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a line is no answer."""
    half = 'import os, signal, sys\nos.write(int(sys.argv[2]), b\'{"type":"Desc\')\nos.kill(os.getpid(), signal.SIGKILL)\n'
    (tmp_path / "half_a_line.py").write_text(half)
    monkeypatch.setattr(processes, "_MODULE", "half_a_line")
    with (
        BuildProcess(Build("new", "m:f"), tmp_path, tmp_path / "log") as build,
        pytest.raises(RehearsalError, match=r"the new build [(]m:f[)] ended with status -9: without a word"),
    ):
        build.ask(messages.Describe("a", "m:f", {}, []), messages.Description)


@pytest.mark.parametrize("text", ["", "6", "h", "0h", "6 weeks", "-1h"])
def test_wrong_durations_say_what_is_expected(text: str) -> None:
    with pytest.raises(ValueError, match="expected for example 6h"):
        span_ms(text)


def test_limits() -> None:
    assert allowances(["a=1", "b=c=2%", "d=any"]) == {"a": "1", "b=c": "2%", "d": "any"}
    for wrong in ("a", "a=", "=1", "a=-1", "a=some"):
        with pytest.raises(ValueError, match="NAME=N"):
            allowances([wrong])


def test_wrong_demands_of_a_deploy_are_refused_with_their_line() -> None:
    text = '[applications.a]\nfactory = "a:b"\ninstances = 1\n[applications.a.deploy]\nrehearse = "6 weeks"\n'
    with pytest.raises(WrongDeclarationError, match=r"line 5: applications\.a\.deploy\.rehearse: '6 weeks' is not a duration"):
        Applications.parse(text, Path("streams.toml"))
    [declared] = Applications.parse(
        text.replace("6 weeks", "6h").replace("[applications.a.deploy]", '[applications.a.deploy]\nallow = ["x=1%"]'), Path("streams.toml")
    ).applications
    assert (declared.deploy.rehearse, declared.deploy.allow) == ("6h", {"x": "1%"})


def report(rejections: int = 0) -> messages.Report:
    return messages.Report(100, 0, rejections, [], 1.0, 1.0, {}, {}, "")


def compared(*differences: Difference, rejections: int = 0) -> Comparison:
    builds = (Build(RUNNING, "a:b"), Build(NEW, "c:d"))
    return Comparison(Engine(False, "here"), "s", 100, builds, (report(), report(rejections)), differences, {}, [])


def test_what_differs_by_more_than_is_allowed_fails() -> None:
    counts = Difference("store", "counts", rows=(200, 200), different=3, only_new=1)
    assert failures(compared(counts), {}) == ["store counts differs at 4 keys; 0 are allowed"]
    assert failures(compared(counts), {"counts": "3"}) == ["store counts differs at 4 keys; 3 are allowed"]
    for enough in ("4", "2%", "any"):
        assert not failures(compared(counts), {"counts": enough})
    assert failures(compared(rejections=2), {}) == ["the new build rejects 2 records more than the running one"]
    assert not failures(compared(rejections=2), {"rejected": "2%"})
    assert unknown_names(compared(counts), {"counts": "1", "cuonts": "1", "rejected": "0"}) == ["cuonts"]


def test_the_engine_is_chosen_by_the_number_of_records_and_says_why() -> None:
    here, cluster = SparkSettings(), SparkSettings(master="spark://one:7077")

    def never() -> str | None:
        raise AssertionError("Spark is not asked")

    assert not chosen_engine("local", SPARK_RECORDS, cluster, never).on_spark
    few = chosen_engine("auto", SPARK_RECORDS - 1, cluster, never)
    assert not few.on_spark and "4,999,999 records are fewer than 5,000,000" in few.text
    assert "[spark] names no cluster" in chosen_engine("auto", SPARK_RECORDS, here, never).text
    many = chosen_engine("auto", SPARK_RECORDS, cluster, lambda: None)
    assert many.on_spark and "on Spark at spark://one:7077: 5,000,000 records" in many.text
    unable = chosen_engine("auto", SPARK_RECORDS, cluster, lambda: "a circle")
    assert not unable.on_spark and "because Spark cannot: a circle" in unable.text
    assert chosen_engine("spark", 1, here, lambda: None).on_spark
    with pytest.raises(RehearsalError, match=r"cannot be computed on Spark: a circle\. --engine local"):
        chosen_engine("spark", 1, here, lambda: "a circle")


def test_an_engine_is_chosen_for_the_master_that_a_variable_names(monkeypatch: pytest.MonkeyPatch) -> None:
    spark = SparkSettings(master="${WHERE}")
    monkeypatch.setenv("WHERE", "local[2]")
    assert "[spark] names no cluster" in chosen_engine("auto", SPARK_RECORDS, spark, lambda: None).text
    monkeypatch.setenv("WHERE", "spark://one:7077")
    assert "on Spark at spark://one:7077: 5,000,000" in chosen_engine("auto", SPARK_RECORDS, spark, lambda: None).text
    monkeypatch.delenv("WHERE")
    unknown = chosen_engine("auto", SPARK_RECORDS, spark, lambda: None)
    assert not unknown.on_spark and "because Spark cannot: [spark] master" in unknown.text and "WHERE" in unknown.text
    assert not chosen_engine("auto", 1, spark, lambda: None).on_spark, "few records need no Spark, whatever its settings are"
    with pytest.raises(RehearsalError, match=r"cannot be computed on Spark: \[spark\] master"):
        chosen_engine("spark", 1, spark, lambda: None)


def test_what_a_killed_rehearsal_left_on_shared_storage_is_removed_by_the_next(tmp_path: Path) -> None:
    shared, root = tmp_path / "storage" / ".rehearsals" / "shop.1", tmp_path / "rehearsals"
    for folder in (shared, root / "shop.1"):
        folder.mkdir(parents=True)
    (shared / "part").touch()
    (root / "shop.1" / SHARED).write_text(str(shared))
    _sweep(root)
    assert not shared.exists() and not (root / "shop.1").exists() and shared.parent.exists()


def test_of_partitions_that_are_not_compared_spark_reads_nothing() -> None:
    """Each source topic is an input all the same: without one, the plan is refused."""
    spans = {TopicPartition("a", 1): (NextOffset(3), NextOffset(5)), TopicPartition("c", 0): (NextOffset(0), NextOffset(9))}
    found = spans_of(spans, ["a", "b"], {"a": 2, "b": 1, "c": 1})
    assert found == [messages.Span("a", 0, 0, 0), messages.Span("a", 1, 3, 5), messages.Span("b", 0, 0, 0)]


def test_engines_are_declared() -> None:
    text = """
[applications.a]
factory = "a:b"
instances = 1
[applications.a.deploy]
rehearse-engine = "spark"
[applications.a.snapshots]
audit-engine = "local"
"""
    [declared] = Applications.parse(text, Path("streams.toml")).applications
    assert (declared.deploy.rehearse_engine, declared.snapshots.audit_engine) == ("spark", "local")
    with pytest.raises(WrongDeclarationError, match=r"'spork' is not one of 'auto', 'spark', 'local'\. Did you mean 'spark'"):
        Applications.parse(text.replace("spark", "spork"), Path("streams.toml"))


def test_keys_of_both_are_met_once_in_order() -> None:
    left, right = [(b"a", 1), (b"b", 2), (b"d", 3)], [(b"b", 5), (b"c", 6)]
    assert list(merged(left, right)) == [(b"a", 1, None), (b"b", 2, 5), (b"c", None, 6), (b"d", 3, None)]


def test_records_of_a_key_are_compared_in_order(tmp_path: Path) -> None:
    rows = [(b"k", b"1", 5), (None, b"x", 6), (b"", b"y", 6), (b"k", b"2", 7)]
    for name, changed in (("one", {}), ("other", {3: (b"k", b"3", 7)})):
        writer = OutputWriter(tmp_path / name)
        for number, row in enumerate(rows):
            writer.add("out", *changed.get(number, row), [("h", b"1")], None)
        if name == "other":
            writer.add("more", b"k", None, 1, None, None)
        writer.close()
    more, out = compare_outputs(tmp_path / "one", tmp_path / "other")
    assert (more.name, more.rows, more.only_new) == ("more", (0, 1), 1)
    assert (out.rows, out.different, out.differing) == ((4, 4), 1, 1)
    [sample] = out.samples
    assert sample.running is not None and sample.new is not None
    assert (sample.running.key, sample.running.value, sample.new.value) == (b"k", b"2", b"3")


def test_entries_are_shown_with_the_serdes_of_the_build() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.STRING, value=serdes.json(dict[str, int]))
    windows = stream.group_by_key().windowed_by(TimeWindows.of_size_with_no_grace(60_000))
    windows.count(Materialized("windows", key=serdes.STRING, value=serdes.LONG))
    stream.to("out")
    topology = builder.build().resolved(StreamsConfig({"application.id": "a", "bootstrap.servers": "nowhere:9092"}))
    at = 1_790_000_000_000
    entry = messages.Entry(window_store_key(b"k", at), at.to_bytes(8, "big") + (7).to_bytes(8, "big"))
    [shown, broken] = store_texts(topology, "windows", "a-windows-changelog", [entry, messages.Entry(b"k", b"x")])
    assert (shown.key, shown.value) == ("k from 2026-09-21T14:13:20.000Z", "7 at 2026-09-21T14:13:20.000Z")
    assert (broken.key, broken.value) == ("b'k'", "b'x'")
    [sent, unreadable] = sink_texts(topology, "out", [messages.Entry(b"k", b'{"n":1}'), messages.Entry(None, b"\xff")])
    assert (sent.key, sent.value) == ("k", '{"n":1}')
    assert (unreadable.key, unreadable.value) == ("null", r"b'\xff'")
