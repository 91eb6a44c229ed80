"""Stateful Kafka streams in Python, run and repaired by Dagster, read by Spark.

    from penstock import StreamsBuilder, serdes           the engine, under Kafka Streams' names (`penstock.api` lists them)
    from penstock.testing import TopologyTestDriver       topologies in tests, without a broker
    from penstock.dagster import definitions              the control plane in a Dagster project
    from penstock.project import bootstrap_servers        what streams.toml declares, for programs of the project
    from penstock.spark import spark_session, write_seed  state as tables, and tables as state

The packages `runtime`, `orchestration`, `assets` and `sensors` are folders at the repository's top, linked here: one package on a machine,
so a project that has an `assets/` of its own meets no other.

Names are loaded when they are first used: the command line and Dagster's processes need only some of them, and Ctrl-C in a command's
first second should not end in a traceback out of an import.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.api import *  # noqa: F403

    __version__: str


def __getattr__(name: str) -> object:
    if name == "__version__":
        return _version()
    if name == "api" or (name.startswith("__") and name != "__all__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module("penstock.api"), name, _MISSING)
    if value is _MISSING:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def _version() -> str:
    import importlib.metadata

    try:
        return importlib.metadata.version("penstock")
    except importlib.metadata.PackageNotFoundError as error:
        raise AttributeError("penstock has no version here: it is imported from a folder, and not installed") from error


def __dir__() -> list[str]:
    return sorted({*globals(), "__version__", *importlib.import_module("penstock.api").__all__})


_MISSING = object()
