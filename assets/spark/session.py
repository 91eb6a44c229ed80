"""One Spark session per process, on this machine, with all that reading state needs: a Java, the Kafka connector, this interpreter."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

from assets.spark.state_source import StateDataSource
from orchestration.embedded.jars import SPARK_KAFKA, ensure_jars
from orchestration.embedded.java import use_java

_PROJECT = Path(__file__).resolve().parent.parent.parent


def spark_session(*, master: str = "local[2]", driver_memory: str = "1g") -> SparkSession:
    """The session of this process; made at the first call, which takes some seconds (and, once per user, downloads the connector).

    Times are UTC. The web interface is off and nothing listens beyond loopback. `state` is registered as a format.
    """
    use_java()
    # Data sources are planned and run by Python processes that the JVM starts: they must find these packages wherever this process stands.
    paths = [str(_PROJECT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    settings = {
        "spark.jars": ",".join(str(jar) for jar in ensure_jars(SPARK_KAFKA)),
        "spark.driver.memory": driver_memory,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir()) / "penstock-spark-warehouse"),
        # Ivy is not asked: the jars are files that were checked against the project's lock.
        "spark.jars.packages": "",
    }
    builder = SparkSession.builder.master(master).appName("penstock")
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    session.dataSource.register(StateDataSource)
    return session
