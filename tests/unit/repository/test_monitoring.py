"""The alert rules and dashboards in `deploy/` query metrics that exist (docs/metrics.md), in expressions that Prometheus takes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.runtime.model.metrics import CLIENT, STATE, TASK, THREAD, prometheus_name
from tests.support import ROOT
from tests.support.metrics_page import documented_metrics

RULES = ROOT / "deploy" / "prometheus" / "penstock.rules.yml"
DASHBOARDS = sorted((ROOT / "deploy" / "grafana").glob("*.json"))
RENDERERS = {"stat", "timeseries", "state-timeline", "table"}


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def panels(dashboard: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(dashboard.read_text())["panels"]
    return found


def expressions(dashboard: Path) -> Iterator[str]:
    """Yield the queries of the panels, with a value for each variable."""
    names = {variable["name"] for variable in json.loads(dashboard.read_text())["templating"]["list"]}
    for panel in panels(dashboard):
        for target in panel["targets"]:
            assert set(re.findall(r"\$(\w+)", target["expr"])) <= names, panel["title"]
            yield re.sub(r"\$\w+", "x", target["expr"])


def queried(text: str) -> set[str]:
    return set(re.findall(r"\bkafka_streams_\w+", text))


@pytest.mark.parametrize("file", [RULES, *DASHBOARDS], ids=lambda file: file.name)
def test_only_metrics_that_exist_are_queried(file: Path) -> None:
    names = {metric.prometheus for metric in documented_metrics()}
    assert queried(file.read_text())
    assert queried(file.read_text()) <= names


@pytest.mark.parametrize("file", [RULES, *DASHBOARDS], ids=lambda file: file.name)
def test_labels_of_queries_are_tags_of_the_metrics(file: Path) -> None:
    """`instance` and `job` are set by Prometheus."""
    tags = {"instance", "job", *(tag.replace("-", "_") for metric in documented_metrics() for tag in metric.tags)}
    for text in [rule["expr"] for rule in rules()] if file == RULES else expressions(file):
        grouped = re.findall(r"\b(?:by|on) \(([\w, ]+)\)", text)
        matched = re.findall(r"[{,]\s*(\w+)=", text)
        assert {*matched, *(label.strip() for group in grouped for label in group.split(","))} <= tags, text


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda file: file.name)
def test_all_of_a_choice_means_all_of_the_chosen_application(dashboard: Path) -> None:
    """With `allValue` Grafana would put that in place of the values: the clients of every application."""
    variables = json.loads(dashboard.read_text())["templating"]["list"]
    dependent = [variable for variable in variables if "$application" in json.dumps(variable["query"])]
    assert [variable["includeAll"] for variable in dependent] == [True]
    assert not [variable["name"] for variable in dependent if "allValue" in variable]
    chosen = {f"${variable['name']}" for variable in dependent} | {"$application"}
    for panel in panels(dashboard):
        for target in panel["targets"]:
            selectors = re.findall(r"kafka_streams_\w+(\{[^}]*\})?", target["expr"])
            unbound = [each for each in selectors if not any(name in each for name in chosen)]
            assert len(unbound) <= target["expr"].count(" and on "), target["expr"]


def test_counters_are_read_as_rates_and_gauges_as_they_are() -> None:
    types = {metric.prometheus: metric.type for metric in documented_metrics()}
    for text in [*(rule["expr"] for rule in rules()), *(text for dashboard in DASHBOARDS for text in expressions(dashboard))]:
        rated = set(re.findall(r"\b(?:rate|increase)\((\w+)", text))
        assert {name for name in queried(text) if types[name] == "counter"} == rated, text


def test_each_dashboard_shows_each_panel_once_and_beside_the_others() -> None:
    assert [dashboard.stem for dashboard in DASHBOARDS] == ["application", "fleet"]
    for dashboard in DASHBOARDS:
        found = panels(dashboard)
        assert {panel["type"] for panel in found} <= RENDERERS
        assert len({panel["id"] for panel in found}) == len(found)
        cells = [
            (x, y)
            for at in (panel["gridPos"] for panel in found)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        ]
        assert len(set(cells)) == len(cells), "panels overlap"
        assert max(x for x, _ in cells) < 24


def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not here; on Debian: apt-get install prometheus")
    return found


def test_prometheus_takes_the_rules_and_the_queries_of_the_dashboards(tmp_path: Path) -> None:
    tool = promtool()
    queries = [text for dashboard in DASHBOARDS for text in expressions(dashboard)]
    recorded = [{"record": f"query_{number}", "expr": text} for number, text in enumerate(queries)]
    file = tmp_path / "queries.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": recorded}]}))
    checked = subprocess.run([tool, "check", "rules", "--lint-fatal", str(RULES), str(file)], check=False, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def series(group: str, name: str, values: str, **labels: str) -> dict[str, str]:
    of = {"instance": "m:1", "job": "penstock", "client_id": "a", **({} if group == CLIENT else {"thread_id": "a-1"}), **labels}
    text = ", ".join(f'{label}="{value}"' for label, value in of.items())
    return {"series": f"{prometheus_name(group, name)}{{{text}}}", "values": values}


SICK = {
    "InstanceDown": [{"series": 'up{instance="m:1", job="penstock"}', "values": "0x120"}],
    "InstanceWaitsForTasks": [series(CLIENT, "client-state", "1x120")],
    "RestoreIsLong": [series(CLIENT, "client-state", "7x120")],
    "WorkerMissing": [series(CLIENT, "alive-stream-threads", "2x90 1x30")],
    "TaskPaused": [series(TASK, "paused-since-ms", "60000x120", task_id="0_0")],
    "RecordsDropped": [series(TASK, "dropped-records-total", "0x110 1x10", task_id="0_0")],
    "NoProgress": [
        series(THREAD, "input-lag-records", "5x120"),
        series(THREAD, "active-tasks", "2x120"),
        series(THREAD, "paused-tasks", "1x120"),
        series(TASK, "process-total", "7x120", task_id="0_0"),
    ],
    "LagGrows": [series(THREAD, "input-lag-records", "0+500x120")],
    "RollbacksRepeat": [series(THREAD, "rollback-total", "0+1x120")],
    "TasksMoveOften": [series(THREAD, "assignment-total", "0+1x120", cause="MEMBER_DIED")],
    "LearnerStalls": [
        series(TASK, "update-remaining-records", "9x120", task_id="0_0"),
        series(TASK, "update-total", "3x120", task_id="0_0"),
        series(TASK, "task-kind", "2x120", task_id="0_0"),
    ],
    "CheckpointOld": [
        series(TASK, "checkpoint-age-ms", "0+60000x120", task_id="0_0"),
        series(TASK, "process-total", "0+10x120", task_id="0_0"),
    ],
    "UncommittedNearLimit": [
        series(STATE, "uncommitted-bytes", "60x120", task_id="0_0", store="s"),
        series(STATE, "uncommitted-bytes", "35x120", task_id="0_1", store="s"),
        series(STATE, "uncommitted-bytes-limit", "100x120"),
    ],
    "GlobalTableRebuilt": [series(TASK, "global-recovery-total", "0x110 1x10", task_id="global", store="s")],
}
AT_THE_START = {
    "GlobalTableRebuilt": [series(TASK, "global-recovery-total", "_x100 1x20", task_id="global", store="s")],
    "RecordsDropped": [series(TASK, "dropped-records-total", "_x115 3x5", task_id="0_0")],
}
"""Counters that begin above 0: it happened before the first scrape."""
WELL = [
    {"series": 'up{instance="m:1", job="penstock"}', "values": "1x120"},
    series(CLIENT, "client-state", "2x120"),
    series(CLIENT, "alive-stream-threads", "2x120"),
    series(TASK, "paused-since-ms", "0x120", task_id="0_0"),
    series(TASK, "dropped-records-total", "4x120", task_id="0_0"),
    series(THREAD, "input-lag-records", "20000-10x120"),
    series(THREAD, "active-tasks", "2x120"),
    series(THREAD, "paused-tasks", "0x120"),
    series(TASK, "process-total", "0+1000x120", task_id="0_0"),
    series(THREAD, "rollback-total", "3x120"),
    series(THREAD, "assignment-total", "9x120", cause="FIRST"),
    series(TASK, "update-remaining-records", "9x120", task_id="0_1"),
    series(TASK, "update-total", "3x120", task_id="0_1"),
    series(TASK, "task-kind", "1x120", task_id="0_1"),
    series(TASK, "checkpoint-age-ms", "300000x120", task_id="0_0"),
    series(STATE, "uncommitted-bytes", "60x120", task_id="0_0", store="s"),
    series(STATE, "uncommitted-bytes-limit", "-1x120"),
    series(TASK, "global-recovery-total", "1x120", task_id="global", store="s"),
]
"""An instance that has had its troubles, long ago."""


def test_each_rule_fires_for_its_fault_and_none_for_an_instance_that_is_well(tmp_path: Path) -> None:
    tool = promtool()
    names = [rule["alert"] for rule in rules()]
    assert set(SICK) == set(names)
    ends = "120m"
    cases = [
        {
            "name": name,
            "interval": "1m",
            "input_series": sick,
            "promql_expr_test": [
                {"expr": f'count(ALERTS{{alertname="{name}", alertstate="firing"}})', "eval_time": ends, "exp_samples": [{"value": 1}]}
            ],
        }
        for name, sick in [*SICK.items(), *AT_THE_START.items()]
    ]
    silent = [{"expr": 'ALERTS{alertstate="firing"}', "eval_time": ends, "exp_samples": []}]
    cases.append({"name": "well", "interval": "1m", "input_series": WELL, "promql_expr_test": silent})
    file = tmp_path / "cases.yml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": cases}))
    tested = subprocess.run([tool, "test", "rules", str(file)], check=False, capture_output=True, text=True)
    assert tested.returncode == 0, tested.stdout + tested.stderr
