"""The Dockerfile of a new project, whose steps run here as a script: no registry of images can be reached from a test.

The base image is a virtual environment that has the core of Penstock from its wheel, pip and setuptools, so pip needs no network. Folders
of the image are below a temporary one.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import string
import subprocess
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path

from typer.testing import CliRunner

from penstock.orchestration.cli import app
from tests.support import Kafka, unique, wait_until
from tests.support.installed import build_wheel, copy_of_the_repository, install, users_environment


@dataclass
class Image:
    """State of an image after the instructions of a Dockerfile that were read so far. Absolute paths are below `root`."""

    context: Path
    root: Path
    arguments: dict[str, str]
    """Values for `ARG`, like those of `docker build --build-arg`."""
    environment: dict[str, str]
    folder: Path = Path("/")
    command: list[str] = field(default_factory=list)

    def build(self) -> None:
        text = (self.context / "Dockerfile").read_text().replace("\\\n", " ")
        for line in text.splitlines():
            if line.strip() and not line.startswith("#"):
                instruction, _, rest = line.partition(" ")
                getattr(self, f"_{instruction.lower()}")(rest.strip())

    def _from(self, image: str) -> None:
        assert re.fullmatch(r"python:3\.1[123]-slim", image)

    def _arg(self, text: str) -> None:
        name, _, default = text.partition("=")
        self.environment[name] = self.arguments.get(name, default)

    def _workdir(self, text: str) -> None:
        self.folder = self.root / text.lstrip("/")
        self.folder.mkdir(parents=True)

    def _copy(self, text: str) -> None:
        *sources, target = text.split()
        ignored = (self.context / ".dockerignore").read_text().split()
        for source in sources:
            assert f"!{source}" in ignored
            if (self.context / source).is_dir():
                shutil.copytree(self.context / source, self.folder / target)
            else:
                shutil.copy(self.context / source, self.folder / target)

    def _run(self, text: str) -> None:
        done = subprocess.run(["sh", "-c", text], cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"

    def _env(self, text: str) -> None:
        pairs = (pair.partition("=") for pair in shlex.split(text))
        self.environment |= {name: self._filled(value) for name, _, value in pairs}

    def _user(self, text: str) -> None:
        assert self._filled(text).isdigit(), "Kubernetes checks runAsNonRoot by the number"

    def _volume(self, text: str) -> None:
        assert Path(self._filled(text)).is_dir()

    def _cmd(self, text: str) -> None:
        self.command = json.loads(text)

    def _filled(self, text: str) -> str:
        return string.Template(text).substitute(self.environment)


def test_the_dockerfile_of_a_new_project_gives_an_instance_that_runs_and_closes(broker: Kafka, tmp_path: Path) -> None:
    name = unique("rooms")
    package = name.replace("-", "_")
    made = CliRunner().invoke(app, ["init", str(tmp_path / name)])
    assert made.exit_code == 0, made.output
    (tmp_path / "wheel").mkdir()
    wheel = build_wheel(copy_of_the_repository(tmp_path / "source"), tmp_path / "wheel")
    python = install(tmp_path / "environment", str(wheel), extras=())
    (packages,) = (tmp_path / "environment" / "lib").glob("python*/site-packages")
    for tool in ("pip", "pip-*", "setuptools", "setuptools-*", "_distutils_hack"):
        for part in Path(sysconfig.get_path("purelib")).glob(tool):
            (packages / part.name).symlink_to(part)

    root = tmp_path / "root"
    environment = users_environment(PATH=f"{python.parent}:{os.environ['PATH']}", PIP_NO_INDEX="1", PIP_NO_BUILD_ISOLATION="0")
    image = Image(tmp_path / name, root, {"STATE": str(root / "state"), "USER_ID": str(os.getuid())}, environment)
    image.build()
    assert (packages / f"{package}-0.1.0.dist-info").is_dir(), "the project is not installed"

    environment = image.environment | {"PENSTOCK_BOOTSTRAP_SERVERS": broker.bootstrap_servers}
    subprocess.run([python, "-m", f"{package}.send", "-n", "100"], cwd=image.folder, env=environment, check=True)
    log = tmp_path / "log"
    with log.open("wb") as stderr:
        process = subprocess.Popen(image.command, cwd=image.folder, env=environment, stderr=stderr)
    try:
        wait_until(lambda: process.poll() is not None or readings(broker) == sent(broker), 60, "the results")
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0, log.read_text()
        assert (root / "state").is_dir() and any((root / "state").iterdir())
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        for topic in ("readings", "rooms"):
            broker.delete_topic(topic)


def sent(broker: Kafka) -> int:
    return sum(broker.end_offsets("readings").values())


def readings(broker: Kafka) -> int:
    latest = {record.key: json.loads(record.value or b"{}") for record in broker.consume("rooms")}
    return sum(int(room["readings"]) for room in latest.values())
