"""The files in `deploy/` are what systemd and Kubernetes take, fit each other, and start an instance that the engine takes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml

from penstock import StreamsConfig, StreamsConfigError
from penstock.orchestration.declarations.applications import Applications
from penstock.runtime.client.running import EXIT_CONFIGURATION
from penstock.runtime.config.environment import filled_in
from penstock.runtime.endpoint.routes import Routes
from penstock.runtime.instance.settings import InstanceSettings
from penstock.runtime.topology.factory import build_topology
from penstock.runtime.worker.loop import STOP_MS
from tests.support import ROOT

DEPLOY = ROOT / "deploy"
UNIT = DEPLOY / "systemd" / "penstock@.service"
DIRECTIVES = {
    "Unit": {"Description", "Documentation", "Wants", "After", "StartLimitIntervalSec", "StartLimitBurst"},
    "Service": {
        *(
            "Type",
            "User",
            "Group",
            "WorkingDirectory",
            "Environment",
            "EnvironmentFile",
            "ExecStart",
            "StateDirectory",
            "StateDirectoryMode",
        ),
        *(
            "KillSignal",
            "KillMode",
            "TimeoutStopSec",
            "Restart",
            "RestartPreventExitStatus",
            "RestartSec",
            "LimitNOFILE",
            "NoNewPrivileges",
        ),
        *("ProtectSystem", "ProtectHome", "PrivateTmp"),
    },
    "Install": {"WantedBy"},
}
"""What systemd knows of what is used here (systemd.unit, systemd.service, systemd.exec)."""
RBAC = "rbac.authorization.k8s.io"
META = {"name": str, "labels": Mapping}
PROBE = {"httpGet": {"path": str, "port": str}, "periodSeconds": int, "timeoutSeconds": int, "failureThreshold": int}
POD = {
    "terminationGracePeriodSeconds": int,
    "securityContext": {"runAsNonRoot": bool, "runAsUser": int, "fsGroup": int, "fsGroupChangePolicy": str},
    "containers": [
        {
            "name": str,
            "image": str,
            "command": list,
            "env": list,
            "ports": [{"name": str, "containerPort": int}],
            "startupProbe": PROBE,
            "livenessProbe": PROBE,
            "readinessProbe": PROBE,
            "resources": {"requests": Mapping, "limits": Mapping},
            "volumeMounts": [{"name": str, "mountPath": str, "readOnly": bool}],
        }
    ],
    "volumes": [{"name": str, "configMap": {"name": str}}],
}
FIELDS: dict[tuple[str, str], dict[str, object]] = {
    ("v1", "Secret"): {"type": str, "stringData": Mapping},
    ("v1", "ConfigMap"): {"data": Mapping},
    ("v1", "Service"): {
        "spec": {
            "clusterIP": str,
            "publishNotReadyAddresses": bool,
            "selector": Mapping,
            "ports": [{"name": str, "port": int, "targetPort": str}],
        }
    },
    ("v1", "ServiceAccount"): {},
    (f"{RBAC}/v1", "Role"): {"rules": [{"apiGroups": list, "resources": list, "verbs": list}]},
    (f"{RBAC}/v1", "RoleBinding"): {
        "roleRef": {"apiGroup": str, "kind": str, "name": str},
        "subjects": [{"kind": str, "name": str}],
    },
    ("policy/v1", "PodDisruptionBudget"): {"spec": {"maxUnavailable": int, "selector": {"matchLabels": Mapping}}},
    ("apps/v1", "StatefulSet"): {
        "spec": {
            "serviceName": str,
            "replicas": int,
            "podManagementPolicy": str,
            "updateStrategy": {"type": str},
            "selector": {"matchLabels": Mapping},
            "template": {"metadata": {"labels": Mapping, "annotations": Mapping}, "spec": POD},
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": str, "whenScaled": str},
            "volumeClaimTemplates": [{"metadata": META, "spec": {"accessModes": list, "resources": {"requests": Mapping}}}],
        }
    },
}
"""What Kubernetes' API knows of what is used here, by version and kind."""


def directives() -> Iterator[tuple[str, str, str]]:
    """Section, name and value of each line of the unit that says something."""
    section = ""
    for line in UNIT.read_text().splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        header = re.fullmatch(r"\[(\w+)\]", line)
        if header:
            section = header[1]
            continue
        name, equals, value = line.partition("=")
        assert equals and name == name.strip() and value, line
        yield section, name, value


def service(name: str) -> str:
    (value,) = [value for section, known, value in directives() if (section, known) == ("Service", name)]
    return value


