"""The command `penstock`, from outside."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

SLOW = """
import signal, sys, time
class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "orchestration.cli":
            print("loading", flush=True)
            time.sleep(30)
sys.meta_path.insert(0, Slow())
from orchestration.__main__ import main
main()
"""


def test_ctrl_c_while_the_command_loads_ends_it_without_a_traceback() -> None:
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-c", SLOW]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "loading\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=10)
    assert process.returncode == -signal.SIGINT
    assert errors == ""
