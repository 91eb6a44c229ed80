"""Java programs of this repository, compiled against a set of jars: kept per user, and anew where a source or a jar has changed."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from orchestration.embedded.cache import cache_dir
from orchestration.embedded.jars import JarsError, class_path
from orchestration.embedded.java import java_home

_RELEASE = "17"


def compiler() -> str | None:
    """The Java compiler of this machine, if it has one."""
    beside = java_home() / "bin" / "javac"
    return str(beside) if beside.exists() else shutil.which("javac")


def compiled(javac: str, sources: Sequence[Path], jar_set: str) -> Path:
    """The folder of the compiled classes. Raises JarsError with what the compiler says."""
    libraries = class_path(jar_set)
    content = b"\0".join([libraries.encode(), *(path.read_bytes() for path in sources)])
    folder = cache_dir() / "java" / hashlib.sha256(content).hexdigest()[:12]
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=folder.parent))  # somebody else may be compiling the same
    command = [javac, "--release", _RELEASE, "-nowarn", "-cp", libraries, "-d", str(partial), *map(str, sources)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise JarsError(f"{javac} does not compile {', '.join(path.name for path in sources)}:\n{done.stderr}")
    try:
        partial.rename(folder)
    except OSError:  # it was there first
        shutil.rmtree(partial)
    return folder
