"""Spark's work, without Spark: its configuration, its progress as lines, its explained errors, the code that is sent."""

from __future__ import annotations

import sys
import threading
import zipfile
from pathlib import Path

import pytest
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from penstock.assets.spark.process.pipes import _without_answer
from penstock.assets.spark.session import session
from penstock.assets.spark.session.explained import explained
from penstock.assets.spark.session.progress import Lines, Work
from penstock.assets.spark.session.session import OWN_PACKAGES, _addresses, _require_reachable, code_archive, session_conf
from penstock.orchestration.declarations.spark_settings import SparkSettings, WrongSparkError
from penstock.orchestration.embedded.jars import DELTA, SPARK_KAFKA, read_lock
from penstock.orchestration.embedded.ports import free_port
from penstock.orchestration.embedded.spark_turn import spark_turn

CLUSTER = SparkSettings(master="spark://host:7077", python="python3.11", driver_host="10.0.0.5", executor_memory="4g")


# -- how a session is configured ------------------------------------------------------------------------------------------------


def test_here_spark_listens_on_loopback_only_and_has_a_limit_of_memory(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "penstock.assets.spark.session.session")
    conf = session_conf(SparkSettings())
    assert conf["spark.driver.host"] == conf["spark.driver.bindAddress"] == "127.0.0.1"
    assert 1024 <= int(conf["spark.driver.memory"].removesuffix("m")) <= 4096
    assert f"with {conf['spark.driver.memory']} of memory, a quarter of what is there" in caplog.text
    assert session_conf(SparkSettings(driver_memory="512m"))["spark.driver.memory"] == "512m"


def test_on_a_cluster_hosts_and_memory_are_as_declared_and_else_as_spark_has_them() -> None:
    conf = session_conf(CLUSTER)
    assert (conf["spark.driver.host"], conf["spark.executor.memory"]) == ("10.0.0.5", "4g")
    assert not {"spark.driver.bindAddress", "spark.driver.memory", "spark.executor.cores", "spark.sql.shuffle.partitions"} & set(conf)


def test_the_connectors_jars_are_files_and_delta_comes_where_it_is_wanted() -> None:
    names = {Path(jar).name for jar in session_conf(SparkSettings())["spark.jars"].split(",")}
    assert names == {jar.name for jar in read_lock(SPARK_KAFKA)}
    conf = session_conf(SparkSettings(delta=True))
    assert {jar.name for jar in read_lock(DELTA)} < {Path(jar).name for jar in conf["spark.jars"].split(",")}
    assert "Delta" in conf["spark.sql.extensions"] and "Delta" in conf["spark.sql.catalog.spark_catalog"]


def test_the_conf_overrides_our_settings_and_is_combined_with_them_where_both_are_needed() -> None:
    own = {"spark.ui.enabled": "true", "spark.jars": "/opt/s3.jar", "spark.sql.extensions": "my.Extension"}
    conf = session_conf(SparkSettings(delta=True, conf=own))
    assert conf["spark.ui.enabled"] == "true"
    assert conf["spark.jars"].endswith(",/opt/s3.jar") and "kafka" in conf["spark.jars"]
    assert conf["spark.sql.extensions"].endswith("DeltaSparkSessionExtension,my.Extension")


@pytest.mark.parametrize(
    ("place", "addresses"),
    [
        ("spark://one:7077,two:7078", [("one", 7077), ("two", 7078)]),
        ("k8s://https://host:6443", [("host", 6443)]),
        ("k8s://host", [("host", 443)]),
        ("sc://host", [("host", 15002)]),
        ("sc://host:1/;token=x", [("host", 1)]),
    ],
)
def test_where_a_place_is_reached(place: str, addresses: list[tuple[str, int]]) -> None:
    assert _addresses(place) == addresses


def test_a_missing_server_is_reported_at_once() -> None:
    port = free_port()
    with pytest.raises(
        WrongSparkError, match=rf"no server answers at sc://127\.0\.0\.1:{port} \(127\.0\.0\.1:{port}: Connection refused\)"
    ):
        _require_reachable(SparkSettings(connect=f"sc://127.0.0.1:{port}"))


def test_a_server_that_is_not_a_spark_master_is_reported_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def gave_up(settings: SparkSettings) -> SparkSession:
        raise Py4JError("An error occurred.\n: java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.\n\tat x")

    monkeypatch.setattr(session, "_driven_here", gave_up)
    with pytest.raises(WrongSparkError, match=r"no session of Spark at spark://host:7077: .* no master of this version of Spark"):
        session.spark_session(CLUSTER)


