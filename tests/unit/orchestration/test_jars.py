"""The jars' lock and what is said when a download goes wrong. That the download works is seen by every test on the broker."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest

from penstock.orchestration.embedded import jars, java
from penstock.orchestration.embedded.jars import Jar, JarsError


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    java.java_home()  # found with the usual cache
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    return tmp_path


def bring(monkeypatch: pytest.MonkeyPatch, files: dict[str, bytes], status: int = 0, output: str = "") -> None:
    """In the place of Ivy: a program that puts these files where they are wanted."""

    def command(jar_set: str, work: Path, retrieved: Path, options: list[str]) -> list[str]:
        retrieved.mkdir(parents=True)
        for name, data in files.items():
            (retrieved / name).write_bytes(data)
        return ["sh", "-c", 'printf "%s" "$1"; exit "$2"', "sh", output, str(status)]

    monkeypatch.setattr(jars, "_ivy_command", command)


def lock(monkeypatch: pytest.MonkeyPatch, files: dict[str, bytes]) -> None:
    wanted = [Jar(hashlib.sha256(data).hexdigest(), len(data), name) for name, data in files.items()]
    monkeypatch.setattr(jars, "read_lock", lambda jar_set: wanted)


@pytest.mark.parametrize("jar_set", jars.JAR_SETS)
def test_rule_31_the_locks_are_complete_and_name_no_address(jar_set: str) -> None:
    locked = jars.read_lock(jar_set)
    assert len({jar.name for jar in locked}) == len(locked) >= 2
    assert all(len(jar.sha256) == 64 and jar.size > 0 and jar.name.endswith(".jar") for jar in locked)
    for path in (jars._LOCKS).iterdir():
        assert "://" not in path.read_text()


def test_what_was_downloaded_is_used_again(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    files = {"a-1.jar": b"a", "b-1.jar": b"b"}
    lock(monkeypatch, files)
    bring(monkeypatch, files)
    paths = jars.ensure_jars("kafka")
    assert [path.read_bytes() for path in paths] == [b"a", b"b"]
    bring(monkeypatch, {}, status=1)
    assert jars.ensure_jars("kafka") == paths


@pytest.mark.parametrize(
    ("brought", "message"),
    [
        ({"a-1.jar": b"changed"}, r"a-1\.jar is not the file that the lock names.*Nothing was installed"),
        ({}, r"did not bring a-1\.jar"),
        ({"a-1.jar": b"a", "evil.jar": b""}, r"does not name: evil\.jar"),
    ],
)
def test_rule_31_jars_that_are_not_the_locked_ones_are_not_used(
    monkeypatch: pytest.MonkeyPatch, cache: Path, brought: dict[str, bytes], message: str
) -> None:
    lock(monkeypatch, {"a-1.jar": b"a"})
    bring(monkeypatch, brought)
    with pytest.raises(JarsError, match=message):
        jars.ensure_jars("kafka")
    bring(monkeypatch, {"a-1.jar": b"a"})
    assert len(jars.ensure_jars("kafka")) == 1, "the next try starts afresh"


def test_a_download_that_fails_shows_the_end_of_its_output(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    lock(monkeypatch, {"a-1.jar": b"a"})
    bring(monkeypatch, {}, status=1, output="Server access error: no route to host")
    with pytest.raises(JarsError, match=r"is the network there(.|\n)*no route to host"):
        jars.ensure_jars("kafka")


def test_rule_31_a_certificate_that_java_does_not_trust_is_explained(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    lock(monkeypatch, {"a-1.jar": b"a"})
    monkeypatch.setattr(jars, "write_trust_store", lambda path: 0)  # Python trusts no certificate either
    bring(monkeypatch, {}, status=1, output="PKIX path building failed")
    with pytest.raises(JarsError, match=r"proxy(.|\n)*JAVA_TOOL_OPTIONS=.*trustStore"):
        jars.ensure_jars("kafka")


def test_java_reads_the_trust_store_that_is_made_of_pythons_authorities(tmp_path: Path) -> None:
    """A JVM that is given a store which it cannot read fails in each TLS connection; with a good one, in its first refused one."""
    store = tmp_path / "authorities.jks"
    if jars.write_trust_store(store) == 0:
        pytest.skip("this Python trusts no authority that it can list")
    keytool = [str(java.java_home() / "bin" / "java"), "-cp", ".", "sun.security.tools.keytool.Main"]
    done = subprocess.run(
        [*keytool, "-list", "-keystore", str(store), "-storepass", "changeit"], capture_output=True, text=True, timeout=60, check=False
    )
    assert "trustedCertEntry" in done.stdout, done.stdout + done.stderr
