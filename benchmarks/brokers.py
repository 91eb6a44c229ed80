"""Broker for a benchmark."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from penstock.orchestration.embedded.kafka import EmbeddedBroker
from penstock.orchestration.embedded.ports import free_port


@contextmanager
def broker_for(named: str | None, console: Console) -> Iterator[str]:
    """Yield the named broker, or one started in a folder that is removed at the end. Raises BrokerError."""
    if named is not None:
        yield named
        return
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        own = EmbeddedBroker(Path(folder), free_port())
        with console.status("starting Kafka"):
            own.start()
        try:
            yield own.bootstrap_servers
        finally:
            own.stop()
