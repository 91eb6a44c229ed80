"""Dagster as users run it: webserver and daemon in a separate process, queried through GraphQL."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from penstock.orchestration.embedded.ports import free_port
from tests.support import ROOT, wait_until

_LAUNCH = """
mutation ($params: ExecutionParams!) {
  launchPipelineExecution(executionParams: $params) { __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } }
}"""
_RUN = "query ($id: ID!) { runOrError(runId: $id) { ... on Run { status } } }"
_WHY = """
query ($id: ID!) { runOrError(runId: $id) { ... on Run { eventConnection { events {
  __typename ... on ErrorEvent { error { message cause { message cause { message } } } } } } } } }"""
_RUNS = "query ($job: String!) { runsOrError(filter: {pipelineName: $job}) { ... on Runs { results { runId status } } } }"
_PARTITIONS = "query ($path: [String!]!) { assetNodeOrError(assetKey: {path: $path}) { ... on AssetNode { partitionKeys } } }"
_SENSORS = """
query ($location: String!) {
  sensorsOrError(repositorySelector: {repositoryName: "__repository__", repositoryLocationName: $location}) {
    ... on Sensors { results { name sensorState { status ticks(limit: 2) { status } } } } ... on PythonError { message } } }"""
_OBSERVATIONS = """
query ($path: [String!]!) { assetOrError(assetKey: {path: $path}) { ... on Asset { assetObservations(limit: 50) { description } } } }"""
_ASSETS = "{ assetNodes { assetKey { path } } }"


class LiveDagster:
    """`dagster dev` in a project's folder, by default this repository's, with its own home. `stop()` ends it like Ctrl-C."""

    def __init__(
        self,
        home: Path | None,
        *,
        project: Path = ROOT,
        python: Path = Path(sys.executable),
        module: str | None = None,
        location: str = "penstock",
        command: Sequence[str] = ("dagster", "dev"),
        environment: Mapping[str, str] = os.environ,
        settings: str = "",
    ) -> None:
        """`home`: DAGSTER_HOME, with `settings` in its `dagster.yaml`; if None, it is not set, and the project's `dagster.yaml` holds.
        `module`: the only code location, with this name; without it, the project says what it is, and `location` is its name. `command`:
        the module that is run, and its arguments."""
        named = {}
        if home is not None:
            home.mkdir(parents=True, exist_ok=True)
            (home / "dagster.yaml").write_text(f"telemetry: {{enabled: false}}\nnux: {{enabled: false}}\n{settings}")
            named = {"DAGSTER_HOME": str(home)}
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        self.log = (home or project) / "dagster-dev.log"
        self._location = module or location
        self._command = [str(python), "-m", *command, "-p", str(port), *([] if module is None else ["-m", module])]
        self._project = project
        self._environment = {**{name: value for name, value in environment.items() if name != "DAGSTER_HOME"}, **named}
        self.start()

    def start(self) -> None:
        """Start it; again with the same home and port, if it was killed or stopped. Wait until it answers."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=self._project,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            wait_until(self._answers, 120, "an answer of Dagster's webserver")
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Send Ctrl-C to all its processes, and wait until they have ended."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGINT)
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait(10)

    def kill(self) -> None:
        """End daemon, webserver, code server and runs at once, by SIGKILL, as a machine that loses power. Instances live on."""
        dagster = psutil.Process(self._process.pid)
        for process in (dagster, *dagster.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                if not any(part.startswith("penstock.runtime") for part in process.cmdline()):
                    process.kill()
        self._process.wait(10)

    def ask(self, query: str, **variables: object) -> dict[str, Any]:  # JSON, of the shape that the query names
        data = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(f"{self.url}/graphql", data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            content = json.load(answer)
        assert "errors" not in content, content["errors"]
        found: dict[str, Any] = content["data"]
        return found

    def launch(self, job: str, *, instance: tuple[str, str] | None = None) -> str:
        """Launch a job like the UI, for an application's instance after the sensor has added the partition; wait for its success, and
        return the run's id."""
        tags = []
        if instance is not None:
            application, name = instance
            wait_until(lambda: name in self.partitions(application), 60, f"partition {name}")
            tags.append({"key": "dagster/partition", "value": name})
        selector = {"repositoryName": "__repository__", "repositoryLocationName": self._location, "pipelineName": job}
        params = {"selector": selector, "mode": "default", "runConfigData": {}, "executionMetadata": {"tags": tags}}
        launched = self.ask(_LAUNCH, params=params)["launchPipelineExecution"]
        run_id = str(launched["run"]["runId"])
        ended = wait_until(lambda: self._ended(run_id), 120, f"the end of {job}")
        assert ended == "SUCCESS", self.ask(_WHY, id=run_id)
        return run_id

    def partitions(self, application: str) -> list[str]:
        """Return the partitions of an application's asset."""
        found: list[str] = self.ask(_PARTITIONS, path=[application, "instances"])["assetNodeOrError"]["partitionKeys"]
        return found

    def runs(self, job: str) -> list[str]:
        """Return the states of a job's runs."""
        return [run["status"] for run in self.ask(_RUNS, job=job)["runsOrError"]["results"]]

    def sensors(self) -> dict[str, str]:
        """Return the status of each sensor."""
        return {sensor["name"]: sensor["sensorState"]["status"] for sensor in self._sensors()}

    def last_ticks(self) -> dict[str, str]:
        """Return the result of the daemon's last finished evaluation of each sensor, without sensors that have none."""
        ticks = {sensor["name"]: [tick["status"] for tick in sensor["sensorState"]["ticks"]] for sensor in self._sensors()}
        finished = {name: [status for status in last if status != "STARTED"] for name, last in ticks.items()}
        return {name: last[0] for name, last in finished.items() if last}

    def assets(self) -> set[str]:
        """Return the keys of all assets."""
        return {"/".join(node["assetKey"]["path"]) for node in self.ask(_ASSETS)["assetNodes"]}

    def observations(self, *asset: str) -> list[str]:
        """Return the descriptions of an asset's observations, the newest first."""
        found = self.ask(_OBSERVATIONS, path=list(asset))["assetOrError"].get("assetObservations", [])
        return [observation["description"] for observation in found]

    def _sensors(self) -> list[dict[str, Any]]:
        found = self.ask(_SENSORS, location=self._location)["sensorsOrError"]
        assert "CodeLocationLoadError" not in found.get("message", ""), found["message"]
        sensors: list[dict[str, Any]] = found["results"]
        return sensors

    def _ended(self, run_id: str) -> str | None:
        status = str(self.ask(_RUN, id=run_id)["runOrError"]["status"])
        return status if status in ("SUCCESS", "FAILURE", "CANCELED") else None

    def _answers(self) -> bool:
        assert self._process.poll() is None, self.log.read_text()
        try:
            return bool(self.sensors())
        except (OSError, KeyError):
            return False
