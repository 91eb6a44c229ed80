"""Heartbeats of a worker: `python -m penstock.runtime.kafka.heartbeat_process`, started only by `heartbeats.py` (coordination.md, 5).

A process of its own, because it must say two things that the worker's cannot: that the worker's process has ended, which the system shows
at once by closing the pipe; and that the machine lives, although a long call of user code holds the interpreter.

It imports the Kafka client only, and ignores the signals that a service manager or a terminal sends to all processes of a service: it ends
after the worker's process does.

    standard input   one line of JSON (`Orders`), then one for each new login: [user, password]; `CLOSE` before the pipe closes if the
                     worker closes, nothing if its process ends
    standard output  a line for each new error of the broker: its code
    the topic        key: the id; value: `silence_ms` in decimal digits every `interval_ms`, or `ENDED`
"""

from __future__ import annotations

import json
import os
import select
import signal
from collections.abc import Mapping
from dataclasses import dataclass

from confluent_kafka import KafkaError, Message, Producer

ENDED = b"ended"
CLOSE = b"."
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
        quiet = {"log_level": 0, "linger.ms": 0, "acks": 1, "message.timeout.ms": max(orders.silence_ms, 1_000)}
        self._producer = Producer({**orders.properties, **quiet})
        self._reported: set[int] = set()

    def send(self, value: bytes) -> None:
        orders = self._orders
        try:
            self._producer.produce(orders.topic, value, orders.id, 0, self._delivered)
        except BufferError:  # thousands are waiting for a broker, and time out by themselves
            return
        self._producer.poll(0)

    def renew(self, login: bytes) -> None:
        """Take up a new login: [user, password]."""
        self._producer.set_sasl_credentials(*json.loads(login))

    def flush(self) -> None:
        self._producer.flush(self._orders.silence_ms / 1000)

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is not None and error.code() not in (*_EXPECTED, *self._reported):
            self._reported.add(error.code())
            print(error.code(), flush=True)


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
    sender, alive = _Sender(orders), str(orders.silence_ms).encode()
    # A process that the worker's has forked may hold the pipe open: then only the parent's number shows its end.
    while os.getppid() == orders.parent:
        sender.send(alive)
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
