"""Rule 8: a kill -9 at any moment loses no commit of a store, and never leaves data and offsets of different commits."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.chaos.store_writer import COUNTS, INPUT, KEYS, WINDOWS, open_stores, window_of

KILLS = 24
ROOT = Path(__file__).parents[2]


def run_and_kill(folder: Path, chance: random.Random) -> int:
    """Starts the writer, kills it -9 at a random moment after its first commit; the last commit that it has told of."""
    command = [sys.executable, "-m", "tests.chaos.store_writer", str(folder)]
    told: list[int] = []
    first = threading.Event()

    def listen() -> None:
        assert writer.stdout is not None
        for line in writer.stdout:
            if line.endswith("\n") and line.startswith("committed "):
                told.append(int(line.split()[1]))
                first.set()

    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as writer:
        listener = threading.Thread(target=listen)
        listener.start()
        started = first.wait(30)
        time.sleep(chance.uniform(0, 0.15))  # the moment of the kill
        writer.kill()
        listener.join()
    assert started, "the writer made no commit"
    return told[-1]


@pytest.mark.timeout(180)
def test_rule_8_a_killed_writer_loses_no_commit(tmp_path: Path) -> None:
    chance = random.Random(8)
    last = 0
    for _ in range(KILLS):
        told = run_and_kill(tmp_path, chance)
        assert told > last
        counts, windows = open_stores(tmp_path)
        try:
            kept = counts.committed_offset(INPUT)
            assert kept is not None and told <= kept <= told + 1, "a commit that had returned was lost"
            assert counts.committed_offset(COUNTS) == kept and counts.get_meta("number") == str(kept).encode()
            content = dict(counts.query_view().all())
            assert content == {f"key-{n}": kept for n in range(KEYS)} | {f"only-{kept}": kept}
            kept_windows = windows.committed_offset(WINDOWS)
            assert kept_windows is not None and kept - 1 <= kept_windows <= kept
            assert windows.committed_offset(INPUT) == kept_windows and windows.get_meta("number") == str(kept_windows).encode()
            newest = {key.key: value for key, value in windows.query_view().all() if key.window.start == window_of(kept_windows)}
            assert newest == {f"key-{n}": kept_windows for n in range(KEYS)}
            starts = {key.window.start for key, _ in windows.query_view().all()}
            assert starts == {window_of(n) for n in range(max(1, kept_windows - 9), kept_windows + 1)}
        finally:
            counts.close()
            windows.close()
        last = told
