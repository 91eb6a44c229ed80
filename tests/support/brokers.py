"""The embedded Kafka as tests start it: the same broker, formatted and configured for less waiting."""

from __future__ import annotations

from typing import ClassVar

from penstock.orchestration.embedded.kafka import EmbeddedBroker

_PROPERTIES = """\
# Every ten seconds by default: tests of expired transactions would wait that long.
transaction.abort.timed.out.transaction.cleanup.interval.ms=1000
"""


class QuickBroker(EmbeddedBroker):
    """A broker for tests. The first one of a process formats its storage; the others copy the result, which saves the start of a JVM."""

    _formatted: ClassVar[dict[str, bytes]] = {}

    def _write_properties(self) -> None:
        super()._write_properties()
        with (self.data_dir / "server.properties").open("a") as properties:
            properties.write(_PROPERTIES)

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
