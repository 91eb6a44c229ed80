"""A thousand stores in one process share one block cache and one budget of write buffers; they multiply neither."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from penstock.runtime.stores.budget import MIB
from tests.chaos.many_stores import BLOCK_CACHE, BUFFERS_AT_MOST, EACH, ENTRIES, ROUNDS, SOFT_LIMIT, STORES, VALUE
from tests.support import ROOT

PER_STORE = 0.7 * MIB
"""What an open store may take besides: measured 0.4. Three families' write buffers with their filters would be 2.8."""


def test_a_thousand_stores_stay_within_one_budget(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.chaos.many_stores", str(tmp_path)]
    found = json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=240).stdout)
    written = STORES * (1 + (ROUNDS - 1) / EACH) * ENTRIES * len(VALUE)
    assert written > 2 * BLOCK_CACHE
    assert found["opened"] < STORES * PER_STORE
    assert found["grown"] < BLOCK_CACHE + STORES * PER_STORE
    assert found["buffers"] < BUFFERS_AT_MOST
    assert found["threads"] < 16
    assert found["files"] > SOFT_LIMIT, "the limit of open files was raised"
    assert found["files"] < STORES * 16
