"""`[spark]` of `streams.toml`: where Spark runs, and its resources.

    [spark]                                   # all of it may be left out: this machine, with a memory that leaves room for others
    master = "local[*]"                       # or "spark://host:7077", "k8s://https://host:6443"
    connect = "sc://host:15002"               # in place of master: a Spark Connect server
    driver-memory = "2g"                      # default on this machine: a quarter of its memory, from 1g to 4g
    executor-memory = "4g"                    # the others are for clusters only
    executor-cores = 2
    driver-host = "10.0.0.5"                  # where executors reach the driver; default: what Spark finds
    driver-bind-address = "0.0.0.0"
    python = "python3.11"                     # the interpreter on the executors, known on this machine by the same name
    code = "sent"                             # or "installed": the executors have this project's wheel
    packages = ["my_serdes"]                  # top-level modules that travel beside those of the applications' factories

    [spark.conf]                              # Spark's own keys, quoted
    "spark.sql.shuffle.partitions" = 200

Strings may contain `${NAME}`, which is replaced from the environment when a session is created: reading the file requires no secrets.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import psutil

from penstock.orchestration.declarations.toml_table import Table
from penstock.runtime.config.environment import filled_in
from penstock.runtime.model.errors import StreamsConfigError
from penstock.runtime.model.secrets import shown

GIB = 1 << 30
LEAST_LOCAL, MOST_LOCAL = 1 * GIB, 4 * GIB
_LEAST_DRIVER_MIB = 450  # below, Spark refuses to start

_LOCAL = r"local(\[(\*|[1-9]\d*)(,\s*[1-9]\d*)?\])?"
_MASTER = rf"{_LOCAL}|spark://[^\s/:,]+:\d+(,[^\s/:,]+:\d+)*|k8s://\S+"
_CONNECT = r"sc://[^\s/:]+(:\d+)?(/\S*)?"
_MEMORY = r"[1-9]\d*[mgMG]"
_OWN_KEYS = {
    "spark.master": "master",
    "spark.remote": "connect",
    "spark.driver.memory": "driver-memory",
    "spark.executor.memory": "executor-memory",
    "spark.executor.cores": "executor-cores",
    "spark.driver.host": "driver-host",
    "spark.driver.bindAddress": "driver-bind-address",
    "spark.pyspark.python": "python",
    "spark.pyspark.driver.python": "python",
}
_SERVERS_OWN = "has no meaning with connect: the server of Spark Connect was started with its own"
_IMAGE = "spark.kubernetes.container.image"


class WrongSparkError(Exception):
    """Spark cannot run with these settings; the message says what is wrong and what is expected."""


class SparkSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of Spark. By default it runs on this machine, on all cores, with the memory of `local_memory`.

    The module's docstring describes the fields. Memory is in Spark's notation: `512m`, `2g`.
    """

    master: str = "local[*]"
    connect: str | None = None
    driver_memory: str | None = None
    executor_memory: str | None = None
    executor_cores: int = 0
    """0: Spark's default."""
    driver_host: str | None = None
    driver_bind_address: str | None = None
    python: str | None = None
    code: str = "sent"
    packages: tuple[str, ...] = ()
    conf: dict[str, str] = {}
    delta: bool = False
    """True: the session reads and writes Delta tables too. Not a key of `[spark]`: it depends on the session's purpose."""

    @property
    def is_local(self) -> bool:
        """True if there are no executors besides the driver."""
        return self.connect is None and self.master.startswith("local")

    @property
    def place(self) -> str:
        """Name of the place where Spark runs, for messages."""
        return self.connect or self.master

    @classmethod
    def read(cls, table: Table, factories: Sequence[str] = ()) -> SparkSettings:
        """Read the settings. The modules of `factories` (`module:function`) are sent to the executors too. Raises WrongDeclarationError
        with line and expected value."""
        of_factories = [re.split(r"[.:]", factory)[0] for factory in factories]
        settings = cls(
            master=_master(table),
            connect=_text(table, "connect", _CONNECT, "sc://127.0.0.1:15002"),
            driver_memory=_text(table, "driver-memory", _MEMORY, "2g"),
            executor_memory=_text(table, "executor-memory", _MEMORY, "4g"),
            executor_cores=table.whole("executor-cores", default=0, least=0),
            driver_host=_text(table, "driver-host", r"\S+", "10.0.0.5"),
            driver_bind_address=_text(table, "driver-bind-address", r"\S+", "0.0.0.0"),
            python=_text(table, "python", r"\S+", "python3.11"),
            code=table.choice("code", ("sent", "installed"), "sent"),
            packages=tuple(
                dict.fromkeys([*table.texts("packages", pattern=r"[A-Za-z_]\w*", example="my_serdes", default=()), *of_factories])
            ),
            conf=_conf(table.table("conf")),
        )
        table.reject_unknown()
        if table.has("connect") and table.has("master"):
            raise table.wrong(("connect",), "is in place of master: one of the two")
        settings._check(table)
        return settings

    def _check(self, table: Table) -> None:
        """Check dependencies between keys. Raises WrongDeclarationError."""
        if self.driver_memory is not None and "${" not in self.driver_memory and mebibytes(self.driver_memory) < _LEAST_DRIVER_MIB:
            raise table.wrong(("driver-memory",), f"Spark needs more than {self.driver_memory} to start: at least {_LEAST_DRIVER_MIB}m")
        if self.driver_memory is not None and self.connect is not None:
            raise table.wrong(("driver-memory",), _SERVERS_OWN)
        for_clusters = {
            "executor-memory": self.executor_memory,
            "executor-cores": self.executor_cores,
            "driver-host": self.driver_host,
            "driver-bind-address": self.driver_bind_address,
            "python": self.python,
        }
        for key, value in for_clusters.items():
            if value and self.is_local:
                raise table.wrong((key,), f"has no meaning with master {shown('master', self.master)}: there the driver is all there is")
            if value and self.connect is not None:
                raise table.wrong((key,), _SERVERS_OWN)
        if self.master.startswith("k8s://") and _IMAGE not in self.conf:
            raise table.wrong(("master",), f'Kubernetes needs an image for its executors: "{_IMAGE}" = "…" in [spark.conf]')

    def resolved(self, environment: Mapping[str, str] = os.environ) -> SparkSettings:
        """Return the settings with each `${NAME}` replaced. Raises WrongSparkError, naming the key, if it is not set or its value is
        invalid."""
        patterns = {"master": _MASTER, "connect": _CONNECT, "driver_memory": _MEMORY, "executor_memory": _MEMORY}
        changed: dict[str, object] = {}
        try:
            for name in ("master", "connect", "driver_memory", "executor_memory", "driver_host", "driver_bind_address", "python"):
                raw = getattr(self, name)
                if raw is None:
                    continue
                key = f"[spark] {name.replace('_', '-')}"
                value = filled_in(raw, key, environment)
                if not re.fullmatch(patterns.get(name, r"\S+"), value):
                    raise WrongSparkError(f"{key}: {shown(key, raw)} is not possible once its variables are replaced")
                changed[name] = value
            changed["conf"] = {key: filled_in(value, f"[spark.conf] {key}", environment) for key, value in self.conf.items()}
        except StreamsConfigError as error:
            raise WrongSparkError(str(error)) from error
        return msgspec.structs.replace(self, **changed)


