"""The clocks of this machine and of the brokers, and whether brokers slow this client down.

No request asks a broker for its time. It shows in the coordination topic, whose records carry the broker's time, beside the time of the
member that wrote them.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass

from penstock.orchestration.doctor.finding import Finding, Outcome
from penstock.runtime.coordination.records import MEMBER, SILENT_MS, Member, decode
from penstock.runtime.coordination.topics import coordination_topic
from penstock.runtime.kafka.clients import QUIET
from penstock.runtime.kafka.connection import Connection
from penstock.runtime.kafka.log_reader import LogReader
from penstock.runtime.kafka.throttling import quotas_shown
from penstock.runtime.model.errors import StreamsError
from penstock.runtime.model.ids import NextOffset, TopicPartition

_SECONDS = 10.0
_READ = 1_000
"""Number of offsets at the end of the coordination topic in which heartbeats of this machine are looked for."""
_WRONG_MS = 3_600_000
"""Brokers refuse records an hour ahead of their own clock."""
_WARN_MS = SILENT_MS // 3
"""Members count as silent after SILENT_MS by the clock of whoever looks."""


@dataclass(slots=True)
class Read:
    """`skews`: the brokers' time less this machine's, and the delay of the write, in ms, of each heartbeat. `ahead`: by how much the newest
    record is in this machine's future. `throttled_s`: the longest delay that a broker has imposed on a fetch."""

    skews: list[int]
    ahead: int = 0
    throttled_s: float = 0.0


def clocks_and_quotas(application: str, properties: dict[str, str | int | float | bool], end: int) -> Iterator[Finding]:
    """Yield a finding on the clocks, and one on quotas, from the end of the application's coordination topic, which exists."""
    try:
        read = _read(application, properties, end)
    except StreamsError as error:
        yield Finding("clock", Outcome.UNKNOWN, f"the brokers' clock: {error}")
        return
    yield of_clock(read)
    yield of_quota(read, Connection.of(properties))


def _read(application: str, properties: dict[str, str | int | float | bool], end: int) -> Read:
    """Read the last records. Raises StreamsError."""
    found, partition, until = Read([]), TopicPartition(coordination_topic(application), 0), time.monotonic() + _SECONDS

    def throttled(event: object) -> None:
        found.throttled_s = max(found.throttled_s, float(getattr(event, "throttle_time", 0.0)))

    reader = LogReader({**properties, **QUIET, "throttle_cb": throttled}, "penstock doctor")
    here = socket.gethostname()
    try:
        reader.assign(partition, NextOffset(max(0, end - _READ)))
        while time.monotonic() < until:
            poll = reader.poll(1.0)
            for message in poll.runs.get(partition, ()):
                _, written_ms = message.timestamp()
                found.ahead = max(found.ahead, written_ms - time.time_ns() // 1_000_000)
                record = decode(message.key(), message.value()) if (message.key() or b"").startswith(MEMBER.encode()) else None
                if isinstance(record, Member) and record.host == here:
                    found.skews.append(written_ms - record.heartbeat_ms)
            if partition in poll.ends or partition in poll.out_of_range:
                return found
        raise StreamsError(f"{partition} was not read within {_SECONDS:.0f} s")
    finally:
        reader.close()


def of_clock(read: Read) -> Finding:
    skew = min(read.skews, key=abs) if read.skews else read.ahead
    if not read.skews and not read.ahead:
        text = "the brokers' clock shows in heartbeats, and none of this machine is on the coordination topic"
        return Finding("clock", Outcome.UNKNOWN, text, "run it again while an instance runs here; or compare `date` on both")
    where = "ahead of" if skew > 0 else "behind"
    text = f"the brokers' clock is {abs(skew) / 1000:.1f} s {where} this machine's"
    if abs(skew) < _WARN_MS:
        return Finding("clock", Outcome.OK, text)
    outcome = Outcome.WRONG if abs(skew) >= _WRONG_MS else Outcome.WARNING
    return Finding(
        "clock", outcome, text, "synchronise the clocks (NTP): brokers refuse records from the future, and instances look silent"
    )


def of_quota(read: Read, connection: Connection) -> Finding:
    if read.throttled_s > 0:
        text = f"brokers delay this client by up to {read.throttled_s:.1f} s per fetch: its quota is used up"
        return Finding("quotas", Outcome.WARNING, text, quotas_shown(connection))
    text = "brokers do not delay this client now; quotas themselves are shown by kafka-configs alone"
    return Finding("quotas", Outcome.OK, text)
