"""The embedded Kafka as tests start it: the same broker, formatted once."""

from __future__ import annotations

from typing import ClassVar

from penstock.orchestration.embedded.kafka import EmbeddedBroker


class QuickBroker(EmbeddedBroker):
    """A broker for tests. The first one of a process formats its storage; the others copy the result, which saves the start of a JVM."""

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
