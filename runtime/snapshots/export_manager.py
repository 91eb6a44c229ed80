"""Start, monitoring and stop of an instance's export processes (`export_process.py`)."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from penstock.runtime.config.environment import filled_in
from penstock.runtime.model.errors import StateDirectoryError, StreamsConfigError

_END_SECONDS = 5.0


class ExportProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of an export: bytes `done` of `total`.

    `state`: `none` (never started here), `running`, `done`, `failed` with its `error`, or `cut off`: the process ended without a result,
    and must be started again.
    """

    state: str
    done: int = 0
    total: int = 0
    error: str = ""


def expanded(uri: str, environment: Mapping[str, str] | None = None) -> str:
    """Return the URI with each `${NAME}` replaced from the environment. Raises StateDirectoryError for a name that is not set."""
    try:
        return filled_in(uri, "the URI of the snapshots", os.environ if environment is None else environment)
    except StreamsConfigError as error:
        raise StateDirectoryError(str(error)) from error


def progress_path(share: Path, uri: str) -> Path:
    """Return the path of the progress file of an export of an instance's share."""
    return share / f".export-{_short(uri)}.json"


def lock_path(share: Path, uri: str) -> Path:
    """Return the path of the lock file that the export process holds."""
    return share / f".export-{_short(uri)}.lock"


def _short(uri: str) -> str:
    return hashlib.sha256(uri.encode()).hexdigest()[:16]


def progress(share: Path, uri: str) -> ExportProgress:
    """Return the progress of an export. Raises StateDirectoryError if the share was removed."""
    if not share.is_dir():
        raise StateDirectoryError(f"there is no part of a snapshot at {share} any more")
    running = _is_held(lock_path(share, uri))
    try:
        found = msgspec.json.decode(progress_path(share, uri).read_bytes(), type=ExportProgress)
    except FileNotFoundError:
        return ExportProgress(state="running" if running else "none")
    if running:
        return msgspec.structs.replace(found, state="running", error="")
    return msgspec.structs.replace(found, state="cut off") if found.state == "running" else found


def _is_held(path: Path) -> bool:
    try:
        lock = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


class ExportManager:
    """Manager of the export processes that this process has started."""

    def __init__(self) -> None:
        self._processes: dict[tuple[Path, str], subprocess.Popen[bytes]] = {}

    def start(self, share: Path, uri: str, tasks: Sequence[str]) -> None:
        """Start an export, or resume it. Does nothing if it runs already."""
        if self._lives(share, uri) or _is_held(lock_path(share, uri)):
            return
        self._processes = {key: process for key, process in self._processes.items() if process.poll() is None}  # `poll` reaps the others
        progress_path(share, uri).unlink(missing_ok=True)
        command = [sys.executable, "-m", "penstock.runtime.snapshots.export_process", str(share), uri, *tasks]
        self._processes[share, uri] = subprocess.Popen(command)

    def progress(self, share: Path, uri: str) -> ExportProgress:
        """Return the progress of an export. Raises StateDirectoryError if the share was removed."""
        lives = self._lives(share, uri)
        found = progress(share, uri)
        return msgspec.structs.replace(found, state="running") if lives and found.state in ("none", "cut off") else found

    def _lives(self, share: Path, uri: str) -> bool:
        process = self._processes.get((share, uri))
        return process is not None and process.poll() is None

    def close(self) -> None:
        """Stop running exports; `start` resumes them later."""
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()
