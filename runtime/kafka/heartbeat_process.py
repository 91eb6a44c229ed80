"""Heartbeats of a worker: `python -m penstock.runtime.kafka.heartbeat_process`, started only by `heartbeats.py` (coordination.md, 5).

A process of its own, because it must say two things that the worker's cannot: that the worker's process has ended, which the system shows
at once by closing the pipe; and that the machine lives, although a long call of user code holds the interpreter.

It imports the Kafka client only, and ignores the signals that a service manager or a terminal sends to all processes of a service: it ends
after the worker's process does.

    standard input   one line of JSON (`Orders`), then one for each new login: [user, password]; `CLOSE` before the pipe closes if the
                     worker closes, nothing if its process ends
    standard output  a line for each new error of the broker: its code; `THROTTLED` with ms for a delay that a quota imposes,
                     at most once per minute, since the worker may not read for a while
    the topic        key: the id; value: the silence in ms that means nothing yet, in decimal digits, every `interval_ms`, or `ENDED`

Brokers enforce a quota by not reading from a connection for a while, seconds if it was exceeded by much, and say so in the answer before
(KIP-219). Heartbeats then stop, although nothing is wrong: so they announce a longer silence, and if the last one that arrived did not,
one more goes over a new connection, from which brokers always read one request.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass

from confluent_kafka import KafkaError, Message, Producer, ThrottleEvent

ENDED = b"ended"
CLOSE = b"."
THROTTLED = b"throttled:"
_QUOTA_SECONDS = 15.0
"""A little longer than the time over which brokers measure quotas by default."""
_REPORT_SECONDS = 1.0
"""Least time between two reports of delays."""
_EXPECTED = (KafkaError._MSG_TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._PURGE_QUEUE)
"""Errors while no broker answers: the worker's own clients report that."""


@dataclass(frozen=True, slots=True)
class Orders:
    """What to send. `parent`: the worker's process. `properties`: librdkafka's, with secrets, and so never on a command line."""

    id: str
    parent: int
    topic: str
    interval_ms: int
    silence_ms: int
    properties: Mapping[str, str | int | float | bool]


class _Sender:
    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._login: list[str] = []
        self._reported: set[int] = set()
        self._delay_ms = self._announced_ms = 0
        self._delayed_until = self._report_from = 0.0
        self._producer = self._open()

    def _open(self) -> Producer:
        quiet = {"log_level": 0, "linger.ms": 0, "acks": 1, "message.timeout.ms": max(self._orders.silence_ms, 1_000)}
        made = Producer({**self._orders.properties, **quiet, "throttle_cb": self._throttled})
        if self._login:
            made.set_sasl_credentials(*self._login)
        return made

    def heartbeat(self) -> None:
        """Send a heartbeat; a second one at once if brokers keep this connection waiting for longer than the last one announced."""
        if time.monotonic() > self._delayed_until:
            self._delay_ms = 0
        self._announced_ms = self._orders.silence_ms + 2 * self._delay_ms
        self.send(str(self._announced_ms).encode())
        if self._delay_ms + self._orders.interval_ms > self._announced_ms:
            self._announced_ms = self._orders.silence_ms + 2 * self._delay_ms
            self._producer.purge()
            self._producer = self._open()
            self.send(str(self._announced_ms).encode())

    def send(self, value: bytes) -> None:
        orders = self._orders
        try:
            self._producer.produce(orders.topic, value, orders.id, 0, self._delivered)
        except BufferError:  # thousands are waiting for a broker, and time out by themselves
            return
        self._producer.poll(0)

    def renew(self, login: bytes) -> None:
        """Take up a new login: [user, password]."""
        self._login = json.loads(login)
        self._producer.set_sasl_credentials(*self._login)

    def flush(self) -> None:
        self._producer.flush(self._orders.silence_ms / 1000)

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is not None and error.code() not in (*_EXPECTED, *self._reported):
            self._reported.add(error.code())
            print(error.code(), flush=True)

    def _throttled(self, event: ThrottleEvent) -> None:
        delay_ms = int(event.throttle_time * 1000)
        self._delay_ms = max(delay_ms, self._delay_ms)
        now = time.monotonic()
        self._delayed_until = now + _QUOTA_SECONDS
        if delay_ms and now >= self._report_from:
            self._report_from = now + _REPORT_SECONDS
            print(THROTTLED.decode() + str(delay_ms), flush=True)


def _line() -> bytes:
    """Return the next line of standard input, or `CLOSE`; nothing at its end."""
    line = b""
    while line != CLOSE and not line.endswith(b"\n"):
        if not (part := os.read(0, 1)):
            return b""
        line += part
    return line


def main() -> int:
    """Send heartbeats until the worker's process closes or ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if not (line := _line()):
        return 0  # it ended before it had a member to report
    orders = Orders(**json.loads(line))
    sender = _Sender(orders)
    # A process that the worker's has forked may hold the pipe open: then only the parent's number shows its end.
    while os.getppid() == orders.parent:
        sender.heartbeat()
        if select.select([0], [], [], orders.interval_ms / 1000)[0]:
            match said := _line():
                case b"":
                    break
                case _ if said == CLOSE:
                    return 0
                case _:
                    sender.renew(said)
    sender.send(ENDED)
    sender.flush()
    return 0


if __name__ == "__main__":
    os._exit(main())  # without closing the client, for which the worker's own close would wait
