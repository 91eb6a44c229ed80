"""Rule 8: a kill -9 at any moment loses no commit of a store, and never leaves data and offsets of different commits."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.chaos.store_writer import CHANGELOG, INPUT, KINDS, opened
from tests.support import ROOT

KILLS = 5


def run_and_kill(folder: Path, kind: str, chance: random.Random) -> int:
    """Starts the writer, kills it -9 at a random moment after its first commit; the last commit that it has printed."""
    command = [sys.executable, "-m", "tests.chaos.store_writer", str(folder), kind]
    reported: list[int] = []
    first = threading.Event()

    def listen() -> None:
        assert writer.stdout is not None
        for line in writer.stdout:
            if line.endswith("\n") and line.startswith("committed "):
                reported.append(int(line.split()[1]))
                first.set()

    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as writer:
        listener = threading.Thread(target=listen)
        listener.start()
        started = first.wait(30)
        time.sleep(chance.uniform(0, 0.15))  # the moment of the kill
        writer.kill()
        listener.join()
    assert started, "the writer made no commit"
    return reported[-1]


@pytest.mark.parametrize("kind", KINDS)
def test_rule_8_a_killed_writer_loses_no_commit(tmp_path: Path, kind: str) -> None:
    """On any kind of store: what is there after a kill is one commit, whole, with its offsets; the last one, or the one under way."""
    chance = random.Random(8)
    last = 0
    for _ in range(KILLS):
        reported = run_and_kill(tmp_path, kind, chance)
        assert reported > last
        store = opened(tmp_path, kind)
        try:
            kept = store.committed_offset(INPUT)
            assert kept is not None and reported <= kept <= reported + 1, "a commit that had returned was lost"
            assert store.committed_offset(CHANGELOG) == kept
            KINDS[kind].check(store.user_store, kept)
            if store.layout.kind != "custom":  # its metas are kept with the checkpoint
                assert store.get_meta("number") == str(kept).encode()
        finally:
            store.close()
        last = reported