def test_the_unit_says_only_what_systemd_knows() -> None:
    found = {section: {name for each, name, _ in directives() if each == section} for section, _, _ in directives()}
    assert found.keys() == DIRECTIVES.keys()
    assert all(names <= DIRECTIVES[section] for section, names in found.items()), found


def test_systemd_finds_nothing_wrong(tmp_path: Path) -> None:
    verify = shutil.which("systemd-analyze")
    if verify is None:
        pytest.skip("systemd is not here; the test above reads the unit")
    unit = tmp_path / "penstock@flight-board-1.service"
    unit.write_text(UNIT.read_text().replace("/opt/penstock/.venv/bin/python", sys.executable))
    done = subprocess.run([verify, "verify", "--man=no", str(unit)], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_units_numbers_fit_the_engines() -> None:
    assert int(service("TimeoutStopSec")) * 1000 > STOP_MS + 10_000, "it is not killed while it closes"
    assert service("RestartPreventExitStatus") == str(EXIT_CONFIGURATION)
    assert (service("KillSignal"), service("Restart")) == ("SIGTERM", "on-failure")
    assert "-m penstock.runtime.instance --config /etc/penstock/%i.json" in service("ExecStart")


def documents(name: str = "flight-board") -> dict[str, dict[str, object]]:
    """The documents of a file by kind."""
    found = list(yaml.safe_load_all((DEPLOY / "kubernetes" / f"{name}.yaml").read_text()))
    return {document["kind"]: document for document in found}


def check(found: object, known: object, where: str) -> None:
    """Every field is known and of its type."""
    if isinstance(known, dict):
        assert isinstance(found, dict), where
        for name, value in found.items():
            assert name in known, f"{where}.{name} is not known: {sorted(known)}"
            check(value, known[name], f"{where}.{name}")
    elif isinstance(known, list):
        assert isinstance(found, list) and found, where
        for number, value in enumerate(found):
            check(value, known[0], f"{where}[{number}]")
    else:
        assert isinstance(known, type) and isinstance(found, known), f"{where} = {found!r} must be {known}"


def at(document: object, path: str) -> object:
    """A value by its path; `*` is the first of a list."""
    for part in path.split("."):
        if part == "*":
            assert isinstance(document, list)
            document = document[0]
        else:
            assert isinstance(document, dict), path
            document = document[part]
    return document


def test_the_manifests_say_only_what_kubernetes_knows() -> None:
    found = [(kind, document) for name in ("flight-board", "spark") for kind, document in documents(name).items()]
    assert {(document["apiVersion"], kind) for kind, document in found} == FIELDS.keys()
    for kind, document in found:
        known = FIELDS[str(document["apiVersion"]), kind]
        check(document, {"apiVersion": str, "kind": str, "metadata": META, **known}, kind)


def test_the_parts_of_the_manifest_fit_each_other() -> None:
    found = documents()
    pods, name = found["StatefulSet"], at(found["StatefulSet"], "metadata.name")
    labels = at(pods, "spec.template.metadata.labels")
    assert at(pods, "spec.selector.matchLabels") == labels == at(found["Service"], "spec.selector")
    assert at(found["PodDisruptionBudget"], "spec.selector.matchLabels") == labels
    assert at(pods, "spec.serviceName") == at(found["Service"], "metadata.name") == name
    assert at(pods, "spec.template.spec.volumes.*.configMap.name") == at(found["ConfigMap"], "metadata.name")
    mounts = at(pods, "spec.template.spec.containers.*.volumeMounts")
    assert isinstance(mounts, list)
    assert {mount["name"] for mount in mounts} == {
        at(pods, "spec.template.spec.volumes.*.name"),
        at(pods, "spec.volumeClaimTemplates.*.metadata.name"),
    }
    for probe, path in (("startup", "/health"), ("liveness", "/health"), ("readiness", "/ready")):
        asked = at(pods, f"spec.template.spec.containers.*.{probe}Probe.httpGet")
        assert asked == {"path": path, "port": at(pods, "spec.template.spec.containers.*.ports.*.name")} and Routes.is_open(path)
    grace = at(pods, "spec.template.spec.terminationGracePeriodSeconds")
    assert isinstance(grace, int) and grace * 1000 > STOP_MS + 10_000, "it is not killed while it closes"


def test_the_image_of_a_new_project_fits_the_pods() -> None:
    dockerfile = (ROOT / "examples" / "project" / "Dockerfile").read_text()
    pods = documents()["StatefulSet"]
    assert f"ARG USER_ID={at(pods, 'spec.template.spec.securityContext.runAsUser')}\n" in dockerfile
    assert f"ARG STATE={at(pods, 'spec.template.spec.containers.*.volumeMounts.*.mountPath')}\n" in dockerfile


def settings(tmp_path: Path) -> Iterator[tuple[str, str, dict[str, str]]]:
    """The settings in the files, their name, and what their environment holds."""
    yield "systemd", (DEPLOY / "systemd" / "flight-board-1.json").read_text(), {"INSTANCE": "flight-board-1", "PENSTOCK_HTTP_TOKEN": "x"}
    text = at(documents()["ConfigMap"], "data")
    assert isinstance(text, dict)
    pod = {"POD_NAME": "flight-board-0", "POD_NAMESPACE": "streams", "HTTP_TOKEN": "x"}
    environment = at(documents()["StatefulSet"], "spec.template.spec.containers.*.env")
    assert isinstance(environment, list) and pod.keys() < {variable["name"] for variable in environment}
    yield "kubernetes", text["instance.json"], pod


def test_the_engine_takes_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for where, text, environment in settings(tmp_path):
        path = tmp_path / f"{where}.json"
        path.write_text(text)
        with pytest.raises(StreamsConfigError, match=rf"{path.name}, .*\$\{{\w+\}} is not set in the environment"):
            InstanceSettings.read(path)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        read = InstanceSettings.read(path)
        config = StreamsConfig(read.streams_config())
        build_topology(read.factory)
        assert config.client_id == read.instance == next(iter(environment.values()))
        assert str(config.state_dir).startswith("/var/lib/penstock") and config.http_token == "x"
        assert config.application_server is not None and config.application_server.port == config.integer("http.port")
        monkeypatch.undo()
    pod = json.loads(text)["config"]
    service = at(documents()["Service"], "metadata.name")
    assert pod["application.server"] == f"${{POD_NAME}}.{service}.${{POD_NAMESPACE}}.svc:{pod['http.port']}"
    assert pod["http.port"] == at(documents()["Service"], "spec.ports.*.port")
    assert pod["http.port"] == at(documents()["StatefulSet"], "spec.template.spec.containers.*.ports.*.containerPort")
    assert pod["state.dir"] == at(documents()["StatefulSet"], "spec.template.spec.containers.*.volumeMounts.*.mountPath")


def test_the_settings_take_a_secret_as_a_file_as_the_comments_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A credential of systemd, and a secret that Kubernetes mounts."""
    credential, mounted = "${file:${CREDENTIALS_DIRECTORY}/kafka-password}", "${file:/etc/penstock-secrets/http-token}"
    assert credential in UNIT.read_text() and mounted in (DEPLOY / "kubernetes" / "flight-board.yaml").read_text()
    for name in ("kafka-password", "http-token"):
        (tmp_path / name).write_text(f"{name}\n")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    for where, text, environment in settings(tmp_path):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        document = json.loads(text)
        document["config"] |= {"sasl.password": credential, "http.token": mounted.replace("/etc/penstock-secrets", str(tmp_path))}
        path = tmp_path / f"{where}.json"
        path.write_text(json.dumps(document))
        config = InstanceSettings.read(path).streams_config()
        assert (config["sasl.password"], config["http.token"]) == ("kafka-password", "http-token")


def test_executors_as_pods_find_the_driver_and_may_be_made() -> None:
    found = documents("spark")
    account, binding = at(found["ServiceAccount"], "metadata.name"), found["RoleBinding"]
    assert account == at(binding, "subjects.*.name") == at(binding, "roleRef.name") == at(found["Role"], "metadata.name")
    text = at(found["ConfigMap"], "data")
    assert isinstance(text, dict)
    settings = Applications.parse(text["spark.toml"], Path("spark.toml")).spark.resolved({"POD_NAMESPACE": "ns", "POD_NAME": "dagster-0"})
    service = found["Service"]
    assert settings.driver_host == f"{at(service, 'metadata.name')}.ns.svc"
    ports = {str(port["port"]) for port in service["spec"]["ports"]}  # type: ignore[index]
    assert ports == {settings.conf["spark.driver.port"], settings.conf["spark.driver.blockManager.port"]}
    assert settings.master.startswith("k8s://") and settings.conf["spark.kubernetes.driver.pod.name"] == "dagster-0"


def test_what_is_not_in_the_environment_is_named() -> None:
    assert filled_in("a ${B} $C ${D}", "here", {"B": "b", "D": "${B}"}) == "a b $C ${B}"
    with pytest.raises(StreamsConfigError, match=r"here: \$\{X\} is not set in the environment"):
        filled_in("${X}", "here", {})
