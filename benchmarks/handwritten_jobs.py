"""Hand-written jobs of `workloads.py`: counts and sums per minute live in dicts over RocksDB.

With the cache, a commit writes each changed key once to the changelog, the output and RocksDB; without it, every update goes to both
topics. Table rows and waiting records are only in memory.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from pathlib import Path
from struct import Struct
from typing import cast

import msgspec
from confluent_kafka import Consumer, Message, TopicPartition
from rocksdict import Options, Rdict, WriteBatch

from benchmarks.workloads import JOIN_WITHIN_MS, LARGE_AMOUNT, WINDOW_MS, Enriched, Event, Pair, Profile, Run, Small

MOST_KEPT = 200_000
"""Number of values kept in memory per partition."""

Send = Callable[[str, bytes, bytes, int], None]
"""Topic, key, value, partition."""

_LONG, _DOUBLE = Struct(">q"), Struct(">d")
_event = msgspec.json.Decoder(Event).decode
_encode = msgspec.json.Encoder().encode


class Job:
    """One job on all partitions. `topics` are its inputs, `changelogs` are to be created."""

    def __init__(self, run: Run, partitions: list[int], send: Send) -> None:
        self._run, self._send, self._partitions = run, send, partitions
        self.topics = [run.input]
        self.changelogs: list[str] = []

    def prepare(self) -> None:
        """Prepare before the first record."""

    def take(self, topic: str, number: int, messages: list[Message]) -> None:
        """Process records of one partition, in order."""
        raise NotImplementedError

    def flush(self) -> None:
        """Before a commit: send pending records."""

    def store(self) -> None:
        """After a commit: write the changes."""

    def close(self) -> None:
        """Close files."""


class Stateless(Job):
    """Parses, filters, and writes smaller records."""

    def take(self, topic: str, number: int, messages: list[Message]) -> None:
        send, output = self._send, self._run.output
        for message in messages:
            event = _event(cast(bytes, message.value()))
            if event.amount > LARGE_AMOUNT:
                send(output, cast(bytes, message.key()), _encode(Small(event.user, event.amount)), number)


class Values:
    """Values of one partition: a dict over RocksDB."""

    def __init__(self, path: Path, packed: Struct) -> None:
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        self._database = Rdict(str(path), options)
        self._packed = packed
        self.known: dict[bytes, float] = {}
        self.changed: dict[bytes, float] = {}

    def load(self, keys: Iterable[bytes]) -> None:
        """Load these keys into memory."""
        missing: list[str | int | float | bytes | bool] = [key for key in keys if key not in self.known]
        if missing:
            for key, value in zip(missing, cast(list[bytes | None], self._database.get(missing)), strict=True):
                self.known[cast(bytes, key)] = self._packed.unpack(value)[0] if value else 0

    def commit(self) -> None:
        """Write the changes in one batch."""
        batch = WriteBatch(raw_mode=True)
        for key, value in self.changed.items():
            batch.put(key, self._packed.pack(value))
        self._database.write(batch)
        self.changed.clear()
        if len(self.known) > MOST_KEPT:
            self.known.clear()

    def close(self) -> None:
        self._database.close()


class _Aggregate(Job):
    """A number per key."""

    packed: Struct

    def __init__(self, run: Run, partitions: list[int], send: Send) -> None:
        super().__init__(run, partitions, send)
        self._changelog = f"{run.app}-values-changelog"
        self.changelogs = [self._changelog]
        self._values = {number: Values(Path(run.state) / str(number), self.packed) for number in partitions}

    def flush(self) -> None:
        send, cache, output = self._send, self._run.cache, self._run.output
        if not cache:
            return
        for number, values in self._values.items():
            for key, value in values.changed.items():
                raw = self.packed.pack(value)
                send(self._changelog, key, raw, number)
                send(output, key, raw, number)

    def store(self) -> None:
        for values in self._values.values():
            if values.changed:
                values.commit()

    def close(self) -> None:
        for values in self._values.values():
            values.close()

    def _add_each(self, number: int, added: Iterable[tuple[bytes, float]]) -> None:
        values, send, output, changelog = self._values[number], self._send, self._run.output, self._changelog
        known, changed, pack = values.known, values.changed, self.packed.pack
        for key, more in added:
            known[key] = changed[key] = value = known[key] + more
            raw = pack(value)
            send(changelog, key, raw, number)
            send(output, key, raw, number)


class Count(_Aggregate):
    """Records per key; values are not parsed. With the cache, a `Counter` counts a batch."""

    packed = _LONG

    def take(self, topic: str, number: int, messages: list[Message]) -> None:
        values = self._values[number]
        keys = [key for message in messages if (key := message.key()) is not None]
        if not self._run.cache:
            values.load(set(keys))
            self._add_each(number, ((key, 1) for key in keys))
            return
        added: Counter[bytes] = Counter(keys)
        values.load(added)
        known, changed = values.known, values.changed
        for key, more in added.items():
            known[key] = changed[key] = known[key] + more


class Window(_Aggregate):
    """Amounts per key and minute."""

    packed = _DOUBLE

    def take(self, topic: str, number: int, messages: list[Message]) -> None:
        values = self._values[number]
        added: list[tuple[bytes, float]] = []
        for message in messages:
            event = _event(cast(bytes, message.value()))
            added.append((b"%b@%d" % (cast(bytes, message.key()), event.ts // WINDOW_MS * WINDOW_MS), event.amount))
        values.load({key for key, _ in added})
        if not self._run.cache:
            self._add_each(number, added)
            return
        known, changed = values.known, values.changed
        for key, more in added:
            known[key] = changed[key] = known[key] + more


class TableJoin(Job):
    """Joins each record with the row of its key. The table is read completely before the first record; its topic is its changelog."""

    def prepare(self) -> None:
        profile = msgspec.json.Decoder(Profile).decode
        self._rows: dict[int, dict[bytes, Profile]] = {number: {} for number in self._partitions}
        reader = Consumer({"bootstrap.servers": self._run.bootstrap, "group.id": f"{self._run.app}-table", "enable.partition.eof": True})
        reader.assign([TopicPartition(self._run.table, number, 0) for number in self._partitions])
        left = set(self._partitions)
        while left:
            for message in reader.consume(10_000, 0.2):
                if message.error():
                    left.discard(message.partition() or 0)
                else:
                    self._rows[message.partition() or 0][cast(bytes, message.key())] = profile(cast(bytes, message.value()))
        reader.close()

    def take(self, topic: str, number: int, messages: list[Message]) -> None:
        rows, send, output = self._rows[number], self._send, self._run.output
        for message in messages:
            key = cast(bytes, message.key())
            row = rows.get(key)
            if row is not None:
                event = _event(cast(bytes, message.value()))
                send(output, key, _encode(Enriched(event.user, event.amount, row.country, row.tier)), number)


Waiting = dict[bytes, deque[tuple[int, Event]]]


class StreamJoin(Job):
    """Pairs of records of two topics within a time difference. Both sides are logged. The topics are read in any order, but each of them is
    in order itself: so records that one topic has passed can be dropped on the other side."""

    def __init__(self, run: Run, partitions: list[int], send: Send) -> None:
        super().__init__(run, partitions, send)
        self.topics = [run.input, run.table]
        self.changelogs = [f"{run.app}-left-changelog", f"{run.app}-right-changelog"]
        self._seen: dict[int, tuple[Waiting, Waiting]] = {number: ({}, {}) for number in partitions}

    def take(self, topic: str, number: int, messages: list[Message]) -> None:
        side = 0 if topic == self._run.input else 1
        send, output, changelog = self._send, self._run.output, self.changelogs[side]
        seen, other_side = self._seen[number][side], self._seen[number][1 - side]
        for message in messages:
            at, key, raw = message.timestamp()[1], cast(bytes, message.key()), cast(bytes, message.value())
            event = _event(raw)
            send(changelog, key + _LONG.pack(at), raw, number)
            mine = seen.get(key)
            if mine is None:
                mine = seen[key] = deque()
            mine.append((at, event))
            others = other_side.get(key)
            if others is None:
                continue
            while others and others[0][0] < at - JOIN_WITHIN_MS:
                others.popleft()
            for other_at, other in others:
                if other_at <= at + JOIN_WITHIN_MS:
                    one, two = (event, other) if side == 0 else (other, event)
                    send(output, key, _encode(Pair(one.user, one.amount, two.amount)), number)


JOBS: dict[str, type[Job]] = {"stateless": Stateless, "count": Count, "window": Window, "join": TableJoin, "stream-join": StreamJoin}
