"""Zip of this project's packages, and of the user's, for Spark's Python processes on machines without them.

The executors of a cluster and a Spark Connect server run the state source and the serdes in their own Python processes. Spark sends them
the files in `--py-files`. The zip contains the packages as this process imports them, so the executors run the same code, wherever it was
installed from. It is kept in the user's cache under a digest of its content, so it is built once per change.

Compiled packages (RocksDB, Arrow, the Kafka client) do not work from a zip: the executors' Python must have them installed
(`executors` checks it). (Rejected: a zip of the whole environment, as venv-pack builds: hundreds of megabytes per session, whose
interpreter and compiled parts must fit the executors' system anyway.)
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from penstock.orchestration.declarations.spark_settings import WrongSparkError
from penstock.orchestration.embedded.cache import cache_dir

OWN_PACKAGES = ("penstock",)
_EPOCH = (1980, 1, 1, 0, 0, 0)  # fixed, so that the zip's bytes depend on its content alone


def code_archive(packages: Iterable[str] = ()) -> Path:
    """Return a zip of the project's packages and of these top-level modules. Raises WrongSparkError for an unknown module."""
    files = {name: path.read_bytes() for name, path in _sources((*OWN_PACKAGES, *packages))}
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(f"{name}\0{len(files[name])}\0".encode())
        digest.update(files[name])
    archive = cache_dir() / "spark" / f"penstock-{digest.hexdigest()[:12]}.zip"
    if not archive.exists():
        archive.parent.mkdir(parents=True, exist_ok=True)
        partial = archive.with_suffix(f".{os.getpid()}")
        with zipfile.ZipFile(partial, "w") as written:
            for name in sorted(files):
                written.writestr(zipfile.ZipInfo(name, _EPOCH), files[name], zipfile.ZIP_DEFLATED)
        partial.replace(archive)
    return archive


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
