"""Dagster as people run it: webserver and daemon, as a process of their own, asked through GraphQL."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

from orchestration.embedded.ports import free_port
from tests.support import wait_until

ROOT = Path(__file__).parents[2]
_LAUNCH = """
mutation ($params: ExecutionParams!) {
  launchPipelineExecution(executionParams: $params) { __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } }
}"""
_RUN = "query ($id: ID!) { runOrError(runId: $id) { ... on Run { status } } }"
_WHY = """
query ($id: ID!) { runOrError(runId: $id) { ... on Run { eventConnection { events {
  __typename ... on ErrorEvent { error { message cause { message cause { message } } } } } } } } }"""
_RUNS = "query ($job: String!) { runsOrError(filter: {pipelineName: $job}) { ... on Runs { results { runId status } } } }"
_PARTITIONS = '{ assetNodeOrError(assetKey: {path: ["instances"]}) { ... on AssetNode { partitionKeys } } }'
_SENSORS = """
{ sensorsOrError(repositorySelector: {repositoryName: "__repository__", repositoryLocationName: "penstock"}) {
    ... on Sensors { results { name sensorState { status } } } ... on PythonError { message } } }"""


class LiveDagster:
    """`dagster dev` in the project's folder, with a home of its own. It ends with `stop()`, as with Ctrl-C."""

    def __init__(self, home: Path) -> None:
        home.mkdir(parents=True, exist_ok=True)
        (home / "dagster.yaml").write_text("telemetry: {enabled: false}\nnux: {enabled: false}\n")
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        self.log = home / "dagster-dev.log"
        command = [str(Path(sys.executable).parent / "dagster"), "dev", "-h", "127.0.0.1", "-p", str(port)]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, "DAGSTER_HOME": str(home)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        wait_until(self._answers, 120, "an answer of Dagster's webserver")

    def stop(self) -> None:
        """Ctrl-C to all of its processes; ends when they have ended."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGINT)
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait(10)

    def ask(self, query: str, **variables: object) -> dict[str, Any]:  # JSON, of the shape that the query names
        data = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(f"{self.url}/graphql", data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            content = json.load(answer)
        assert "errors" not in content, content["errors"]
        found: dict[str, Any] = content["data"]
        return found

    def launch(self, job: str, *, partition: str | None = None) -> str:
        """Launches a job as the UI does, once the sensor has added the partition; waits for its success, returns the run's id."""
        if partition is not None:
            wait_until(lambda: partition in self.partitions(), 60, f"partition {partition}")
        tags = [] if partition is None else [{"key": "dagster/partition", "value": partition}]
        selector = {"repositoryName": "__repository__", "repositoryLocationName": "penstock", "pipelineName": job}
        params = {"selector": selector, "mode": "default", "runConfigData": {}, "executionMetadata": {"tags": tags}}
        launched = self.ask(_LAUNCH, params=params)["launchPipelineExecution"]
        run_id = str(launched["run"]["runId"])
        ended = wait_until(lambda: self._ended(run_id), 120, f"the end of {job}")
        assert ended == "SUCCESS", self.ask(_WHY, id=run_id)
        return run_id

    def partitions(self) -> list[str]:
        """The partitions of the asset `instances`."""
        found: list[str] = self.ask(_PARTITIONS)["assetNodeOrError"]["partitionKeys"]
        return found

    def runs(self, job: str) -> list[str]:
        """The states of a job's runs."""
        return [run["status"] for run in self.ask(_RUNS, job=job)["runsOrError"]["results"]]

    def sensors(self) -> dict[str, str]:
        """Whether each sensor runs."""
        return {sensor["name"]: sensor["sensorState"]["status"] for sensor in self.ask(_SENSORS)["sensorsOrError"]["results"]}

    def _ended(self, run_id: str) -> str | None:
        status = str(self.ask(_RUN, id=run_id)["runOrError"]["status"])
        return status if status in ("SUCCESS", "FAILURE", "CANCELED") else None

    def _answers(self) -> bool:
        assert self._process.poll() is None, self.log.read_text()
        try:
            return bool(self.sensors())
        except (OSError, KeyError):
            return False
