"""Spark sessions set up to read state, wherever Spark runs: with Java, the connectors, this project's code, this Python.

Each place has its own setup:

- on this machine (`local[*]`), everything is one JVM, which listens on loopback only; Python finds the project by `PYTHONPATH`;
- on a cluster (`spark://`, `k8s://`) the driver runs here; the jars and the zip of the code are sent to the executors;
- on a Spark Connect server no part of Spark runs here; the jars and the zip are sent to the server.

Jobs must therefore use DataFrames only: a Spark Connect session has no SparkContext, no RDDs and no JVM.

The executors of a cluster and a Spark Connect server run the state source and the serdes in their own Python processes. Spark sends them
the files in `--py-files`: a zip of this project's packages, and of the user's, for machines without them. The zip contains the packages as
this process imports them, so the executors run the same code, wherever it was installed from. It is kept in the user's cache under a digest
of its content, so it is built once per change.

Compiled packages (RocksDB, Arrow, the Kafka client) do not work from a zip: the executors' Python must have them installed
(`executors` checks it). (Rejected: a zip of the whole environment, as venv-pack builds: hundreds of megabytes per session, whose
interpreter and compiled parts must fit the executors' system anyway.)
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import re
import socket
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import penstock
from penstock.assets.spark.session.executors import require_executors
from penstock.assets.spark.session.explained import explained
from penstock.assets.spark.source.state_source import StateDataSource
from penstock.orchestration.declarations.spark_settings import SparkSettings, WrongSparkError, local_memory
from penstock.orchestration.embedded.cache import cache_dir
from penstock.orchestration.embedded.jars import DELTA, SPARK_KAFKA, ensure_jars
from penstock.orchestration.embedded.java import use_java

logger = logging.getLogger(__name__)

_PACKAGE_ROOT = Path(penstock.__file__).resolve().parents[1]  # the clone, or site-packages
_LOOPBACK = "127.0.0.1"
_CONNECT_PORT = 15_002
_REACH_SECONDS = 5.0
_DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # By default, Delta reads its log in 50 tasks: most of the time of a small table.
    "spark.databricks.delta.snapshotPartitions": "2",
}
_JOINED = ("spark.jars", "spark.submit.pyFiles", "spark.sql.extensions")


def spark_session(settings: SparkSettings | None = None, *, look: bool = True) -> SparkSession:
    """Return the session of this process. The first call creates it, which takes some seconds (and, once per user, downloads the
    connectors).

    Times are UTC, and the format `penstock.state` is registered. Raises WrongSparkError if Spark cannot run with these settings: no server
    responds, or the executors lack a Python or a required package. `look=False`: the caller checks that with `require_executors`.
    """
    settings = (settings or SparkSettings()).resolved()
    try:
        session = _connected(settings) if settings.connect else _driven_here(settings)
    except (PySparkException, Py4JError) as error:
        raise WrongSparkError(f"no session of Spark at {settings.place}: {explained(error, settings)}") from error
    session.dataSource.register(StateDataSource)
    if look:
        require_executors(session, settings)
    return session


def _driven_here(settings: SparkSettings) -> SparkSession:
    use_java()
    # The JVM starts Python processes here to plan data sources: they must find these packages in any working directory.
    paths = [str(_PACKAGE_ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    if settings.python is not None:
        # The executors' Python also plans here: it may lack packages that this one has.
        os.environ["PYSPARK_PYTHON"] = settings.python
        paths += [path for path in sys.path if path.endswith("-packages")]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    if settings.is_local:
        os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
    else:
        _require_reachable(settings)
    builder = SparkSession.builder.master(settings.master).appName("penstock")
    for key, value in session_conf(settings).items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    if not settings.is_local and settings.code == "sent":
        session.sparkContext.addPyFile(str(code_archive(settings.packages)))
    return session


def session_conf(settings: SparkSettings) -> dict[str, str]:
    """Return the configuration of a session whose driver runs here, in Spark's own keys; `settings.conf` takes precedence."""
    jars = ensure_jars(SPARK_KAFKA) + (ensure_jars(DELTA) if settings.delta else [])
    conf = {
        "spark.jars": ",".join(map(str, jars)),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir()) / "penstock-spark-warehouse"),
        # Do not use Ivy: the jars are files that were checked against the project's lock.
        "spark.jars.packages": "",
    }
    if settings.is_local:
        conf |= {
            "spark.driver.memory": _memory_here(settings),
            "spark.driver.host": _LOOPBACK,
            "spark.driver.bindAddress": _LOOPBACK,
            "spark.sql.shuffle.partitions": "4",
        }
    named = {
        "spark.driver.memory": settings.driver_memory,
        "spark.executor.memory": settings.executor_memory,
        "spark.executor.cores": str(settings.executor_cores or ""),
        "spark.driver.host": settings.driver_host,
        "spark.driver.bindAddress": settings.driver_bind_address,
    }
    conf |= {key: value for key, value in named.items() if value}
    if settings.delta:
        conf |= _DELTA
    for key, value in settings.conf.items():
        conf[key] = f"{conf[key]},{value}" if key in _JOINED and key in conf else value
    return conf


