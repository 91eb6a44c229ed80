"""Where things are on this machine: the project's root, what is declared, and the folder that holds everything that runs.

<root>/streams.toml                    what is declared to run            PENSTOCK_STREAMS names another file
<home> = <root>/.penstock/             everything that is kept            PENSTOCK_HOME names another folder
    control-plane.db                   alerts, run-books, audit           PENSTOCK_DATABASE_URL names another database
    state/<instance>/                  state directory of an instance
    logs/<instance>.log                its log, JSON lines
    instances/<instance>.json, .lock   what the launcher handed to it; held while it is being started
    broker/                            data of the embedded broker
    snapshots/<application>/<id>/      snapshot.json of each complete snapshot
    tables/<application>/<table>       tables that Spark makes of stores
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

STREAMS_TOML = "streams.toml"


@dataclass(frozen=True, slots=True)
class Places:
    """The folders and files of one project. `find()` is what programs use; tests make their own."""

    root: Path
    home: Path
    streams_toml: Path
    database_url: str

    @classmethod
    def find(cls) -> Places:
        """The project that the environment names, else the one that this package stands in."""
        named = os.environ.get("PENSTOCK_STREAMS")
        package_root = Path(__file__).resolve().parent.parent
        streams_toml = Path(named).expanduser().resolve() if named else package_root / STREAMS_TOML
        kept = os.environ.get("PENSTOCK_HOME")
        home = Path(kept).expanduser().resolve() if kept else package_root / ".penstock"
        return cls(
            root=streams_toml.parent if named else package_root,
            home=home,
            streams_toml=streams_toml,
            database_url=os.environ.get("PENSTOCK_DATABASE_URL") or default_database_url(home),
        )

    def state_dir(self, instance: str) -> Path:
        return self.home / "state" / instance

    def log_path(self, instance: str) -> Path:
        return self.home / "logs" / f"{instance}.log"

    def settings_path(self, instance: str) -> Path:
        """What `python -m runtime.instance --config` is given."""
        return self.home / "instances" / f"{instance}.json"

    def process_path(self, instance: str) -> Path:
        """Which process was started for the instance."""
        return self.home / "instances" / f"{instance}.process.json"

    def lock_path(self, instance: str) -> Path:
        return self.home / "instances" / f"{instance}.lock"

    @property
    def tables(self) -> Path:
        """Where tables are, unless they are declared to be elsewhere."""
        return self.home / "tables"

    def snapshots(self, application_id: str) -> Path:
        """The root of an application's complete snapshots."""
        return self.home / "snapshots" / application_id

    @property
    def broker_dir(self) -> Path:
        return self.home / "broker"


def default_database_url(home: Path) -> str:
    return f"sqlite:///{home / 'control-plane.db'}"
