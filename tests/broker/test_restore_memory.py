"""A restore of many small records stays within the memory budgets of the stores, and releases its memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path

from penstock.runtime.stores.budget import MIB
from tests.support import ROOT, Kafka

PARTITIONS, RECORDS, AT_ONCE = 4, 250_000, 50_000
BUDGETS = 3 * 16 * MIB
"""The block cache, the unwritten records, and the queue of the reader."""


def test_a_restore_of_many_small_records_stays_within_its_budgets(broker: Kafka, topic: Callable[..., str], tmp_path: Path) -> None:
    name = topic("changelog", partitions=PARTITIONS, config={"cleanup.policy": "compact"})
    for number, first in product(range(PARTITIONS), range(0, RECORDS, AT_ONCE)):
        broker.produce(name, ((b"u%08d" % key, b"12345678") for key in range(first, first + AT_ONCE)), partition=number)
    command = [sys.executable, "-m", "tests.broker.restore_memory", broker.bootstrap_servers, name, str(PARTITIONS), str(tmp_path)]
    ended = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=240)
    most, after, held = map(int, ended.stdout.split())
    assert held < 20 * MIB
    assert most < 3.2 * BUDGETS
    assert after < BUDGETS
