"""Launcher of the instances' processes. They are detached: they outlive Dagster, the terminal, and the process that started them.

There is one process per instance, however often it is started. A start holds the instance's lock file until the new process is recorded. A
process that was not recorded, because the launcher was killed in between, is found by its command line. If an instance was started in some
other way on the same state directory, the engine refuses to start, because it locks that directory (exit status 3).

A process is identified by its id *and* its creation time, because ids are reused. (Rejected: the instance as the child of a Dagster run.
Killing the run's step leaves an orphan, a retry starts a second copy, and Ctrl-C on the webserver stops production.)
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import psutil
from filelock import FileLock, Timeout

import penstock
from penstock.orchestration.declarations.applications import Application
from penstock.orchestration.declarations.errors import ExpectedError
from penstock.orchestration.declarations.project_paths import ProjectPaths
from penstock.orchestration.instances.kernel_log import killed_for_memory
from penstock.runtime.instance.precheck import Findings
from penstock.runtime.instance.settings import ExitStatus, exit_path
from penstock.runtime.instance.successor import RUN, SUCCESSOR

_LOCK_SECONDS = 30
_CHECK_SECONDS = 300.0
_TAIL_BYTES = 16_384
CLOCK_WOBBLE_SECONDS = 2.0  # creation times are relative to the boot time, which changes when the clock is set
_PACKAGE_ROOT = Path(penstock.__file__).resolve().parents[1]  # the clone, or site-packages


_children: list[subprocess.Popen[bytes]] = []
"""Children of this process: they stay zombies until their parent waits for them."""
_BY_ITSELF = "with exit status"
"""Beginning of `end_of` for a process that no signal has ended."""
_CRASH = "Fatal Python error: "
_STACK = ("  ", "Stack ", "Current thread ", "Thread ", "Extension modules: ")
_SILENT_SECONDS = 300.0
"""A process may be silent for so long before its end: one that swaps, or that reaches no broker."""
_CRASH_LINES = 200
"""Number of lines at the end of a log in which a crash is looked for: `faulthandler` writes up to 100 of the stack."""


class LaunchError(ExpectedError):
    """An instance could not be started or stopped; the message says why and where its log is."""


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """Process started for an instance. `created` is its creation time according to the kernel, in seconds since the epoch."""

    instance: str
    pid: int
    created: float

    @property
    def key(self) -> str:
        """Identity of this process."""
        return f"{self.pid}-{self.created:.0f}"

    @property
    def alive(self) -> bool:
        """True while this process runs, excluding zombies and other processes with the same id."""
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.created) < CLOCK_WOBBLE_SECONDS
            return same and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False


class Successor:
    """A process that is prepared to replace the running one of an instance (`runtime/instance/successor.py`)."""

    def __init__(self, child: subprocess.Popen[bytes], process: Process) -> None:
        assert child.stdin is not None and child.stdout is not None  # pipes
        self.process = process
        self._commands, self._answers = child.stdin, child.stdout

    def send(self, line: bytes) -> None:
        """Send a line, unless the process has ended."""
        with suppress(BrokenPipeError):
            self._commands.write(line)
            self._commands.flush()

    def answer(self, timeout_s: float) -> bytes | None:
        """Return the next line that it answers, empty if it has ended; None if there is none in time."""
        with selectors.DefaultSelector() as selector:  # not select.select, which refuses file descriptors from 1024 upwards
            selector.register(self._answers, selectors.EVENT_READ)
            return self._answers.readline() if selector.select(timeout_s) else None

    def run(self) -> None:
        """Let it become the instance."""
        self.send(RUN)
        self._close()

    def discard(self) -> None:
        """End it, also if the user's code hangs in it."""
        _signal(self.process, signal.SIGKILL)
        self._close()

    def _close(self) -> None:
        with suppress(BrokenPipeError):
            self._commands.close()
        self._answers.close()


