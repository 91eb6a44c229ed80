"""Folders and files of a project on this machine: its root, the declaration, and the folder with all data.

<root>/streams.toml                    what is declared to run            PENSTOCK_STREAMS names another file
<home> = <root>/.penstock/             all data                           PENSTOCK_HOME names another folder
    control-plane.db                   alerts, run-books, audit           PENSTOCK_DATABASE_URL names another database
    state/<instance>/                  state directory of an instance
    logs/<instance>.log                its log, JSON lines
    instances/<instance>.json, .lock   its settings and process, written by the launcher; the lock is held while it starts
    broker/                            data of the embedded broker
    snapshots/<application>/<id>/      snapshot.json of each complete snapshot
    tables/<application>/<table>       tables that Spark builds from stores
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import penstock

STREAMS_TOML = "streams.toml"


@dataclass(frozen=True, slots=True)
class ProjectPaths:
    """Folders and files of one project. Programs use `find()`; tests construct their own."""

    root: Path
    home: Path
    streams_toml: Path
    database_url: str

    @classmethod
    def find(cls) -> ProjectPaths:
        """Return the project that the environment names, else the one in the current folder, else the one that contains this package.

        Folders above the current one are not searched: a factory is code, and a `streams.toml` in `/tmp` may belong to another user."""
        named, here = os.environ.get("PENSTOCK_STREAMS"), Path.cwd() / STREAMS_TOML
        package_root = Path(penstock.__file__).resolve().parents[1]  # the clone, or site-packages
        streams_toml = Path(named).expanduser().resolve() if named else here if here.is_file() else package_root / STREAMS_TOML
        root = streams_toml.parent
        kept = os.environ.get("PENSTOCK_HOME")
        home = Path(kept).expanduser().resolve() if kept else root / ".penstock"
        return cls(
            root=root,
            home=home,
            streams_toml=streams_toml,
            database_url=os.environ.get("PENSTOCK_DATABASE_URL") or default_database_url(home),
        )

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment with which `find` finds this project in a process that starts in another folder."""
        return {"PENSTOCK_STREAMS": str(self.streams_toml), "PENSTOCK_HOME": str(self.home)}

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
    def broker_dir(self) -> Path:
        return self.home / "broker"


def default_database_url(home: Path) -> str:
    return f"sqlite:///{home / 'control-plane.db'}"
