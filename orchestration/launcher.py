"""Starts and stops the processes of instances. They are detached: they outlive Dagster, the terminal, and whoever started them.

One instance, one process, however often and from wherever it is started: a start holds the instance's lock file from the first look to the
moment at which the new process is written down; and a process that was started but not written down (the launcher was killed in
between) is found by its command line. What even this cannot see, a process on the same state directory started in some other way, the
engine itself refuses by its lock in the state directory (exit status 3).

A process is named by its id *and* the time it was created: ids are given out again. (Rejected: the instance as the child of a Dagster run.
Killing the run's step leaves an orphan, a retry starts a second copy, and Ctrl-C on the web server stops production.)
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec
import psutil
from filelock import FileLock, Timeout

from orchestration.applications import Application
from orchestration.places import Places

_LOCK_SECONDS = 30
_TAIL_BYTES = 16_384
_CLOCK_WOBBLE_SECONDS = 2.0  # creation is counted from the boot time, which moves when the clock is set
_PACKAGE_ROOT = Path(__file__).resolve().parent.parent


_children: list[subprocess.Popen[bytes]] = []
"""Processes that this very process started and that have not ended: a parent has to take note of the end, or a zombie stays."""


class LaunchError(Exception):
    """An instance could not be started or stopped; the message says why and where its log is."""


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """A process that was started for an instance. `created` is the kernel's time of its creation, seconds since the epoch."""

    instance: str
    pid: int
    created: float

    @property
    def key(self) -> str:
        """Names this process and no other one."""
        return f"{self.pid}-{self.created:.0f}"

    @property
    def alive(self) -> bool:
        """True while this very process runs (a zombie, which only waits for its parent, does not)."""
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.created) < _CLOCK_WOBBLE_SECONDS
            return same and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False