class Launcher:
    """The processes of one project on this machine. Stateless: any number of launchers may run concurrently."""

    def __init__(self, paths: ProjectPaths) -> None:
        self._paths = paths

    def last(self, instance: str) -> Process | None:
        """Return the process that was started last for the instance, alive or not."""
        try:
            return msgspec.json.decode(self._paths.process_path(instance).read_bytes(), type=Process)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            raise LaunchError(f"{self._paths.process_path(instance)}: {error}. Delete it if the instance is stopped.") from error

    def known(self) -> list[str]:
        """Return the names of all instances ever started in this project, declared or not."""
        return sorted(path.name.removesuffix(".process.json") for path in (self._paths.home / "instances").glob("*.process.json"))

    def running(self, instance: str) -> Process | None:
        """Return the process of the instance, if it is alive."""
        for child in _children:
            child.poll()
        process = self.last(instance)
        return process if process is not None and process.alive else None

    def start(self, application: Application, instance: str, successor: Successor | None = None) -> tuple[Process, bool]:
        """Return the process of the instance, and True if this call started it. Returns as soon as the process exists. With a `successor`,
        that process becomes the instance, unless one runs.

        Raises LaunchError if folders cannot be written, or another process has been starting this instance for 30 s.
        """
        with self._alone_with(instance):
            process = self.running(instance) or self._find_unrecorded(instance)
            started = process is None
            if process is None:
                self._write_settings(application, instance)
                process = self._process_of(instance, self._spawn(instance)) if successor is None else successor.process
            _write(self._paths.process_path(instance), msgspec.json.encode(process))
            if started and successor is not None:  # recorded before: its command line is not that of an instance
                successor.run()
            return process, started

    def prepare(self, instance: str) -> Successor:
        """Start a process that may replace the running one of this instance. It imports the engine, and waits. Raises LaunchError."""
        try:
            child = self._spawn(instance, SUCCESSOR, commands=subprocess.PIPE)
        except OSError as error:
            raise LaunchError(f"a successor of instance {instance} cannot be started: {error}") from error
        return Successor(child, self._process_of(instance, child))

    def check(self, application: Application, successor: Successor) -> Findings:
        """Check in the successor whether it would start with the current code and configuration. Raises LaunchError without an answer."""
        settings = msgspec.json.encode(msgspec.json.decode(self._settings(application, successor.process.instance)))
        successor.send(settings + b"\n")
        answer = successor.answer(_CHECK_SECONDS)
        if answer is None:
            raise LaunchError(f"{application.factory} was not checked within {_CHECK_SECONDS:.0f} s: does it wait?")
        try:
            return msgspec.json.decode(answer, type=Findings)
        except msgspec.DecodeError as error:
            name = successor.process.instance
            raise LaunchError(
                f"{application.factory} cannot be checked: {self.last_words(name)} (the log: {self._paths.log_path(name)})"
            ) from error

    def seed(self, application: Application, instance: str, where: str, *, reset: bool = False) -> str:
        """Install a seed before anything runs, in a process that shows its progress on this terminal. Its files are written to the state
        directory of `instance`. Return a summary.

        Raises LaunchError with the obstacle. If interrupted, the installation resumes at the next call.
        """
        paths = self._paths
        where = where if "://" in where else str(Path(where).absolute())
        command = [sys.executable, "-m", "penstock.runtime.instance.seed", "--config", str(paths.settings_path(instance)), "--seed", where]
        with self._alone_with(instance):
            if (process := self.running(instance) or self._find_unrecorded(instance)) is not None:
                raise LaunchError(f"instance {instance} runs (process {process.pid}): a seed needs an application that is stopped")
            self._write_settings(application, instance)
            done = subprocess.run(
                [*command, *(["--reset-offsets"] if reset else [])],
                cwd=paths.root,
                env=environment(paths.root),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                text=True,
                check=False,
            )
        if done.returncode != 0:
            raise LaunchError(f"{done.stdout.strip() or f'the seed {where} is not installed'} (the log: {paths.log_path(instance)})")
        return done.stdout.strip()

    def precheck(
        self, application: Application, instances: Sequence[str], *, brokers: bool = True, timeout_s: float | None = None
    ) -> Findings:
        """Check whether these instances would start with the current code and configuration, in a separate process, which imports the code;
        without `brokers`, no request is made to them. Nothing is started or stopped. Raises LaunchError if there is no answer."""
        paths, timeout_s = self._paths, _CHECK_SECONDS if timeout_s is None else timeout_s
        with tempfile.TemporaryDirectory(prefix="penstock-check-") as folder:
            files = [Path(folder) / f"{instance}.json" for instance in instances]
            for instance, path in zip(instances, files, strict=True):
                _write(path, self._settings(application, instance))
            try:
                done = subprocess.run(
                    [
                        *(sys.executable, "-m", "penstock.runtime.instance.precheck", "--config", *map(str, files)),
                        *(() if brokers else ("--without-brokers",)),
                    ],
                    cwd=paths.root,
                    env=environment(paths.root),
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    check=False,
                    timeout=timeout_s,
                )
            except subprocess.TimeoutExpired as error:
                raise LaunchError(f"{application.factory} was not checked within {timeout_s:.0f} s: does it wait?") from error
        lines = done.stdout.split("\n")  # `splitlines` would also split the answer at U+2028
        for line in reversed(lines):  # the user's code may print when the process exits
            with suppress(msgspec.DecodeError):
                return msgspec.json.decode(line, type=Findings)
        said = (done.stderr or done.stdout).strip()[-2000:] or "without a word"
        raise LaunchError(f"{application.factory} cannot be checked: the process ended with status {done.returncode}: {said}")

    @contextmanager
    def _alone_with(self, instance: str) -> Iterator[None]:
        """Create the instance's folders and hold its lock. Raises LaunchError, also for OS errors within the block."""
        paths = self._paths
        try:
            for path in (paths.lock_path(instance), paths.log_path(instance), paths.state_dir(instance)):
                path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(paths.lock_path(instance), timeout=_LOCK_SECONDS):
                yield
        except Timeout as error:
            raise LaunchError(f"instance {instance}: another process is starting it ({paths.lock_path(instance)} is held)") from error
        except OSError as error:
            raise LaunchError(f"instance {instance} cannot be started: {error}") from error

    def stop(self, instance: str, timeout_s: float = 60.0, *, kill: bool = False) -> bool:
        """Ask the process to close cleanly (SIGTERM) and wait. Return False if none was running.

        With `kill`, a process that has not ended in time is killed; without, LaunchError is raised and the process continues to close.
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
                f"its log: {self._paths.log_path(instance)}; to end it at once: penstock stop {instance} --kill"
            )
        _signal(process, signal.SIGKILL)
        if not _wait_until_dead(process, 10.0):
            raise LaunchError(f"instance {instance} (process {process.pid}) does not end, even when killed")
        return True

    def last_words(self, instance: str) -> str:
        """Return the last meaningful line of the instance's log: the message of a JSON line, or the line itself."""
        lines = self.log_end(instance, 1)
        if lines is None:
            return "no log was written"
        if not lines:
            return "its log is empty"
        try:
            return str(msgspec.json.decode(lines[-1].encode(), type=dict[str, object]).get("message", lines[-1]))
        except msgspec.DecodeError:
            return lines[-1]

    def cause_of_end(self, process: Process, heard: float | None = None) -> str | None:
        """Return how a process ended and, if it ended by itself, its last words, which say why. None if nothing is known. `heard`: as in
        `end_of`."""
        how = self.end_of(process, heard)
        if how is None or not how.startswith(_BY_ITSELF):
            return how
        return f"{how}: {self.last_words(process.instance)}"

    def log_end(self, instance: str, most: int = 10) -> list[str] | None:
        """Return the last lines of the instance's log that are not blank; None without a log."""
        try:
            with self._paths.log_path(instance).open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
                return [line for line in log.read().decode(errors="replace").splitlines() if line.strip()][-most:]
        except OSError:
            return None

    def last_sign(self, process: Process, heard: float | None) -> float:
        """Return the time of the last sign of life of a process: the last line of its log, its last heartbeat (`heard`), or its creation;
        in seconds since the epoch."""
        try:
            logged = self._paths.log_path(process.instance).stat().st_mtime
        except OSError:
            logged = process.created
        return max(process.created, logged, heard or 0.0)

    def end_of(self, process: Process, heard: float | None = None) -> str | None:
        """Return how a process of an instance ended: its exit status or signal, or that the kernel killed it for lack of memory. None if
        nothing is known: the process wrote no exit status, its parent is gone, and the kernel's log cannot be read or does not name it.
        `heard`: time of its last heartbeat in seconds since the epoch, if known: the kernel's word from long after it is about another
        process with the same id."""
        status = next((child.poll() for child in _children if child.pid == process.pid), None)
        if status is not None and status >= 0:
            return f"{_BY_ITSELF} {status}"
        path = exit_path(self._paths.settings_path(process.instance))
        try:
            left = msgspec.json.decode(path.read_bytes(), type=ExitStatus)
            if left.pid == process.pid and path.stat().st_mtime > process.created - CLOCK_WOBBLE_SECONDS:
                return f"{_BY_ITSELF} {left.status}"
        except (OSError, msgspec.DecodeError):
            pass  # it had no time to write it, or not all of it
        if status in (None, -signal.SIGKILL):
            before = float("inf") if heard is None else self.last_sign(process, heard) + _SILENT_SECONDS
            killed = killed_for_memory(process.pid, process.created - CLOCK_WOBBLE_SECONDS, before)
            if killed is not None:
                return f"for lack of memory: the kernel killed it at {datetime.fromtimestamp(killed, UTC):%Y-%m-%d %H:%M:%S} UTC"
        if status is not None:
            return f"by {signal.Signals(-status).name}"
        crash = self._crash(process.instance)
        return None if crash is None else f"by a crash in native code, {crash}"

    def _crash(self, instance: str) -> str | None:
        """Return the signal that `faulthandler` has written to the end of the log; None if the log does not end with a crash."""
        for line in reversed(self.log_end(instance, _CRASH_LINES) or []):
            if line.startswith(_CRASH):
                return line.removeprefix(_CRASH)
            if not line.startswith(_STACK):
                return None
        return None

    def _spawn(self, instance: str, *options: str, commands: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
        """Start a process of the instance. With pipes for `commands`, it has one for answers too."""
        paths = self._paths
        with paths.log_path(instance).open("ab") as log:  # output before logging is configured, and crashes of the interpreter
            child = subprocess.Popen(
                [sys.executable, "-m", "penstock.runtime.instance", "--config", str(paths.settings_path(instance)), *options],
                cwd=paths.root,
                env=environment(paths.root),
                stdin=commands,
                stdout=commands if commands == subprocess.PIPE else log,
                stderr=log,
                start_new_session=True,
            )
        _children.append(child)
        return child

    def _process_of(self, instance: str, child: subprocess.Popen[bytes]) -> Process:
        try:
            return Process(instance=instance, pid=child.pid, created=psutil.Process(child.pid).create_time())
        except psutil.NoSuchProcess:
            raise LaunchError(f"instance {instance} ended at once: {self.last_words(instance)}") from None

    def _write_settings(self, application: Application, instance: str) -> None:
        """Write the file with all settings of the process."""
        _write(self._paths.settings_path(instance), self._settings(application, instance))

    def _settings(self, application: Application, instance: str) -> bytes:
        paths = self._paths
        settings = {
            "application": application.id,
            "instance": instance,
            "factory": application.factory,
            "config": {**application.config_of(instance), "state.dir": str(paths.state_dir(instance))},
            "log_path": str(paths.log_path(instance)),
        }
        return msgspec.json.format(msgspec.json.encode(settings))

    def _find_unrecorded(self, instance: str) -> Process | None:
        settings = str(self._paths.settings_path(instance))
        for process in psutil.process_iter(["cmdline", "create_time", "status"]):
            command = process.info["cmdline"] or []
            if (
                "penstock.runtime.instance" in command
                and SUCCESSOR not in command
                and settings in command
                and process.info["status"] != psutil.STATUS_ZOMBIE
            ):
                return Process(instance=instance, pid=process.pid, created=process.info["create_time"])
        return None


def environment(root: Path) -> Mapping[str, str]:
    """Return the caller's environment, with the folders of the project and of this package on Python's module path."""
    paths = [str(root), str(_PACKAGE_ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}


def _write(path: Path, data: bytes) -> None:
    """Write a file atomically: readers never see a part of it."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:  # settings may contain passwords
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
