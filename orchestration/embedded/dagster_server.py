"""Dagster's webserver and daemon as one child process, and a GraphQL client: used by the demo and the tests of the UI.

The child runs `dagster dev` in a session of its own, so Ctrl-C in the terminal reaches only this process, which then decides in which order
things are stopped. All processes that Dagster starts (code servers, runs) stay in that session, so they are found when it is stopped, even
if a parent in between has died. Instances of applications are not part of it: they have sessions of their own and outlive Dagster.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import psutil

import penstock
from penstock.orchestration.embedded.ports import LOOPBACK

_PACKAGE_ROOT = Path(penstock.__file__).resolve().parents[1]  # the clone, or site-packages
_START_SECONDS = 120.0
_STOP_SECONDS = 30.0
_POLL_SECONDS = 0.3
SETTINGS = """telemetry: {enabled: false}
nux: {enabled: false}  # the newsletter dialog on the first page
retention:  # of ticks that did nothing: six sensors have 100,000 a day, of 1 KB each; Dagster keeps those of schedules for ever
  schedule: {purge_after_days: {skipped: 1}}
  sensor: {purge_after_days: {skipped: 1}}
"""
_REPOSITORY = {"repositoryLocationName": "penstock", "repositoryName": "__repository__"}

_LOCATION = """{ workspaceOrError { ... on PythonError { message } ... on Workspace { locationEntries { loadStatus
  locationOrLoadError { __typename ... on PythonError { message causes { message } } } } } } }"""
_LAUNCH = """mutation($params: ExecutionParams!) { launchRun(executionParams: $params) { __typename
  ... on LaunchRunSuccess { run { runId } } ... on Error { message } ... on RunConfigValidationInvalid { errors { message } } } }"""
_ADD_PARTITION = """mutation($name: String!, $key: String!, $repository: RepositorySelector!) {
  addDynamicPartition(partitionsDefName: $name, partitionKey: $key, repositorySelector: $repository) { __typename
  ... on PythonError { message } ... on UnauthorizedError { message } } }"""
_STATUS = "query($run: ID!) { runOrError(runId: $run) { __typename ... on Run { status } ... on Error { message } } }"
_EVENTS = """query($run: ID!) { logsForRun(runId: $run) { ... on EventConnection { events { __typename
  ... on AssetCheckEvaluationEvent { evaluation { success checkName description assetKey { path } } }
  ... on ExecutionStepFailureEvent { error { message causes { message } } }
  ... on RunFailureEvent { message error { message } } } } } }"""


class DagsterError(Exception):
    """Dagster does not start, or a run cannot be launched or failed; the message says why and where its log is."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of an asset check in a run."""

    asset: str
    name: str
    passed: bool
    description: str