class Launcher:
    """The processes of one project on this machine. Holds no state of its own: any number of launchers may work at once."""

    def __init__(self, places: Places) -> None:
        self._places = places

    def last(self, instance: str) -> Process | None:
        """The process that was started last for the instance, alive or not."""
        try:
            return msgspec.json.decode(self._places.process_path(instance).read_bytes(), type=Process)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            raise LaunchError(f"{self._places.process_path(instance)}: {error}. Delete it if the instance is stopped.") from error

    def known(self) -> list[str]:
        """The instances that were ever started in this project, declared or no longer."""
        return sorted(path.name.removesuffix(".process.json") for path in (self._places.home / "instances").glob("*.process.json"))

    def running(self, instance: str) -> Process | None:
        """The process of the instance, if it is alive."""
        _children[:] = [child for child in _children if child.poll() is None]
        process = self.last(instance)
        return process if process is not None and process.alive else None

    def start(self, application: Application, instance: str) -> tuple[Process, bool]:
        """The process of the instance, and True if it had to be started. Returns as soon as the process exists.

        Raises LaunchError if folders cannot be written, or somebody else has been starting this instance for 30 s.
        """
        with self._alone_with(instance):
            process = self.running(instance) or self._find_unrecorded(instance)
            started = process is None
            if process is None:
                process = self._launch(application, instance)
            _write(self._places.process_path(instance), msgspec.json.encode(process))
            return process, started

    def seed(self, application: Application, instance: str, where: str, *, reset: bool = False) -> str:
        """Installs a seed (`runtime.seeds`) before anything runs, by a process that shows on this terminal how far it is; the files come to
        the state directory of `instance`. Returns what was done.

        Raises LaunchError with what is in the way; an interrupt ends it, and it goes on from there the next time.
        """
        places = self._places
        where = where if "://" in where else str(Path(where).absolute())
        command = [sys.executable, "-m", "runtime.seeds", "--config", str(places.settings_path(instance)), "--seed", where]
        with self._alone_with(instance):
            if (process := self.running(instance) or self._find_unrecorded(instance)) is not None:
                raise LaunchError(f"instance {instance} runs (process {process.pid}): a seed needs an application that is stopped")
            self._write_settings(application, instance)
            done = subprocess.run(
                [*command, *(["--reset-offsets"] if reset else [])],
                cwd=places.root,
                env=_environment(places.root),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                text=True,
                check=False,
            )
        if done.returncode != 0:
            raise LaunchError(f"{done.stdout.strip() or f'the seed {where} is not installed'} (the log: {places.log_path(instance)})")
        return done.stdout.strip()

    @contextmanager
    def _alone_with(self, instance: str) -> Iterator[None]:
        """With the instance's folders made and its lock held. Raises LaunchError, also for what the system refuses meanwhile."""
        places = self._places
        try:
            for path in (places.lock_path(instance), places.log_path(instance), places.state_dir(instance)):
                path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(places.lock_path(instance), timeout=_LOCK_SECONDS):
                yield
        except Timeout as error:
            raise LaunchError(f"instance {instance}: somebody else is starting it ({places.lock_path(instance)} is held)") from error
        except OSError as error:
            raise LaunchError(f"instance {instance} cannot be started: {error}") from error

    def stop(self, instance: str, timeout_s: float = 60.0, *, kill: bool = False) -> bool:
        """Asks the process to close cleanly (SIGTERM) and waits. False if none was running.

        With `kill`, a process that has not ended in time is killed; without, LaunchError is raised and it goes on closing.
        """
        process = self.running(instance)
        if process is None:
            return False
        _signal(process, signal.SIGTERM)
        if _wait_until_dead(process, timeout_s):
            return True
        if not kill:
            raise LaunchError(
                f"instance {instance} (process {process.pid}) is still closing after {timeout_s:g} s; "
                f"its log: {self._places.log_path(instance)}; to end it at once: penstock stop {instance} --kill"
            )
        _signal(process, signal.SIGKILL)
        if not _wait_until_dead(process, 10.0):
            raise LaunchError(f"instance {instance} (process {process.pid}) does not end, even when killed")
        return True

    def last_words(self, instance: str) -> str:
        """The last line of the instance's log that says something: the message of a JSON line, or the line itself."""
        try:
            with self._places.log_path(instance).open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
                lines = [line for line in log.read().decode(errors="replace").splitlines() if line.strip()]
        except OSError:
            return "no log was written"
        if not lines:
            return "its log is empty"
        try:
            return str(msgspec.json.decode(lines[-1].encode(), type=dict[str, object]).get("message", lines[-1]))
        except msgspec.DecodeError:
            return lines[-1]

    def _launch(self, application: Application, instance: str) -> Process:
        places = self._places
        self._write_settings(application, instance)
        with places.log_path(instance).open("ab") as log:  # what comes before logging is configured, and a crash of the interpreter
            child = subprocess.Popen(
                [sys.executable, "-m", "runtime.instance", "--config", str(places.settings_path(instance))],
                cwd=places.root,
                env=_environment(places.root),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        _children.append(child)
        try:
            return Process(instance=instance, pid=child.pid, created=psutil.Process(child.pid).create_time())
        except psutil.NoSuchProcess:
            raise LaunchError(f"instance {instance} ended at once: {self.last_words(instance)}") from None

    def _write_settings(self, application: Application, instance: str) -> None:
        """The file that says all that the process needs to know."""
        places = self._places
        settings = {
            "application": application.id,
            "instance": instance,
            "factory": application.factory,
            "config": {**application.config_of(instance), "state.dir": str(places.state_dir(instance))},
            "log_path": str(places.log_path(instance)),
        }
        _write(places.settings_path(instance), msgspec.json.format(msgspec.json.encode(settings)))

    def _find_unrecorded(self, instance: str) -> Process | None:
        settings = str(self._places.settings_path(instance))
        for process in psutil.process_iter(["cmdline", "create_time", "status"]):
            command = process.info["cmdline"] or []
            if "runtime.instance" in command and settings in command and process.info["status"] != psutil.STATUS_ZOMBIE:
                return Process(instance=instance, pid=process.pid, created=process.info["create_time"])
        return None


def _environment(root: Path) -> Mapping[str, str]:
    """The caller's, with the project's and this package's folders where Python looks for modules."""
    paths = [str(root), str(_PACKAGE_ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}


def _write(path: Path, data: bytes) -> None:
    """All of it or nothing: a reader never sees half a file."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:  # settings may hold passwords
        file.write(data)
    partial.replace(path)


def _signal(process: Process, number: signal.Signals) -> None:
    try:
        if process.alive:
            os.kill(process.pid, number)
    except ProcessLookupError:
        return  # it ended in between
    except PermissionError as error:
        raise LaunchError(f"instance {process.instance}: process {process.pid} belongs to another user") from error


def _wait_until_dead(process: Process, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while process.alive:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
