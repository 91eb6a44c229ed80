"""Restart of running instances when their code changes: `penstock dev --reload` starts this beside Dagster.

The new code is checked first, in a process of its own (`runtime/instance/precheck.py`): if it does not import, does not build a topology,
or does not fit the state, the problem is shown and the instances go on with the code they have. Instances are restarted only if their
fingerprint (`runtime/instance/build.py`) changes, so an edited test restarts nothing.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

from penstock.orchestration.database import ControlPlaneError
from penstock.orchestration.database.audit import this_user
from penstock.orchestration.declarations.applications import Application
from penstock.orchestration.declarations.project_paths import ProjectPaths
from penstock.orchestration.declarations.toml_table import WrongDeclarationError
from penstock.orchestration.instances.launcher import LaunchError
from penstock.orchestration.instances.operations import STOP_SECONDS, Operations
from penstock.orchestration.kafka.observer import Observer
from penstock.runtime.model import logs
from penstock.runtime.model.errors import MissingExtraError, StreamsError
from penstock.runtime.model.extras import extra

Say = Callable[[str], None]

_POLL_MS = 1_000
"""Interval at which the end of the parent process is noticed."""


def reload(say: Say) -> None:
    """Restart the running instances of the project whose code or configuration has changed. Whatever prevents that is said, not raised."""
    began = time.monotonic()
    try:
        operations = Operations.find()
        with closing(operations.control_plane):
            for application in operations.applications.applications:
                for name in _reload(operations, application, say):
                    say(f"{name} runs the new code, {time.monotonic() - began:.1f} s after the change")
    except (WrongDeclarationError, ControlPlaneError, LaunchError, StreamsError) as error:
        say(str(error))


def _reload(operations: Operations, application: Application, say: Say) -> list[str]:
    """Return the names of the instances that were restarted. Raises LaunchError, StreamsError."""
    launcher = operations.launcher
    names = [name for name in operations.instances(application) if launcher.running(name)]
    if not names:
        return []
    with ThreadPoolExecutor() as pool:
        running = pool.submit(_running_builds, application)
        findings = launcher.precheck(application, names)
    if findings.problems:
        listed = "".join(f"\n- {problem}" for problem in findings.problems)
        say(f"the new code of {application.id} does not start; still on the previous code: {', '.join(names)}{listed}")
        return []
    builds = running.result()
    changed = [name for name in names if builds.get(name) != findings.builds[name]]
    for name in changed:
        operations.mark_starting(name)
    with ThreadPoolExecutor() as pool:  # together: versions whose topologies differ may not run side by side
        list(pool.map(lambda name: launcher.stop(name, STOP_SECONDS), changed))
    for name in changed:
        launcher.start(application, name)
    for name in changed:
        operations.start(name, actor=this_user())
    return changed


def _running_builds(application: Application) -> dict[str, str]:
    members = Observer(application.id, application.bootstrap_servers).observe().members.values()
    return {member.instance: member.build for member in members if not member.returns}


def main() -> int:
    """Watch the project's folder until the parent process ends. Returns the exit status. Ctrl-C, which the parent gets too, is ignored: it
    would leave an instance stopped in the middle of a restart."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with extra("dagster", "penstock dev --reload"):
            from watchfiles import Change, DefaultFilter, watch
    except MissingExtraError as error:
        _say(str(error))
        return 1

    logs.configure(None, output=logs.Output.of(terminal=True, level=logging.WARNING))
    paths, parent = ProjectPaths.find(), os.getppid()
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"  # two edits within a second may differ in nothing that the cached bytecode is checked by

    class Code(DefaultFilter):
        """Python files of the project, and its declaration."""

        def __call__(self, change: Change, path: str) -> bool:
            return (path.endswith(".py") or path == str(paths.streams_toml)) and super().__call__(change, path)

    _say(f"restarting instances when code in {paths.root} changes")
    code = Code(ignore_paths=[paths.home])
    for changes in watch(paths.root, watch_filter=code, debounce=200, rust_timeout=_POLL_MS, yield_on_timeout=True):
        if os.getppid() != parent:
            return 0
        if changes:
            reload(_say)
    return 0


def _say(line: str) -> None:
    print(f"reload: {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
