"""A real PostgreSQL for tests: a separate server that can be stopped and started. Skips if the machine has none."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy

from penstock.orchestration.embedded.ports import free_port
from tests.support import unique


def _tool(name: str) -> str:
    """Return the path of one of PostgreSQL's programs; Debian keeps them off the PATH."""
    found = shutil.which(name) or max(map(str, Path("/usr/lib/postgresql").glob(f"*/bin/{name}")), default=None)
    if found is None:
        pytest.skip(f"no PostgreSQL on this machine ({name} was not found); on Debian: apt-get install postgresql")
    return found


@contextmanager
def postgresql() -> Iterator[PostgreSQL]:
    """Yield a server that runs; it is removed at the end."""
    server = PostgreSQL()
    server.start()
    try:
        yield server
    finally:
        server.remove()


class PostgreSQL:
    """A server on a free port, with its data in its own folder. `remove()` it at the end."""

    def __init__(self) -> None:
        self._folder = Path("/tmp") / unique("penstock-postgresql")  # another user has no access to pytest's folders
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
        self._run(_tool("initdb"), "--auth=trust", "--username=postgres", "--encoding=UTF8", "--no-sync", "-D", str(self._folder / "data"))

    def start(self) -> None:
        options = f"-p {self._port} -c listen_addresses=127.0.0.1 -c unix_socket_directories='' -c fsync=off"
        self._run(_tool("pg_ctl"), "start", "--wait", "-D", str(self._folder / "data"), "-l", str(self._folder / "log"), "-o", options)

    def stop(self) -> None:
        """Stop at once, as in a crash: connections break, transactions roll back."""
        self._run(_tool("pg_ctl"), "stop", "-m", "immediate", "-D", str(self._folder / "data"))

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self._folder)

    def new_database(self) -> str:
        """Return the URL of an empty database."""
        name = unique("penstock").replace("-", "_")
        engine = sqlalchemy.create_engine(
            self.url.replace("postgresql:", "postgresql+psycopg:") + "/postgres", isolation_level="AUTOCOMMIT"
        )
        with engine.connect() as connection:
            connection.exec_driver_sql(f"CREATE DATABASE {name}")
        engine.dispose()
        return f"{self.url}/{name}"

    def _run(self, *command: str) -> None:
        """Run one of PostgreSQL's programs as its user; fail with the program's output."""
        plain = {"PATH": os.environ["PATH"], "LC_ALL": "C"}  # initdb rejects a locale that this machine lacks
        called = [*self._as_user, *command]
        done = subprocess.run(called, cwd=self._folder, env=plain, check=False, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, f"{' '.join(command)} ended with {done.returncode}: {done.stdout}{done.stderr}"
