"""The code that travels: a zip of this project's packages, and of the user's, for Python processes that have them not.

Executors of a cluster, and a server of Spark Connect, run the state source and the serdes in Pythons of their own. Spark hands them what
`--py-files` names. The zip is made of the packages as this process finds them, so what runs there is what runs here, wherever it was
installed from; it lies in the user's cache under a name that its content gives, so it is made once per change.

What is compiled cannot travel in a zip (RocksDB, Arrow, the Kafka client): the executors' Python must have that installed
(`assets.spark.executors` looks). (Rejected: to zip this environment whole, as venv-pack does: hundreds of megabytes per session, of which
the interpreter and the compiled parts must fit the executors' system anyway.)
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from orchestration.embedded.cache import cache_dir
from orchestration.spark_settings import WrongSparkError

OWN_PACKAGES = ("runtime", "orchestration", "assets")
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the zip's bytes follow from its content alone


def code_archive(packages: Iterable[str] = ()) -> Path:
    """A zip of the project's packages and of these top-level modules. Raises WrongSparkError for a module that is not there."""
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
    """The Python files of these modules, with their names in the zip."""
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
            for path in sorted(folder.rglob("*.py")):
                yield str(Path(package) / path.relative_to(folder)), path
