"""Kafka Streams for the tests of this folder; they are skipped where there is no compiler for Java."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.orchestration.embedded.jars import compiler
from tests.differential.java_streams import JavaStreams, java_streams


@pytest.fixture(scope="session")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaStreams]:
    """Kafka Streams in a JVM, for all tests."""
    javac = compiler()
    if javac is None:
        pytest.skip("there is no JDK on this machine (javac): Kafka Streams itself cannot be asked")
    with java_streams(javac, tmp_path_factory.mktemp("java")) as running:
        yield running
