"""The newest document for any number of viewers.

A viewer keeps the document that it was sent last, and is sent the difference to the newest one when it is ready for more. So a slow viewer
skips what is in between: nothing is queued for it, and it delays no other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import msgspec

from penstock.orchestration.board.difference import Document, difference

INTERVAL_SECONDS = 0.5
"""Interval at which a new document is made."""
BEAT_SECONDS = 1.0
"""A viewer is sent something at least this often, so that it notices a connection that hangs."""


class Publisher:
    """Makes documents while `run()` runs. For one event loop."""

    def __init__(self, make: Callable[[], Document], now_ms: Callable[[], int]) -> None:
        """`make` returns the newest document; it is called on another thread. `now_ms`: wall-clock time."""
        self._make = make
        self._now_ms = now_ms
        self._document: Document = {}
        self._changed = asyncio.Event()
        self._stopped = False
        self._last: tuple[Document, Document, bytes] | None = None

    async def run(self) -> None:
        """Make documents until the task is cancelled."""
        while True:
            document = await asyncio.to_thread(self._make)
            if document != self._document:
                self._document = document
                self._wake()
            await asyncio.sleep(INTERVAL_SECONDS)

    def stop(self) -> None:
        """End the streams of all viewers."""
        self._stopped = True
        self._wake()

    async def differences(self) -> AsyncIterator[bytes]:
        """Yield JSON, each `{"now": milliseconds, "patch": …}`: first the whole document, then what has changed since. Without changes for
        a while, `patch` is missing."""
        sent: Document = {}
        while not self._stopped:
            changed, document = self._changed, self._document
            patch = self._encoded(sent, document)
            sent = document
            yield b'{"now":%d%s}' % (self._now_ms(), b"" if patch == b"{}" else b',"patch":' + patch)
            if self._document is document and not self._stopped:
                try:
                    await asyncio.wait_for(changed.wait(), BEAT_SECONDS)
                except TimeoutError:
                    continue

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _encoded(self, sent: Document, document: Document) -> bytes:
        """Return the difference as JSON. Viewers that keep up ask for the same one, which is made once."""
        if self._last is None or self._last[0] is not sent or self._last[1] is not document:
            self._last = (sent, document, msgspec.json.encode(difference(sent, document)))
        return self._last[2]
