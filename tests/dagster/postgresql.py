"""A real PostgreSQL for tests: a server of its own, that may be stopped and started. Skips where the machine has none."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from pathlib import Path

import pytest
import sqlalchemy

from orchestration.embedded.ports import free_port
from tests.support import unique


def _tool(name: str) -> str:
    """The path of one of PostgreSQL's programs; Debian keeps them off the PATH."""
    found = shutil.which(name) or max(map(str, Path("/usr/lib/postgresql").glob(f"*/bin/{name}")), default=None)
    if found is None:
        pytest.skip(f"no PostgreSQL on this machine ({name} was not found); on Debian: apt-get install postgresql")
    return found


class PostgreSQL:
    """A server on a free port, its data in a folder of its own. `remove()` it at the end."""

    def __init__(self) -> None:
        self._folder = Path("/tmp") / unique("penstock-postgresql")  # pytest's folders do not let another user in
        self._folder.mkdir(mode=0o755)
        self._as_user: list[str] = []
        if os.geteuid() == 0:  # PostgreSQL refuses to run as root
            try:
                user = pwd.getpwnam("postgres")
            except KeyError:
                pytest.skip("PostgreSQL does not run as root, and there is no user postgres")
            os.chown(self._folder, user.pw_uid, user.pw_gid)
            self._as_user = ["runuser", "-u", "postgres", "--"]
        self._port = free_port()
        self.url = f"postgresql://postgres@127.0.0.1:{self._port}"
        self._run(_tool("initdb"), "--auth=trust", "--username=postgres", "--no-sync", "-D", str(self._folder / "data"))

    def start(self) -> None:
        options = f"-p {self._port} -c listen_addresses=127.0.0.1 -c unix_socket_directories='' -c fsync=off"
        self._run(_tool("pg_ctl"), "start", "--wait", "-D", str(self._folder / "data"), "-l", str(self._folder / "log"), "-o", options)

    def stop(self) -> None:
        """At once, as in a crash: connections break, transactions roll back."""
        self._run(_tool("pg_ctl"), "stop", "-m", "immediate", "-D", str(self._folder / "data"))

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self._folder)

    def new_database(self) -> str:
        """The URL of an empty database."""
        name = unique("penstock").replace("-", "_")
        engine = sqlalchemy.create_engine(
            self.url.replace("postgresql:", "postgresql+psycopg:") + "/postgres", isolation_level="AUTOCOMMIT"
        )
        with engine.connect() as connection:
            connection.exec_driver_sql(f"CREATE DATABASE {name}")
        engine.dispose()
        return f"{self.url}/{name}"

    def _run(self, *command: str) -> None:
        subprocess.run([*self._as_user, *command], cwd=self._folder, check=True, capture_output=True, timeout=120)
