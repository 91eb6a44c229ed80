"""The demo's environment: a separate home with a broker, Dagster and the declared application, and their shutdown.

The demo begins clean each time, so that there is something to replay. It keeps apart from what `make dev` uses: another home, and ports
that are free. Everything that is started knows the home by PENSTOCK_HOME; that is how what an earlier demo left behind (its terminal was
killed) is found, and how it is known that nothing is left at the end.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from types import TracebackType

import psutil
import tomlkit
from filelock import FileLock, Timeout

from penstock.orchestration.database import ControlPlane
from penstock.orchestration.declarations.applications import Applications, WrongDeclarationError
from penstock.orchestration.declarations.project_paths import STREAMS_TOML, ProjectPaths, default_database_url
from penstock.orchestration.embedded.dagster_server import DagsterServer
from penstock.orchestration.embedded.kafka import EmbeddedBroker
from penstock.orchestration.embedded.ports import free_port, is_free
from penstock.orchestration.instances.operations import Operations

APPLICATION = "flight-board"
ACTOR = "demo"
_DAGSTER_PORT = 3000
_STOP_SECONDS = 30.0


class StageError(Exception):
    """The demo cannot be set up; the message says why and what to do."""


class Stage:
    """A context manager. On entry the home is empty and used by this demo alone; on exit everything that runs in it is stopped."""

    def __init__(self, project: ProjectPaths) -> None:
        """`project` is the folder where the application is declared; the demo's home is the folder `demo` in that project's home."""
        self._project = project
        home = project.home / "demo"
        self.paths = ProjectPaths(root=home, home=home, streams_toml=home / STREAMS_TOML, database_url=default_database_url(home))
        self.broker = EmbeddedBroker(self.paths.broker_dir, free_port())
        port = _DAGSTER_PORT if is_free(_DAGSTER_PORT) else free_port()
        self.dagster = DagsterServer(home / "dagster", port, self.environment)
        self._lock = FileLock(project.home / "demo.lock", timeout=0)
        self._operations: Operations | None = None
        """Set after the application is declared."""
        self._outside: dict[str, str | None] = {}
        self.killed: list[str] = []
        """Processes that `stop` had to kill; normally none."""

    @property
    def environment(self) -> dict[str, str]:
        """Environment in which `penstock` commands and Dagster use the demo's home."""
        paths = self.paths
        return {
            "PENSTOCK_HOME": str(paths.home),
            "PENSTOCK_STREAMS": str(paths.streams_toml),
            "PENSTOCK_DATABASE_URL": paths.database_url,
        }

    def __enter__(self) -> Stage:
        """Raises StageError if another demo runs, or the home cannot be written."""
        home = self.paths.home
        try:
            home.parent.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
        except Timeout as error:
            raise StageError(f"another demo runs in {home}: end it with Ctrl-C, where it was started") from error
        except OSError as error:
            raise StageError(f"the demo's folder {home} cannot be used: {error.strerror}") from error
        try:
            self.clear()
        except BaseException:
            self._lock.release()
            raise
        self._outside = {name: os.environ.get(name) for name in self.environment}
        os.environ.update(self.environment)  # identifies all processes that are started from here on
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self.stop()
        finally:
            for name, value in self._outside.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
            self._lock.release()

    def clear(self) -> None:
        """Stop processes of an earlier demo, and remove its data. Raises StageError."""
        self._kill_left_over()
        self.broker.stop()
        try:
            if self.paths.home.exists():
                shutil.rmtree(self.paths.home)
            self.paths.home.mkdir()
        except OSError as error:
            raise StageError(f"what the last demo left in {self.paths.home} cannot be removed: {error}") from error

    def declare(self) -> Operations:
        """Return the application as the project declares it, on the demo's broker. Raises StageError, WrongDeclarationError."""
        declared = Applications.read(self._project.streams_toml)
        try:
            declared.named(APPLICATION)
        except WrongDeclarationError as error:
            raise StageError(f"{error}; the demo plays this application") from error
        document = tomlkit.parse(self._project.streams_toml.read_text(encoding="utf-8")).unwrap()
        application = document["applications"][APPLICATION]
        application["config"] = {**application.get("config", {}), "bootstrap.servers": self.broker.bootstrap_servers}
        application["backfill"] = {**application.get("backfill", {}), "outputs": str(self.paths.home / "outputs")}
        tables = [table for table in document.get("tables", []) if table["application"] == APPLICATION]
        text = tomlkit.dumps({"applications": {APPLICATION: application}, "tables": tables, "spark": document.get("spark", {})})
        self.paths.streams_toml.write_text(text, encoding="utf-8")
        self._operations = Operations(self.paths, Applications.parse(text, self.paths.streams_toml), ControlPlane(self.paths.database_url))
        return self._operations

    def stop(self) -> None:
        """Instances first, while the broker can take their last commit; then Dagster, the broker, and any remaining process."""
        try:
            if self._operations is not None:
                for name in self._operations.launcher.known():
                    self._operations.stop(name, actor=ACTOR, timeout_s=_STOP_SECONDS, kill=True)
                self._operations.control_plane.close()
        finally:
            self._operations = None
            self.dagster.stop()
            self.broker.stop()
            self.killed = self._kill_left_over()

    def left_over(self) -> list[psutil.Process]:
        """Return all running processes that were started for this home."""
        found: list[psutil.Process] = []
        for process in psutil.process_iter():
            try:
                ours = process.pid != os.getpid() and process.environ().get("PENSTOCK_HOME") == str(self.paths.home)
                if ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (psutil.Error, OSError):  # it has exited, or belongs to another user
                continue
        return found

    def _kill_left_over(self) -> list[str]:
        """Kill the remaining processes, and return their names."""
        killed: list[str] = []
        while left := self.left_over():  # a killed process may just have started another one
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    killed.append(f"process {process.pid} ({' '.join(process.cmdline())[:120]})")
                    process.kill()
            psutil.wait_procs(left, timeout=_STOP_SECONDS)
        return killed
