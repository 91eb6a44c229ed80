"""State that is only on disk: counts are correct, and most entries are read ahead of their records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from penstock.runtime.stores.rocks import RocksBackend
from tests.support import Kafka
from tests.support.engine import count_topology, counts_become, running

KEYS = 20_000


def test_entries_are_read_ahead_of_their_records(
    broker: Kafka, topic: Callable[..., str], application_id: str, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, output = topic("in", partitions=2), topic("out", partitions=2)
    ahead, single = list[int](), list[bytes]()
    read_all, get = RocksBackend._read_all, RocksBackend.get

    def noted_all(self: RocksBackend, keys: Sequence[bytes]) -> list[bytes | None]:
        ahead.append(len(keys))
        return read_all(self, keys)

    def noted(self: RocksBackend, key: bytes) -> bytes | None:
        single.append(key)
        return get(self, key)

    monkeypatch.setattr(RocksBackend, "_read_all", noted_all)
    monkeypatch.setattr(RocksBackend, "get", noted)
    for count in (1, 2):  # the second time they are only on disk
        broker.produce(source, [(f"k{n}", "v") for n in range(KEYS)])
        with running(broker, count_topology(source, output, caching=False), application_id, state_dir):
            counts_become(broker, output, {f"k{n}": count for n in range(KEYS)})
        assert sum(ahead) + len(single) == (0 if count == 1 else KEYS)
    assert sum(ahead) > KEYS // 4  # except those before reading ahead was known to pay off
