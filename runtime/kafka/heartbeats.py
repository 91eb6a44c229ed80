"""The process that sends a worker's heartbeats, seen from the worker (`heartbeat_process.py`)."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import subprocess
import uuid
from collections.abc import Mapping
from contextlib import suppress

from confluent_kafka import KafkaError

from penstock.runtime.kafka import heartbeat_process
from penstock.runtime.kafka.failures import with_remedy
from penstock.runtime.kafka.heartbeat_process import CLOSE, THROTTLED, Orders
from penstock.runtime.kafka.logins import current, followed
from penstock.runtime.kafka.throttling import Throttling
from penstock.runtime.model import child_process
from penstock.runtime.model.clock import Clock

logger = logging.getLogger(__name__)

PER_SILENCE = 6
"""Heartbeats in the time after which their absence counts: one or two may be late."""
AGAIN_MS = 10_000
"""Least time between two starts of the process."""
_END_SECONDS = 2.0


class Heartbeats:
    """Starts the process, and starts it again if it ends. Used by the worker's thread only."""

    def __init__(
        self, properties: Mapping[str, str | int | float | bool], topic: str, silence_ms: int, clock: Clock, throttling: Throttling
    ) -> None:
        """Starts nothing. `silence_ms`: the silence after which others may take this worker for dead; 0: no heartbeats. `throttling` gets
        the delays that a quota imposes on them."""
        self._properties = properties
        self._topic = topic
        self._silence_ms = silence_ms
        self._clock = clock
        self._throttling = throttling
        self._process: subprocess.Popen[bytes] | None = None
        self._not_before_ms = 0
        self.id = ""
        """Key of the heartbeats; "" while none are sent."""
        followed(self, current(properties))

    def keep(self) -> str:
        """Start the process if it does not run, and return the id of its heartbeats: another one for each process. Log its errors."""
        if self._process is not None:
            self._log_errors(self._process)
            if self._process.poll() is not None:
                logger.warning("the process that sends heartbeats has ended, with status %d: another is started", self._process.returncode)
                self._forget()
        if self._process is None and self._silence_ms and self._clock.monotonic_ms() >= self._not_before_ms:
            self._not_before_ms = self._clock.monotonic_ms() + AGAIN_MS
            self._start()
        return self.id

    def _start(self) -> None:
        try:
            self._process = subprocess.Popen(
                child_process.command(heartbeat_process.__name__),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=child_process.environment(),
                process_group=0,
            )
            assert self._process.stdin is not None and self._process.stdout is not None
            os.set_blocking(self._process.stdout.fileno(), False)
            self.id = uuid.uuid4().hex[:16]
            interval_ms = max(1, self._silence_ms // PER_SILENCE)
            properties = current(self._properties)
            orders = Orders(self.id, os.getpid(), self._topic, interval_ms, self._silence_ms, properties)
            os.write(self._process.stdin.fileno(), json.dumps(dataclasses.asdict(orders)).encode() + b"\n")
        except OSError as error:
            logger.warning("no heartbeats are sent: %s. The end of this process is noticed after session.timeout.ms", error)
            self._forget()

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Pass a new login on to the process, if it runs (`logins.py`, whose thread calls this). Another one begins with it."""
        process = self._process
        if process is not None and process.stdin is not None and not process.stdin.closed:
            with suppress(BrokenPipeError):  # it has ended, which `keep` finds
                os.write(process.stdin.fileno(), json.dumps([username, password]).encode() + b"\n")

    def _log_errors(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        try:
            codes = os.read(process.stdout.fileno(), 4096)
        except BlockingIOError:
            return
        for code in codes.split():
            if code.startswith(THROTTLED):
                self._throttling.add(int(code.removeprefix(THROTTLED)))
                continue
            logger.warning(
                "heartbeats cannot be written, so the end of this process is noticed after session.timeout.ms: %s",
                with_remedy(KafkaError(int(code)), f"Write on topic {self._topic}"),
            )

    def _forget(self) -> None:
        process, self._process, self.id = self._process, None, ""
        if process is not None:
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def close(self) -> None:
        """End the process, which reports nothing: this worker has left."""
        process = self._process
        if process is None:
            return
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended before
            os.write(process.stdin.fileno(), CLOSE)
        self._forget()
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
