"""Folders and files of a project on this machine: its root, the declaration, and the folder with all data.

<root>/streams.toml                    what is declared to run            PENSTOCK_STREAMS names another file
<home> = <root>/.penstock/             all data                           PENSTOCK_HOME names another folder
    control-plane.db                   alerts, run-books, audit           PENSTOCK_DATABASE_URL names another database
    dagster/                           Dagster's home                     DAGSTER_HOME names another folder
    state/<instance>/                  state directory of an instance
    logs/<instance>.log                its log, JSON lines
    instances/<instance>.json, .lock   its settings and process, written by the launcher; the lock is held while it starts
    broker/                            data of the embedded broker
    snapshots/<application>/<id>/      snapshot.json of each complete snapshot
    tables/<application>/<table>       tables that Spark builds from stores

The table `[tool.penstock]` of a `pyproject.toml` declares the same as a `streams.toml`.
"""

from __future__ import annotations

import json
import os
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from penstock.orchestration.embedded.ports import KAFKA_PORT, LOOPBACK

STREAMS_TOML = "streams.toml"
_named: Path | None = None
"""The declaration that this process's Dagster definitions name (`choose`)."""
PYPROJECT = "pyproject.toml"
_ROOT = 0
"""User id of root, who may do anything anyway."""


@dataclass(frozen=True, slots=True)
class ProjectPaths:
    """Folders and files of one project. Programs use `find()`; tests construct their own."""

    root: Path
    home: Path
    streams_toml: Path
    database_url: str
    declared: bool = field(default=True, compare=False)
    """False if no project was found: `streams_toml` does not exist, and the current folder is the root."""
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Why `streams_toml`, `home` and `database_url` are what they are, for `penstock where`."""

    @classmethod
    def find(cls) -> ProjectPaths:
        """Return the project that the environment names, else the one of `choose`, else the nearest folder upwards, from the current one,
        with a `streams.toml` or a `[tool.penstock]` in its `pyproject.toml`, else the current folder, with nothing declared.

        A factory is code, so above the current folder a file counts only if this user or root owns it: a `streams.toml` in `/tmp` may
        belong to another user."""
        named = os.environ.get("PENSTOCK_STREAMS")
        found = Path(named).expanduser().resolve() if named else None
        why = "PENSTOCK_STREAMS"
        if found is None and _named is not None:
            found, why = _named, "named by the Dagster definitions"
        if found is None:
            found, why = _search(Path.cwd())
        streams_toml = found or Path.cwd() / STREAMS_TOML
        root = streams_toml.parent
        kept, url = os.environ.get("PENSTOCK_HOME"), os.environ.get("PENSTOCK_DATABASE_URL")
        home = Path(kept).expanduser().resolve() if kept else root / ".penstock"
        sources = {
            "streams_toml": why,
            "home": "PENSTOCK_HOME" if kept else "default: .penstock in the project",
            "database_url": "PENSTOCK_DATABASE_URL" if url else "default: SQLite in the home",
        }
        return cls(root, home, streams_toml, url or default_database_url(home), found is not None, sources)

    @staticmethod
    def choose(streams_toml: Path) -> None:
        """Make a declaration the one of this process, unless PENSTOCK_STREAMS names another. For Dagster, whose processes start in any
        folder and import the definitions."""
        global _named
        _named = streams_toml.resolve()

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment with which `find` finds this project in a process that starts in another folder."""
        named = {"PENSTOCK_STREAMS": str(self.streams_toml)} if self.declared else {}
        return named | {"PENSTOCK_HOME": str(self.home)}

    def make_importable(self) -> None:
        """Let this process import the project's modules from its folder, as the launcher lets instances."""
        if str(self.root) not in sys.path:
            sys.path.append(str(self.root))

    def state_dir(self, instance: str) -> Path:
        return self.home / "state" / instance

    def log_path(self, instance: str) -> Path:
        return self.home / "logs" / f"{instance}.log"

    def settings_path(self, instance: str) -> Path:
        """Return the file that `python -m penstock.runtime.instance --config` reads."""
        return self.home / "instances" / f"{instance}.json"

    def process_path(self, instance: str) -> Path:
        """Return the file that identifies the process started for the instance."""
        return self.home / "instances" / f"{instance}.process.json"

    def lock_path(self, instance: str) -> Path:
        return self.home / "instances" / f"{instance}.lock"

    @property
    def tables(self) -> Path:
        """Default folder of tables."""
        return self.home / "tables"

    def snapshots(self, application_id: str) -> Path:
        """Return the root of an application's complete snapshots."""
        return self.home / "snapshots" / application_id

    @property
    def dagster_home(self) -> tuple[Path, str]:
        """Return Dagster's home for `penstock dev`, and why: DAGSTER_HOME; the project's folder if that has a `dagster.yaml`; else a folder
        in the home, with Penstock's own settings."""
        named = os.environ.get("DAGSTER_HOME")
        if named:
            return Path(named).expanduser().resolve(), "DAGSTER_HOME"
        if (self.root / "dagster.yaml").is_file():
            return self.root, "dagster.yaml in the project"
        return self.home / "dagster", "default: dagster in the home"

    @property
    def broker_dir(self) -> Path:
        return self.home / "broker"

    @property
    def broker_port(self) -> int:
        """Port of the project's embedded broker at its last start, whether or not it still runs; 9092 if it was never started."""
        try:
            return int(json.loads((self.broker_dir / "lock").read_text())["port"])
        except (OSError, ValueError):  # never started; or it is just starting, and the file is empty
            return KAFKA_PORT

    @property
    def embedded_broker(self) -> str:
        """Address of the project's embedded broker: what applications use that name no other."""
        return f"{LOOPBACK}:{self.broker_port}"


def default_database_url(home: Path) -> str:
    return f"sqlite:///{home / 'control-plane.db'}"


def _search(folder: Path) -> tuple[Path | None, str]:
    """Return the nearest declaration in the folder or above it, and why it is that one, or why there is none."""
    others: list[str] = []
    for place in (folder, *folder.parents):
        path = next((path for path in (place / STREAMS_TOML, place / PYPROJECT) if _declares(path)), None)
        if path is None:
            continue
        if place == folder:
            return path, "in the current folder"
        if path.stat().st_uid in (os.geteuid(), _ROOT):
            return path, f"the nearest above {folder}"
        others.append(str(path))
    passed_over = f" ({', '.join(others)}: of another user, not used; PENSTOCK_STREAMS may name it)" if others else ""
    return None, f"none in {folder} or above it{passed_over}"


def _declares(path: Path) -> bool:
    """Return True for a `streams.toml`, and for a `pyproject.toml` with a table `tool.penstock`."""
    if path.name == STREAMS_TOML or not os.path.isfile(path):  # False, unlike Path.is_file(), in a folder that may not be read
        return os.path.isfile(path)
    try:
        tool = tomllib.loads(path.read_text(encoding="utf-8")).get("tool")
    except (OSError, ValueError):  # other tools report what is wrong with it
        return False
    return isinstance(tool, dict) and "penstock" in tool
