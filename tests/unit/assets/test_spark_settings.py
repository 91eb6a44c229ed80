"""`[spark]` of streams.toml, and the memory of a Spark that runs on a laptop."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.orchestration.declarations.applications import Applications, WrongDeclarationError
from penstock.orchestration.declarations.spark_settings import GIB, SparkSettings, WrongSparkError, local_memory, memory_of_machine


def declared(text: str) -> SparkSettings:
    return Applications.parse(text, Path("streams.toml")).spark


def test_by_default_spark_runs_on_this_machine() -> None:
    settings = declared("")
    assert (settings.master, settings.connect, settings.conf, settings.is_local) == ("local[*]", None, {}, True)


def test_a_cluster_with_all_that_can_be_said() -> None:
    settings = declared(
        """
        [applications.board]
        factory = "my_company.board:build"
        instances = 1

        [spark]
        master = "spark://one:7077,two:7077"
        driver-memory = "1g"
        executor-memory = "4g"
        executor-cores = 2
        driver-host = "10.0.0.5"
        driver-bind-address = "0.0.0.0"
        python = "python3.11"
        code = "installed"
        packages = ["my_serdes"]

        [spark.conf]
        "spark.sql.shuffle.partitions" = 200
        "spark.hadoop.fs.s3a.path.style.access" = true
        """
    )
    assert settings == SparkSettings(
        master="spark://one:7077,two:7077",
        driver_memory="1g",
        executor_memory="4g",
        executor_cores=2,
        driver_host="10.0.0.5",
        driver_bind_address="0.0.0.0",
        python="python3.11",
        code="installed",
        packages=("my_serdes", "my_company"),
        conf={"spark.sql.shuffle.partitions": "200", "spark.hadoop.fs.s3a.path.style.access": "true"},
    )
    assert not settings.is_local and settings.place == "spark://one:7077,two:7077"
    assert declared('[spark]\nconnect = "sc://host:15002/;use_ssl=true"').place == "sc://host:15002/;use_ssl=true"
    kubernetes = '[spark]\nmaster = "k8s://https://host:6443"\n[spark.conf]\n"spark.kubernetes.container.image" = "penstock:1"'
    assert not declared(kubernetes).is_local


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('[spark]\nmaster = "yarn"', r"line 2: spark\.master: 'yarn' is not possible.*local\[\*\].*spark://host:7077.*k8s://"),
        ('[spark]\nmaster = "sc://host:15002"', r'line 2: spark\.master: .*Spark Connect server: connect = "sc://host"'),
        ('[spark]\nmaster = "spark://host"', r"line 2: spark\.master: 'spark://host' is not possible"),
        ('[spark]\nmaster = "local[0]"', r"line 2: spark\.master: 'local\[0\]' is not possible"),
        ("[spark]\nmaster = 2", r"line 2: spark\.master: 2 is not possible"),
        ('[spark]\nconnect = "http://host"', r"line 2: spark\.connect: .*for example connect = \"sc://127"),
        ('[spark]\nmaster = "local"\nconnect = "sc://host"', r"line 3: spark\.connect: is in place of master"),
        ('[spark]\ndriver-memory = "2 GB"', r'line 2: spark\.driver-memory: .*for example driver-memory = "2g"'),
        ('[spark]\ndriver-memory = "100m"', r"line 2: spark\.driver-memory: .*at least 450m"),
        ('[spark]\nexecutor-memory = "2g"', r"line 2: spark\.executor-memory: has no meaning with master 'local"),
        ('[spark]\nconnect = "sc://host"\nexecutor-cores = 2', r"line 3: spark\.executor-cores: has no meaning with connect"),
        ('[spark]\nconnect = "sc://host"\ndriver-memory = "2g"', r"line 3: spark\.driver-memory: has no meaning with connect"),
        ('[spark]\nmaster = "k8s://https://h:1"', r'line 2: spark\.master: .*"spark\.kubernetes\.container\.image" = '),
        ('[spark]\ncode = "send"', r"line 2: spark\.code: .*Did you mean 'sent'"),
        ('[spark]\nmastr = "local"', r"line 2: spark\.mastr: unknown key: did you mean 'master'"),
        ("[spark.conf]\nspark.x = 1", r'line 2: .*quoted: "spark\.…" ='),
        ('[spark.conf]\n"spark.master" = "local"', r"line 2: .*is set by 'master' in \[spark\]"),
        ('[spark.conf]\n"fs.s3a.endpoint" = "x"', r'line 2: .*begin with "spark\."'),
    ],
)
def test_a_mistake_is_named_with_its_line_and_what_would_be_right(lines: str, message: str) -> None:
    with pytest.raises(WrongDeclarationError, match=message):
        declared(lines)


def test_variables_are_read_when_a_session_is_made() -> None:
    settings = declared('[spark]\nmaster = "${SPARK_MASTER}"\n[spark.conf]\n"spark.hadoop.fs.s3a.secret.key" = "${SECRET}"')
    resolved = settings.resolved({"SPARK_MASTER": "spark://host:7077", "SECRET": "s"})
    assert resolved.master == "spark://host:7077" and resolved.conf == {"spark.hadoop.fs.s3a.secret.key": "s"}
    with pytest.raises(WrongSparkError, match=r"\[spark\] master: \$\{SPARK_MASTER\} is not set"):
        settings.resolved({})
    with pytest.raises(WrongSparkError, match=r"\[spark\.conf\] spark\.hadoop.*SECRET\} is not set"):
        settings.resolved({"SPARK_MASTER": "local"})
    with pytest.raises(WrongSparkError, match=r"\[spark\] master: '\$\{SPARK_MASTER\}' is not possible once"):
        settings.resolved({"SPARK_MASTER": "yarn", "SECRET": "s"})


@pytest.mark.parametrize(("gibibytes", "memory"), [(2, "1024m"), (8, "2048m"), (10, "2560m"), (64, "4096m")])
def test_a_quarter_of_the_machine_from_one_to_four_gibibytes(gibibytes: int, memory: str) -> None:
    assert local_memory(gibibytes * GIB) == memory


def test_the_limit_of_a_container_counts(tmp_path: Path) -> None:
    limited, unlimited = tmp_path / "memory.max", tmp_path / "limit_in_bytes"
    limited.write_text(f"{GIB // 2}\n")
    unlimited.write_text("max\n")
    assert memory_of_machine((limited, unlimited, tmp_path / "not-there")) == GIB // 2
    assert memory_of_machine((unlimited,)) == memory_of_machine(()) > GIB // 2