# -- progress -------------------------------------------------------------------------------------------------------------------


def test_a_line_for_each_tenth_but_no_flood() -> None:
    lines, said = Lines(0.0), []
    lines.begin("writing rows", 0.0)
    for step in range(1, 1001):  # half a second each: 1,000 tasks in 500 seconds
        line = lines.line(Work(stages=1, tasks=1000, done=step, active=2, rows=step * 1000), step / 2)
        if line:
            said.append(line)
    assert said[0] == "writing rows: 60 of 1000 tasks done, 2 at work, 60,000 rows read"  # half a minute is over
    assert 10 <= len(said) <= 20
    quick = [line for step in range(100) if (line := Lines(0.0).line(Work(tasks=100, done=step, active=1), step / 100))]
    assert quick == []  # it is all over within a second


def test_progress_is_reported_at_intervals_with_failed_tasks() -> None:
    lines = Lines(0.0)
    slow = Work(stages=3, tasks=40, done=1, active=4, failed=2)
    assert lines.line(slow, 29.0) is None
    assert lines.line(slow, 30.0) == "Spark: 1 of 40 tasks done, 4 at work, in 3 stages, 2 tasks failed and tried again"
    assert lines.line(slow, 59.0) is None and lines.line(slow, 60.0) is not None


def test_the_next_stage_begins_at_zero() -> None:
    lines = Lines(0.0)
    assert lines.line(Work(tasks=10, done=9, active=1), 2.0)
    assert lines.line(Work(tasks=10, done=2, active=1), 4.0)
    assert lines.line(None, 5.0) is None


def test_missing_executors_are_reported_once() -> None:
    lines, waiting = Lines(0.0), Work(tasks=10)
    assert lines.line(waiting, 1.0) is None and lines.line(waiting, 20.0) is None
    line = lines.line(waiting, 21.0)
    assert line is not None and "no executor has taken a task for 20 seconds. Are there workers" in line
    assert lines.line(waiting, 60.0) is None
    assert lines.line(Work(tasks=10, done=5, active=1), 61.0) is not None


