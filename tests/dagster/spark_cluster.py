"""A standalone Spark cluster on loopback, one master and two workers, and a Spark Connect server: from PySpark's own jars.

Their Python is the bare interpreter with the installed packages, but without this project: its code reaches them only if it is sent.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import psutil
import pyspark

from penstock.orchestration.embedded.java import java_home
from penstock.orchestration.embedded.ports import LOOPBACK, answers, free_port
from tests.support import wait_until

SPARK = Path(pyspark.__file__).parent
BARE_PYTHON = Path(sys.executable).resolve()
"""Not in the virtual environment, whose site-packages contain this project's folder in a .pth file."""
_OPENED = ("java.base/java.lang", "java.base/java.nio", "java.base/java.util", "java.base/sun.nio.ch", "java.base/sun.security.action")
WORKERS = 2


class JavaProcesses:
    """Java processes with PySpark's jars, in their own folder. `stop` ends them and their children."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, main: str, arguments: Sequence[object], memory: str = "256m") -> subprocess.Popen[bytes]:
        options = [f"-Xmx{memory}", *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED)]
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("SPARK_", "PYSPARK_", "PENSTOCK_"))}
        environment |= {
            "PYTHONPATH": str(SPARK.parent),
            "PYSPARK_PYTHON": str(BARE_PYTHON),
            "PYSPARK_DRIVER_PYTHON": str(BARE_PYTHON),
            "SPARK_HOME": str(SPARK),
            "SPARK_SCALA_VERSION": "2.13",  # set like in its start scripts
            "SPARK_LOCAL_IP": LOOPBACK,
            "JAVA_HOME": str(java_home()),
        }
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [str(java_home() / "bin" / "java"), *options, "-cp", f"{SPARK}/jars/*", main, *map(str, arguments)],
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._processes.append(process)
        return process

    def stop(self) -> None:
        """Kill all of them and their children, without a clean shutdown."""
        for process in self._processes:
            try:
                started = psutil.Process(process.pid).children(recursive=True)
            except psutil.NoSuchProcess:
                started = []
            process.kill()
            for each in started:
                if each.is_running():
                    each.kill()
            process.wait()


class SparkCluster(JavaProcesses):
    """`spark://127.0.0.1:<port>`, with workers of one core each."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._port, self._page = free_port(), free_port()
        self.master = f"spark://{LOOPBACK}:{self._port}"
        self.workers: list[subprocess.Popen[bytes]] = []

    def begin(self) -> None:
        """Start, and wait until the master has registered its workers."""
        port = self._port
        self.start("master", "org.apache.spark.deploy.master.Master", ["--host", LOOPBACK, "--port", port, "--webui-port", self._page])
        wait_until(lambda: answers(port) and answers(self._page), 120, "Spark's master")
        self.workers = [self._worker(number) for number in range(WORKERS)]
        wait_until(lambda: self.state("workers", "ALIVE") == WORKERS, 120, "Spark's workers")

    def _worker(self, number: int) -> subprocess.Popen[bytes]:
        work = self.folder / f"work-{number}"
        arguments = ["--host", LOOPBACK, "--webui-port", 0, "--cores", 1, "--memory", "1g", "--work-dir", work, self.master]
        return self.start(f"worker-{number}", "org.apache.spark.deploy.worker.Worker", arguments)

    def replace(self, number: int) -> None:
        """Start a worker to replace one that was killed."""
        self.workers[number] = self._worker(number)
        wait_until(lambda: self.state("workers", "ALIVE") == WORKERS, 120, "the new worker")

    def state(self, kind: str, state: str) -> int:
        """Return the number of `workers` or `activeapps` in a state, from the master's page."""
        try:
            with urllib.request.urlopen(f"http://{LOOPBACK}:{self._page}/json/", timeout=10) as answer:
                text = answer.read()
        except urllib.error.HTTPError:
            text = b""
        # While the master starts, the page is missing, and then empty.
        return sum(each["state"] == state for each in json.loads(text)[kind]) if text else 0

    def executors(self) -> list[psutil.Process]:
        """Return the processes that the workers have started."""
        alive = [psutil.Process(worker.pid) for worker in self.workers if worker.poll() is None]
        return [child for worker in alive for child in worker.children()]


class ConnectServer(JavaProcesses):
    """`sc://127.0.0.1:<port>`, which runs everything in one JVM."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._port = free_port()
        self.url = f"sc://{LOOPBACK}:{self._port}"

    def begin(self) -> None:
        """Start, and wait until it listens."""
        conf = {
            "spark.connect.grpc.binding.address": LOOPBACK,
            "spark.connect.grpc.binding.port": self._port,
            "spark.ui.enabled": "false",
            "spark.driver.host": LOOPBACK,
            "spark.sql.shuffle.partitions": 2,
        }
        options = [part for key, value in conf.items() for part in ("--conf", f"{key}={value}")]
        server = "org.apache.spark.sql.connect.service.SparkConnectServer"
        self.start(
            "connect",
            "org.apache.spark.deploy.SparkSubmit",
            ["--master", "local[2]", *options, "--class", server, "spark-internal"],
            memory="700m",
        )
        wait_until(lambda: answers(self._port), 120, "Spark's Connect server")