def _memory_here(settings: SparkSettings) -> str:
    if settings.driver_memory is None:
        memory = local_memory()
        logger.info(
            "Spark runs on this machine (%s) with %s of memory, a quarter of what is there (1g to 4g); [spark] driver-memory sets another",
            settings.master,
            memory,
        )
        return memory
    logger.info("Spark runs on this machine (%s) with %s of memory", settings.master, settings.driver_memory)
    return settings.driver_memory


def _connected(settings: SparkSettings) -> SparkSession:
    """Return a session of a Spark Connect server, to which the connectors and the code were sent."""
    assert settings.connect is not None
    missing = [name for name in ("grpc", "grpc_status", "google.rpc", "pandas") if importlib.util.find_spec(name) is None]
    if missing:
        raise WrongSparkError(
            f"the client of Spark Connect needs packages that are not here ({', '.join(missing)}): pip install 'penstock[spark]'"
        )
    _require_reachable(settings)
    builder = SparkSession.builder.remote(settings.connect)
    for key, value in {"spark.sql.session.timeZone": "UTC", **settings.conf}.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    if settings.delta and "DeltaSparkSessionExtension" not in (session.conf.get("spark.sql.extensions", "") or ""):
        keys = " ".join(f"--conf {key}={_DELTA[key]}" for key in list(_DELTA)[:2])
        names = ", ".join(jar.name for jar in ensure_jars(DELTA))
        raise WrongSparkError(
            f"the server at {settings.connect} knows no Delta tables, and a client cannot teach it: start it with {keys} "
            f"and the jars {names}"
        )
    session.addArtifacts(*map(str, ensure_jars(SPARK_KAFKA)))
    if settings.code == "sent":
        session.addArtifacts(str(code_archive(settings.packages)), pyfile=True)
    return session


def _require_reachable(settings: SparkSettings) -> None:
    """Raise WrongSparkError immediately if no server listens: Spark itself tries for a minute, and then reports another error."""
    addresses = _addresses(settings.place)
    failures = []
    for host, port in addresses:
        try:
            socket.create_connection((host, port), _REACH_SECONDS).close()
        except OSError as error:
            failures.append(f"{host}:{port}: {error.strerror or error}")
        else:
            return
    raise WrongSparkError(f"no server answers at {settings.place} ({'; '.join(failures)})")


def _addresses(place: str) -> list[tuple[str, int]]:
    """Parse the hosts and ports of `spark://one:7077,two:7077`, `k8s://https://host:6443`, `sc://host:15002/;options`."""
    default = {"sc": _CONNECT_PORT, "spark": 7077, "k8s": 443}[place.split("://")[0]]
    hosts = re.sub(r"^(sc|spark|k8s)://(https?://)?", "", place).split("/")[0]
    found = [re.fullmatch(r"(.+?)(?::(\d+))?", host) for host in hosts.split(",")]
    return [(match[1], int(match[2] or default)) for match in found if match]


OWN_PACKAGES = ("penstock",)
_EPOCH = (1980, 1, 1, 0, 0, 0)  # fixed, so that the zip's bytes depend on its content alone


def code_archive(packages: Iterable[str] = ()) -> Path:
    """Return a zip of the project's packages and of these top-level modules. Raises WrongSparkError for an unknown module."""
    files = {name: path.read_bytes() for name, path in _sources((*OWN_PACKAGES, *packages))}
    archive = cache_dir() / "spark" / f"penstock-{_digest(files)[:12]}.zip"
    if not archive.exists():
        archive.parent.mkdir(parents=True, exist_ok=True)
        partial = archive.with_suffix(f".{os.getpid()}")
        with zipfile.ZipFile(partial, "w") as written:
            for name in sorted(files):
                written.writestr(zipfile.ZipInfo(name, _EPOCH), files[name], zipfile.ZIP_DEFLATED)
        partial.replace(archive)
    return archive


def code_digest(packages: Iterable[str]) -> str:
    """Return a digest of the source of the project's packages and of these top-level modules. Raises WrongSparkError for an unknown
    module."""
    return _digest({name: path.read_bytes() for name, path in _sources((*OWN_PACKAGES, *packages))})


def _digest(files: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(f"{name}\0{len(files[name])}\0".encode())
        digest.update(files[name])
    return digest.hexdigest()


def _sources(packages: Iterable[str]) -> Iterator[tuple[str, Path]]:
    """Yield the Python files of these modules with their names in the zip."""
    for package in dict.fromkeys(packages):
        spec = importlib.util.find_spec(package)
        if spec is None:
            raise WrongSparkError(
                f"the module {package!r} cannot travel to Spark's executors: there is none of that name here ([spark] packages)"
            )
        if spec.submodule_search_locations is None:
            if spec.origin is None or not spec.origin.endswith(".py"):
                raise WrongSparkError(
                    f"the module {package!r} cannot travel to Spark's executors: it is not a Python file but {spec.origin}"
                )
            yield f"{package}.py", Path(spec.origin)
            continue
        for folder in map(Path, spec.submodule_search_locations):
            for root, _, names in os.walk(folder, followlinks=True):  # in a clone, the packages inside `penstock` are links
                for path in (Path(root, name) for name in sorted(names) if name.endswith(".py")):
                    yield str(Path(package) / path.relative_to(folder)), path
