"""Wait of a process that is prepared to replace a running instance: `python -m penstock.runtime.instance --config FILE --successor`.

The process has imported the engine, and reads lines from standard input:

- the content of FILE as one line of JSON: it imports the factory and checks whether the instance would start with these settings
  (`runtime/instance/precheck.py`), and answers with one line, `Findings` as JSON. It opens no state and joins no group;
- `RUN`: it becomes the instance, with the code that it has checked, and the topology that the factory returned for the check.

It ends when standard input ends. Meanwhile the user's code sees an empty standard input, and what it prints goes to standard error.
"""

from __future__ import annotations

import os

import msgspec

from penstock.runtime.instance.precheck import Findings, check_settings
from penstock.runtime.instance.settings import InstanceSettings
from penstock.runtime.topology.factory import prepare_topology

SUCCESSOR = "--successor"
RUN = b"run\n"


def await_turn() -> str | None:
    """Answer checks until the command to run. Return the fingerprint of the code that was checked, empty if none was; None if
    standard input has ended instead."""
    build = ""
    with os.fdopen(os.dup(0), "rb") as commands, os.fdopen(os.dup(1), "wb") as answers:
        empty = os.open(os.devnull, os.O_RDONLY)
        os.dup2(empty, 0)
        os.close(empty)
        os.dup2(2, 1)
        for line in commands:
            if line == RUN:
                return build
            settings = msgspec.json.decode(line, type=InstanceSettings)
            found = check_settings(Findings(problems=[]), [settings], prepare_topology)
            build = found.builds.get(settings.instance, "")
            answers.write(msgspec.json.encode(found) + b"\n")
            answers.flush()
    return None
