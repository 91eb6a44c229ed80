"""The fingerprint of an instance's code and configuration, by which an interrupted deploy skips instances that run the new code already;
and a copy of that code, with which a rehearsal runs the build that is in operation beside a new one.

It covers the files that the factory has imported (except Python's own and installed packages), Penstock's own files, the versions of all
installed packages, and the configuration as written. It does not cover values from the environment (`${NAME}`), texts that may be secret,
and modules that are first imported while the instance runs.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path

from penstock.runtime.model.secrets import shown

logger = logging.getLogger(__name__)

CODE = "code"
"""Folder of the copy, in the application's folder of the state directory: `code/<fingerprint>/<package>/<module>.py`."""
_PENSTOCK = Path(__file__).resolve().parents[1]
_contents: dict[str, dict[str, tuple[Path, bytes]]] = {}
"""By fingerprint: the application's own modules as they were read. Their files may have changed when the instance runs."""


def build_of(config: Mapping[str, object], factory: str) -> str:
    """Return the fingerprint. Call it after the factory. Files that cannot be read count as absent."""
    digest = hashlib.sha256(factory.encode())
    modules = {path: name for name, path in _imported()}
    contents: dict[str, tuple[Path, bytes]] = {}
    for path in sorted({*modules, *_PENSTOCK.rglob("*.py")}):
        data = _content(path)
        digest.update(str(path).encode())
        digest.update(data)
        if path in modules and modules[path].partition(".")[0] != __name__.partition(".")[0]:
            contents[modules[path]] = path, data
    digest.update(json.dumps([_installed(), {key: shown(key, value) for key, value in config.items()}], sort_keys=True).encode())
    build = digest.hexdigest()[:16]
    _contents[build] = contents
    return build


def keep_code(state: Path, build: str) -> None:
    """Write the application's own modules, as `build_of` has read them in this process, to `<state>/code/<build>`, in place of those of
    an earlier build. Data files beside them are not copied. A copy that cannot be written is logged: only rehearsals need it."""
    root = state / CODE
    target, partial = root / build, root / f".{build}"
    try:
        contents = _contents.pop(build, None)
        if contents is not None and not target.is_dir():
            shutil.rmtree(root, ignore_errors=True)
            partial.mkdir(parents=True)
            for name, (path, data) in contents.items():
                folder = partial.joinpath(*name.split("."))
                copy = folder / path.name if path.stem == "__init__" else folder.with_suffix(".py")
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(data)
            partial.rename(target)
    except OSError as error:
        logger.warning("no copy of the code is kept in %s, which rehearsals of a new version would run: %s", root, error)


def kept_code(state: Path) -> Path | None:
    """Return the folder of the copy; None if there is none."""
    return next(iter(sorted((state / CODE).glob("[!.]*"))), None)


def _imported() -> Iterator[tuple[str, Path]]:
    """Yield names and files of the application's own modules that are imported."""
    installed = ("stdlib", "platstdlib", "purelib", "platlib")
    others = [Path(path).resolve() for name, path in sysconfig.get_paths().items() if name in installed]
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        path = Path(file).resolve() if isinstance(file, str) else None
        if name == "__main__" or path is None or path.suffix != ".py":
            continue
        if not any(path.is_relative_to(other) for other in (*others, _PENSTOCK)):
            yield name, path


def _installed() -> list[str]:
    """Return names and versions of the installed packages, by the folders that describe them: their content takes 40 times as long to
    read."""
    return sorted(path.name for folder in sys.path for path in Path(folder).glob("*.dist-info"))


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
