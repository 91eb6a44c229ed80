"""Quick starts of Spark for tests, whose few hundred records cost less than the start of Java: it compiles less, and has an archive of
classes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence

import pyspark

from penstock.orchestration.embedded import class_archive
from penstock.orchestration.embedded.java import java_home

QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of Spark's JVM."""
_VARIABLE = "SPARK_SUBMIT_OPTS"
_TYPICAL = """
import sys
from pyspark import SparkContext
from pyspark.sql import SparkSession
from penstock.orchestration.embedded.java import use_java

use_java()
session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
session.range(100).selectExpr("id % 7 as key", "id").groupBy("key").count().write.parquet(sys.argv[1])
session.read.parquet(sys.argv[1]).orderBy("key").collect()
session.stop()
java = SparkContext._gateway.proc
java.stdin.close()  # ends it
sys.exit(java.wait())
"""


def environment() -> dict[str, str]:
    """Return the variable by which all Spark drivers that inherit it start quickly. A user's first call takes half a minute."""
    options = class_archive.options(java_home() / "bin" / "java", f"spark {pyspark.__version__} {pyspark.__file__}", _record)
    return {_VARIABLE: " ".join((QUICK_JAVA, *options))}


def _record(options: Sequence[str]) -> bool:
    variables = {**os.environ, _VARIABLE: " ".join((QUICK_JAVA, *options))}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", _TYPICAL, f"{folder}/table"]
        return subprocess.run(command, check=False, env=variables, stdin=subprocess.DEVNULL).returncode == 0