def local_memory(total: int | None = None) -> str:
    """Return the memory of a driver without executors, in Spark's notation: a quarter of `total` bytes, at least 1g and at most 4g.

    `total` is the machine's memory, or the limit of the control group if that is less. Python, the file cache and the instances need the
    rest.
    """
    quarter = (memory_of_machine() if total is None else total) // 4
    return f"{min(max(quarter, LEAST_LOCAL), MOST_LOCAL) >> 20}m"


def memory_of_machine(limits: tuple[Path, ...] | None = None) -> int:
    """Return the bytes that processes here may use in all: the machine's memory, or the limit of the control group (container) if that is
    less."""
    found = [psutil.virtual_memory().total]
    for path in (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")) if limits is None else limits:
        try:
            text = path.read_text().strip()
        except OSError:  # no control groups of this version
            continue
        if text.isdecimal():  # else "max": no limit
            found.append(int(text))
    return min(found)


def mebibytes(memory: str) -> int:
    """Convert Spark's notation: `512m` is 512, `2g` is 2048."""
    return int(memory[:-1]) * (1024 if memory[-1] in "gG" else 1)


def _or_variable(pattern: str) -> str:
    """Return a pattern that also allows values with a variable, which are checked when it is replaced."""
    return rf"{pattern}|.*\$\{{\w+\}}.*"


def _master(table: Table) -> str:
    master = table.optional_text("master", pattern=r".+", example="local[*]") or "local[*]"
    if not re.fullmatch(_or_variable(_MASTER), master):
        places = "this machine (local[*]), a standalone cluster (spark://host:7077), Kubernetes (k8s://https://host:6443)"
        raise table.wrong(
            ("master",), f'{shown("master", master)} is not possible: Spark runs on {places}; a Spark Connect server: connect = "sc://host"'
        )
    return master


def _text(table: Table, key: str, pattern: str, example: str) -> str | None:
    return table.optional_text(key, pattern=_or_variable(pattern), example=example)


def _conf(table: Table) -> dict[str, str]:
    conf: dict[str, str] = {}
    for key, value in table.scalars().items():
        if key in _OWN_KEYS:
            raise table.wrong((key,), f"is set by {_OWN_KEYS[key]!r} in [spark]")
        if not key.startswith("spark."):
            raise table.wrong((key,), 'is not a key of Spark: they begin with "spark."')
        conf[key] = str(value).lower() if isinstance(value, bool) else str(value)
    return conf
