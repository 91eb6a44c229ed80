"""Compiler of this repository's Java programs against a set of jars; cached per user until a source or jar changes."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from penstock.orchestration.embedded.cache import cache_dir
from penstock.orchestration.embedded.jars import JarsError, class_path
from penstock.orchestration.embedded.java import java_home

_RELEASE = "17"


def compiler() -> str | None:
    """Return the machine's Java compiler, if it has one."""
    beside = java_home() / "bin" / "javac"
    return str(beside) if beside.exists() else shutil.which("javac")


def compiled(javac: str, sources: Sequence[Path], jar_set: str) -> Path:
    """Return the folder of the compiled classes. Raises JarsError with the compiler's output."""
    libraries = class_path(jar_set)
    content = b"\0".join([libraries.encode(), *(path.read_bytes() for path in sources)])
    folder = cache_dir() / "java" / hashlib.sha256(content).hexdigest()[:12]
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=folder.parent))  # another process may be compiling the same
    command = [javac, "--release", _RELEASE, "-nowarn", "-cp", libraries, "-d", str(partial), *map(str, sources)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise JarsError(f"{javac} does not compile {', '.join(path.name for path in sources)}:\n{done.stderr}")
    try:
        partial.rename(folder)
    except OSError:  # another process was first
        shutil.rmtree(partial)
    return folder
