"""The embedded Kafka as tests start it: the same broker, formatted once, of the version that PENSTOCK_TEST_KAFKA names (3.7, 3.9, 4.0)."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from penstock.orchestration.embedded import jars
from penstock.orchestration.embedded.cluster import EmbeddedCluster
from penstock.orchestration.embedded.kafka import EmbeddedBroker, Seat
from tests.support import wait_until

VERSION = os.environ.get("PENSTOCK_TEST_KAFKA", "")
JAR_SET = f"{jars.KAFKA}-{VERSION}" if VERSION else jars.KAFKA
"""Jars of the tests' brokers."""
if JAR_SET not in jars.JAR_SETS:
    raise ValueError(
        f"PENSTOCK_TEST_KAFKA={VERSION}: there are locks of {', '.join(jars.OLDER_KAFKA)}; unset, it is the embedded broker's version"
    )


class QuickBroker(EmbeddedBroker):
    """A broker for tests. The first one of a process formats its storage; the others copy the result, which saves the start of a JVM."""

    _jar_set = JAR_SET
    _formatted: ClassVar[dict[str, bytes]] = {}

    def _format(self, classes: str) -> None:
        folder = self.data_dir / "log"
        if self._formatted and not folder.exists():
            folder.mkdir()
            for name, content in self._formatted.items():
                (folder / name).write_bytes(content)
            return
        new = not folder.exists()
        super()._format(classes)
        if new:
            self._formatted.update({path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()})


class LastingBroker(QuickBroker):
    """A broker that many tests use and none stops. It is not fenced, and so keeps its partitions' leaders, although it has no processor for
    a while: when the processes of the slow tests begin side by side, for longer than the session of six seconds."""

    def _write_properties(self) -> None:
        super()._write_properties()
        with (self.data_dir / "server.properties").open("a") as properties:  # the last of equal names counts
            properties.write("broker.session.timeout.ms=60000\n")


class SeatedBroker(EmbeddedBroker):
    """A broker of a cluster of the tests."""

    _jar_set = JAR_SET


class QuickCluster(EmbeddedCluster):
    """Several brokers of the version that the tests are run with."""

    def _broker(self, data_dir: Path, port: int, seat: Seat) -> EmbeddedBroker:
        return SeatedBroker(data_dir, port, seat)


def kill(broker: EmbeddedBroker) -> None:
    """Kill a broker (kill -9) and wait for its end."""
    status = broker.status()
    assert status is not None
    os.kill(status.pid, signal.SIGKILL)
    wait_until(lambda: broker.status() is None, what="the end of the killed broker")


@contextmanager
def frozen(broker: EmbeddedBroker) -> Iterator[None]:
    """Suspend a broker (SIGSTOP) for the duration of the block."""
    status = broker.status()
    assert status is not None
    os.kill(status.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(status.pid, signal.SIGCONT)