class DagsterServer:
    """Dagster on the project's code location, with its state in `home`. The constructor has no side effects; call `start`."""

    def __init__(self, home: Path, port: int, environment: Mapping[str, str]) -> None:
        """Prepare a server. `environment` is added to this process's: PENSTOCK_HOME, PENSTOCK_STREAMS and so on."""
        self.home = home
        self.port = port
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def log_path(self) -> Path:
        return self.home / "dagster.log"

    @property
    def pid(self) -> int | None:
        """The child's process id, which is also the id of its session."""
        return None if self._process is None else self._process.pid

    def start(self, timeout: float = _START_SECONDS) -> None:
        """Start webserver and daemon; return when the code location is loaded. Raises DagsterError, and leaves no process behind then."""
        self.spawn()
        self.wait_until_ready(timeout)

    def spawn(self) -> None:
        """Start webserver and daemon and return at once: startup takes some seconds, which the caller can use for other work."""
        self.home.mkdir(parents=True, exist_ok=True)
        (self.home / "dagster.yaml").write_text(SETTINGS)
        paths = [str(_PACKAGE_ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
            "DAGSTER_HOME": str(self.home),
            **self._environment,
        }
        command = [sys.executable, "-m", "dagster", "dev", "--host", LOOPBACK, "--port", str(self.port), "-w", "workspace.yaml"]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=_PACKAGE_ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_until_ready(self, timeout: float = _START_SECONDS) -> None:
        """Return when the code location is loaded. Raises DagsterError, and leaves no process behind then."""
        deadline = time.monotonic() + timeout
        try:
            while not self._loaded():
                self._check_alive(deadline, timeout)
                time.sleep(_POLL_SECONDS)
        except BaseException:
            self.stop()
            raise

    def stop(self, timeout: float = _STOP_SECONDS) -> None:
        """Stop the child and all its descendants. Kill those that still run after `timeout` seconds."""
        if self._process is not None:
            end_session(self._process.pid, timeout)
            self._process.wait()
            self._process = None

    def launch(
        self,
        job: str,
        *,
        asset: Sequence[str] = (),
        partition: tuple[str, str] | None = None,
        config: Mapping[str, object] = MappingProxyType({}),
    ) -> str:
        """Launch a job; of an asset job only the asset with this key, and only one partition: the name of its definition, and its key.
        `config`: the run's configuration. Return the run's id. Raises DagsterError.

        A partition that Dagster does not know yet, because no sensor has run so far, is added."""
        if partition is not None:
            known = {"name": partition[0], "key": partition[1], "repository": _REPOSITORY}
            added = _mapping(self.query(_ADD_PARTITION, known)["addDynamicPartition"])
            if added["__typename"] not in ("AddDynamicPartitionSuccess", "DuplicateDynamicPartitionError"):
                raise DagsterError(f"Dagster does not add partition {partition[1]}: {added.get('message') or added['__typename']}")
        selector: dict[str, object] = {**_REPOSITORY, "jobName": job}
        if asset:
            selector["assetSelection"] = [{"path": list(asset)}]
        tags = [] if partition is None else [{"key": "dagster/partition", "value": partition[1]}]
        params = {"selector": selector, "runConfigData": dict(config), "mode": "default", "executionMetadata": {"tags": tags}}
        answer = _mapping(self.query(_LAUNCH, {"params": params})["launchRun"])
        if answer["__typename"] != "LaunchRunSuccess":
            raise DagsterError(f"Dagster does not launch {job}: {answer.get('message') or answer.get('errors') or answer['__typename']}")
        return str(_mapping(answer["run"])["runId"])

    def status(self, run_id: str) -> str:
        """Return the run's status, for example STARTED or SUCCESS. Raises DagsterError."""
        answer = _mapping(self.query(_STATUS, {"run": run_id})["runOrError"])
        if "status" not in answer:
            raise DagsterError(f"run {run_id}: {answer.get('message')}")
        return str(answer["status"])

    def wait(self, run_id: str, timeout: float) -> None:
        """Wait until a run has succeeded. Raises DagsterError with the failure, or if it takes longer than `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while (status := self.status(run_id)) != "SUCCESS":
            if status in ("FAILURE", "CANCELED"):
                raise DagsterError(f"run {run_id} has the status {status}: {self._reason(run_id)} ({self.run_url(run_id)})")
            if time.monotonic() > deadline:
                raise DagsterError(f"run {run_id} is {status} after {timeout:.0f} s ({self.run_url(run_id)})")
            time.sleep(_POLL_SECONDS)

    def run_url(self, run_id: str) -> str:
        return f"{self.url}/runs/{run_id}"

    def checks(self, run_id: str) -> list[CheckResult]:
        """Return the results of a run's asset checks, in order."""
        found: list[CheckResult] = []
        for event in self._events(run_id):
            if event["__typename"] == "AssetCheckEvaluationEvent":
                evaluation = _mapping(event["evaluation"])
                path = _mapping(evaluation["assetKey"])["path"]
                asset = "/".join(str(part) for part in path) if isinstance(path, list) else str(path)
                description = str(evaluation["description"] or "")
                found.append(CheckResult(asset, str(evaluation["checkName"]), evaluation["success"] is True, description))
        return found

    def query(self, query: str, variables: Mapping[str, object] | None = None) -> dict[str, object]:
        """Query Dagster's GraphQL; return the answer's data. Raises DagsterError, or OSError if there is no answer."""
        body = json.dumps({"query": query, "variables": variables or {}}).encode()
        request = urllib.request.Request(f"{self.url}/graphql", body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                answer = _mapping(json.load(response))
        except urllib.error.HTTPError as error:
            with error:
                raise DagsterError(f"Dagster refuses a query: {error.read().decode(errors='replace')}") from error
        if answer.get("errors"):
            raise DagsterError(f"Dagster refuses a query: {answer['errors']}")
        return _mapping(answer["data"])

    def _check_alive(self, deadline: float, timeout: float) -> None:
        if self._process is None or self._process.poll() is not None:
            raise DagsterError(f"Dagster exited while it was starting; the end of {self.log_path}:\n{self._log_tail()}")
        if time.monotonic() > deadline:
            raise DagsterError(f"Dagster has not loaded its code location after {timeout:.0f} s; its log: {self.log_path}")

    def _loaded(self) -> bool:
        """Return True if the code location is loaded. Raises DagsterError if it cannot be loaded."""
        try:
            workspace = _mapping(self.query(_LOCATION)["workspaceOrError"])
        except OSError:  # the webserver is not up yet
            return False
        entries = workspace.get("locationEntries")
        if not isinstance(entries, list):
            raise DagsterError(f"Dagster has no workspace: {workspace.get('message')}")
        if not entries or any(entry["loadStatus"] != "LOADED" or entry["locationOrLoadError"] is None for entry in entries):
            return False
        for entry in entries:
            if entry["locationOrLoadError"]["__typename"] == "PythonError":
                raise DagsterError(f"Dagster cannot load the code location: {_message(entry['locationOrLoadError'])}")
        return True

    def _events(self, run_id: str) -> list[dict[str, object]]:
        events = _mapping(self.query(_EVENTS, {"run": run_id})["logsForRun"]).get("events")
        return [_mapping(event) for event in events] if isinstance(events, list) else []

    def _reason(self, run_id: str) -> str:
        events = self._events(run_id)
        for event in events:
            if event["__typename"] == "ExecutionStepFailureEvent" and event.get("error"):
                return _message(_mapping(event["error"]))
        for event in events:
            if event["__typename"] == "RunFailureEvent":
                return _message(_mapping(event.get("error") or event))
        return "no reason was recorded"

    def _log_tail(self, lines: int = 20) -> str:
        return "\n".join(f"  {line}" for line in self.log_path.read_text(errors="replace").splitlines()[-lines:])


def end_session(session: int, timeout: float = _STOP_SECONDS) -> None:
    """Stop all processes of a session: SIGINT to its leader, as Ctrl-C does, and SIGKILL to those left after `timeout` seconds."""
    members = _session_members(session)
    leader = next((process for process in members if process.pid == session), None)
    if leader is not None:
        _signal(leader, signal.SIGINT)
    deadline = time.monotonic() + timeout
    while members := _session_members(session):
        if time.monotonic() > deadline:
            for process in members:
                _signal(process, signal.SIGKILL)
            psutil.wait_procs(members, timeout=5)
        time.sleep(0.1)


def _session_members(session: int) -> list[psutil.Process]:
    found: list[psutil.Process] = []
    for process in psutil.process_iter(["status"]):
        try:
            if os.getsid(process.pid) == session and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (ProcessLookupError, PermissionError):  # it ended meanwhile, or belongs to another user
            continue
    return found


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return


def _message(error: Mapping[str, object]) -> str:
    """Return the innermost cause: Dagster wraps a step's exception in its own."""
    causes = error.get("causes")
    innermost = causes[-1] if isinstance(causes, list) and causes else error
    return str(innermost["message"]).strip()


def _mapping(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise DagsterError(f"Dagster answers {value!r} where an object was expected")
    return value
