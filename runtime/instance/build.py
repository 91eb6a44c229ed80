"""The fingerprint of an instance's code and configuration, by which an interrupted deploy skips instances that run the new code already.

It covers the files that the factory has imported (except Python's own and installed packages), Penstock's own files, the versions of all
installed packages, and the configuration as written. It does not cover values from the environment (`${NAME}`), texts that may be secret,
and modules that are first imported while the instance runs.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path

from penstock.runtime.model.secrets import shown

_PENSTOCK = Path(__file__).resolve().parents[1]


def build_of(config: Mapping[str, object], factory: str) -> str:
    """Return the fingerprint. Call it after the factory. Files that cannot be read count as absent."""
    digest = hashlib.sha256(factory.encode())
    for path in sorted({*_imported(), *_PENSTOCK.rglob("*.py")}):
        digest.update(str(path).encode())
        digest.update(_content(path))
    installed = sorted(f"{found.name} {found.version}" for found in importlib.metadata.distributions())
    digest.update(json.dumps([installed, {key: shown(key, value) for key, value in config.items()}], sort_keys=True).encode())
    return digest.hexdigest()[:16]


def _imported() -> Iterator[Path]:
    """Yield the files of the application's own modules that are imported."""
    installed = ("stdlib", "platstdlib", "purelib", "platlib")
    others = [Path(path).resolve() for name, path in sysconfig.get_paths().items() if name in installed]
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        path = Path(file).resolve() if isinstance(file, str) else None
        if path is not None and path.suffix == ".py" and not any(path.is_relative_to(other) for other in (*others, _PENSTOCK)):
            yield path


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