# -- errors ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "Job aborted. pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different "
            "version: 3.9 than that in driver: 3.11, PySpark cannot run with different minor versions.\nPlease check …",
            r"the executors run Python 3\.9, this is 3\.\d+: .*\[spark\] python \(now python3\.11\)",
        ),
        (
            'java.io.IOException: Cannot run program "/opt/py/bin/python": error=2, No such file or directory\n\tat java.base/…',
            r"there is no /opt/py/bin/python on the executors: .*\[spark\] python",
        ),
        (
            "Traceback …\nModuleNotFoundError: No module named 'rocksdict'\n",
            r"lacks a module \(No module named 'rocksdict'\).*\[spark\] packages",
        ),
        (
            "java.io.InvalidClassException: org.apache.spark.rdd.RDD; local class incompatible: stream classdesc",
            r"spark://host:7077 runs another version of Spark .*org\.apache\.spark\.rdd\.RDD differs",
        ),
        ("Reason: All masters are unresponsive! Giving up.", "no master answers at spark://host:7077"),
        ("java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.\nThis", "no master of this version of Spark"),
        ("Master removed our application: FAILED", r"driver-host, now 10\.0\.0\.5.*executor-memory, now 4g"),
        ("[DATA_SOURCE_NOT_FOUND] Failed to find data source: kafka. Please", "has no kafka connector"),
        ("java.lang.OutOfMemoryError: Java heap space\n\tat", r"ran out of memory \(Java heap space\): \[spark\] driver-memory"),
        ("Answer from Java side is empty", "JVM ended in the middle of the work"),
        (
            "o1.load.\n: [FAILED_READ_FILE.NO_HINT] Encountered error while reading file s3://in/b.parquet.  SQLSTATE: KD001\n\tat org…\n"
            "Caused by: java.nio.file.AccessDeniedException: b.parquet: 403\n\tat",
            r"^the file s3://in/b\.parquet cannot be read: b\.parquet: 403$",
        ),
        (
            "[FAILED_READ_FILE.CANNOT_READ_FILE_FOOTER] Encountered error while reading file file:/in/a b.txt. Could not read footer.",
            r"^the file file:/in/a b\.txt cannot be read: it is damaged, or of another format$",
        ),
        ("[DELTA_TABLE_ONLY_OPERATION] `/in` is not a Delta table. DESCRIBE", "^`/in` is not a Delta table$"),
        ("[PATH_NOT_FOUND] Path does not exist: file:/in. SQLSTATE: 42K03", "^file:/in does not exist$"),
        ("[USER_RAISED_EXCEPTION] input of topic {in}: wrong SQLSTATE: P0001", "^input of topic {in}: wrong$"),
        ("java.io.IOException: No space left on device", "no space is left on a disk that Spark writes to"),
    ],
)
def test_an_error_of_spark_is_explained_with_a_remedy(text: str, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        raise AssertionError(explained(RuntimeError(text), CLUSTER))


def test_of_other_errors_the_line_that_matters_is_left() -> None:
    java = "An error occurred while calling o1.parquet.\n: org.apache.spark.SparkException: no such table\n\tat org.apache.A.b(A.scala:1)"
    assert explained(RuntimeError(java), CLUSTER).endswith("org.apache.spark.SparkException: no such table")
    python = (
        "An exception was thrown from the Python worker.\nTraceback (most recent call last):\n  File …\nValueError: b'x' is no number\n"
    )
    assert explained(RuntimeError(python), CLUSTER) == "ValueError: b'x' is no number"
    assert explained(KeyError(), CLUSTER) == "KeyError"
    assert len(explained(RuntimeError("x" * 10_000), CLUSTER)) < 2_100


def test_a_child_that_ends_without_an_answer_is_explained() -> None:
    assert "was killed (SIGKILL)" in _without_answer(-9, SparkSettings()) and "driver-memory is a quarter" in _without_answer(
        -9, SparkSettings()
    )
    assert _without_answer(130, CLUSTER) == "Spark's work was ended from outside"
    assert "ended with status 3" in _without_answer(3, CLUSTER)


def test_on_this_machine_one_job_works_at_a_time(tmp_path: Path) -> None:
    said: list[str] = []
    waiting, over = threading.Event(), threading.Event()

    def say(line: str) -> None:
        said.append(line)
        waiting.set()

    def wait() -> None:
        with spark_turn(tmp_path / "home", say, local=SparkSettings().is_local):
            over.set()

    with spark_turn(tmp_path / "home", said.append, local=SparkSettings().is_local):
        other = threading.Thread(target=wait)
        other.start()
        assert waiting.wait(30) and not over.is_set()
        with spark_turn(tmp_path / "home", said.append, local=CLUSTER.is_local):
            pass  # a cluster shares itself out
        with spark_turn(tmp_path / "home", said.append, local=SparkSettings().is_local):
            pass  # the turn is this thread's already
        assert not over.is_set()
    other.join(30)
    assert over.is_set() and said == ["another run's Spark is at work on this machine: waiting for its end"]


# -- code that travels ----------------------------------------------------------------------------------------------------------


def test_the_code_that_travels_is_a_zip_of_the_packages_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    (tmp_path / "their_serdes").mkdir()
    (tmp_path / "their_serdes" / "__init__.py").write_text("A = 1\n")
    (tmp_path / "their_module.py").write_text("B = 2\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    archive = code_archive(["their_serdes", "their_module"])
    with zipfile.ZipFile(archive) as opened:
        names = set(opened.namelist())
    assert {
        "their_serdes/__init__.py",
        "their_module.py",
        "penstock/runtime/stores/rows.py",
        "penstock/assets/spark/source/state_source.py",
    } < names
    assert {name.split("/")[0] for name in names} == {*OWN_PACKAGES, "their_serdes", "their_module.py"}
    written = archive.stat().st_mtime_ns
    assert code_archive(["their_serdes", "their_module"]) == archive and archive.stat().st_mtime_ns == written
    (tmp_path / "their_module.py").write_text("B = 3\n")
    assert code_archive(["their_serdes", "their_module"]) != archive
    assert str(archive) not in sys.path


@pytest.mark.parametrize(("name", "message"), [("no_such_module", "there is none of that name here"), ("zlib", "is not a Python file")])
def test_a_module_that_cannot_travel_is_named(name: str, message: str) -> None:
    with pytest.raises(WrongSparkError, match=message):
        code_archive([name])
