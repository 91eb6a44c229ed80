"""Restart of running instances when their code changes: `penstock dev --reload` starts this beside Dagster.

Each running instance has a successor: a process that has imported the engine already, and waits. After an edit the successor imports the
new code and checks it (`runtime/instance/precheck.py`) while the instance continues. If the code does not import, does not build a
topology, or does not fit the state, the problem is shown and the instances keep the code they have. Else the instance closes, and the
successor takes its place. Instances are replaced only if their fingerprint (`runtime/instance/build.py`) changes, so an edited test
restarts nothing. A successor checks once, since Python does not import a module again. An instance that has died, perhaps of the error
that the edit corrects, is started at once."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import penstock.runtime
from penstock.orchestration.database import ControlPlaneError
from penstock.orchestration.database.audit import this_user
from penstock.orchestration.declarations.applications import Application
from penstock.orchestration.declarations.project_paths import ProjectPaths
from penstock.orchestration.declarations.toml_table import WrongDeclarationError
from penstock.orchestration.instances.launcher import Launcher, LaunchError, Successor
from penstock.orchestration.instances.operations import STOP_SECONDS, Operations
from penstock.orchestration.kafka.observer import Observer
from penstock.runtime.model import logs
from penstock.runtime.model.errors import MissingExtraError, StreamsError
from penstock.runtime.model.extras import extra

Say = Callable[[str], None]

_POLL_MS = 1_000
"""Interval at which the end of the parent process, and starts of instances, are noticed."""
_ENGINE = Path(penstock.runtime.__file__).resolve().parent


class Reloader:
    """The successors of a project's running instances."""

    def __init__(self, paths: ProjectPaths, say: Say) -> None:
        self._launcher = Launcher(paths)
        self._say = say
        self._successors: dict[str, Successor] = {}
        self._problem = ""

    def prepare(self) -> None:
        """Start a successor for each running instance that has none, and discard those of stopped instances. One that has died is replaced
        at the next edit, since this is called each second. A problem is said once."""
        problem = ""
        try:
            running = {name for name in self._launcher.known() if self._launcher.running(name)}
            self._discard([name for name in self._successors if name not in running])
            for name in running - self._successors.keys():
                self._successors[name] = self._launcher.prepare(name)
        except LaunchError as error:
            problem = str(error)
        if problem and problem != self._problem:
            self._say(problem)
        self._problem = problem

    def close(self) -> None:
        """Discard all successors."""
        self._discard(list(self._successors))

    def reload(self) -> None:
        """Replace the running instances whose code or configuration has changed, and start those that have died. Whatever prevents that is
        said, not raised."""
        began = time.monotonic()
        self._problem = ""
        self._discard([name for name, successor in self._successors.items() if not successor.process.alive])
        self.prepare()  # instances that were started just now
        try:
            operations = Operations.find()
            with closing(operations.control_plane):
                for application in operations.applications.applications:
                    for name in (*self._reload(operations, application), *_revived(operations, application)):
                        self._say(f"{name} runs the new code, {time.monotonic() - began:.1f} s after the change")
        except (WrongDeclarationError, ControlPlaneError, LaunchError, StreamsError) as error:
            self._say(str(error))

    def _reload(self, operations: Operations, application: Application) -> list[str]:
        """Return the names of the instances that were replaced. Raises LaunchError, StreamsError."""
        launcher = operations.launcher
        successors = {name: self._successors.pop(name) for name in operations.instances(application) if name in self._successors}
        try:
            return self._replace(operations, launcher, application, successors) if successors else []
        finally:
            for successor in successors.values():  # left over: not needed, or not fit
                successor.discard()

    def _replace(self, operations: Operations, launcher: Launcher, application: Application, successors: dict[str, Successor]) -> list[str]:
        """Replace instances by these successors, and remove those that run from `successors`. An instance that does not close in time is
        left to supervision, and the others are replaced."""
        with ThreadPoolExecutor() as pool:
            running = pool.submit(_running_builds, application)
            found = dict(zip(successors, pool.map(partial(launcher.check, application), successors.values()), strict=True))
        if problems := list(dict.fromkeys(problem for findings in found.values() for problem in findings.problems)):
            listed = "".join(f"\n- {problem}" for problem in problems)
            self._say(f"the new code of {application.id} does not start; still on the previous code: {', '.join(successors)}{listed}")
            return []
        builds = running.result()
        changed = [name for name, findings in found.items() if builds.get(name) != findings.builds[name]]
        for name in changed:
            operations.mark_starting(name)
        with ThreadPoolExecutor() as pool:  # together: versions whose topologies differ may not run side by side
            closed = [name for name, done in zip(changed, pool.map(partial(self._closes, launcher), changed), strict=True) if done]
        for name in closed:
            process, _ = launcher.start(application, name, successors[name])
            if process == successors[name].process:
                del successors[name]
        for name in closed:
            operations.start(name, actor=this_user())
        return closed

    def _closes(self, launcher: Launcher, name: str) -> bool:
        try:
            launcher.stop(name, STOP_SECONDS)
        except LaunchError as error:
            self._say(f"{error}. Once it has ended, Dagster starts it with the new code")
            return False
        return True

    def _discard(self, names: Iterable[str]) -> None:
        for name in names:
            self._successors.pop(name).discard()


def _revived(operations: Operations, application: Application) -> Iterator[str]:
    """Start the wanted instances of this machine whose process has ended, and yield their names. Raises LaunchError, StreamsError."""
    for name in operations.instances(application):
        last = operations.launcher.last(name)
        if last is not None and not last.alive and operations.rows(name)[0].wanted:
            operations.start(name, actor=this_user())
            yield name


def _running_builds(application: Application) -> dict[str, str]:
    members = Observer(application.id, application.connection).observe().members.values()
    return {member.instance: member.build for member in members if not member.returns}


def _open_once() -> None:
    """Open the project, so that the first reload does not wait for what is imported and compiled at first use. What is wrong with the
    project is said by a reload."""
    with suppress(WrongDeclarationError, ControlPlaneError):
        operations = Operations.find()
        with closing(operations.control_plane):
            for application in operations.applications.applications:
                operations.instances(application)


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

    _open_once()
    _say(f"restarting instances when code in {paths.root} changes")
    code = Code(ignore_paths=[paths.home])
    with closing(Reloader(paths, _say)) as reloader:
        for changes in watch(paths.root, watch_filter=code, debounce=200, rust_timeout=_POLL_MS, yield_on_timeout=True):
            if os.getppid() != parent:
                break
            if any(Path(path).is_relative_to(_ENGINE) for _, path in changes):
                reloader.close()  # they have imported the engine as it was before
            if changes:
                reloader.reload()
            reloader.prepare()
    return 0


def _say(line: str) -> None:
    print(f"reload: {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
