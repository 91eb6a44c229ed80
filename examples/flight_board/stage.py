"""What the demo plays on: a home of its own with a broker, Dagster and the declared application in it; and their end.

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

from orchestration.applications import Applications, WrongDeclarationError
from orchestration.control_plane import ControlPlane
from orchestration.embedded.dagster_server import DagsterServer
from orchestration.embedded.kafka import EmbeddedBroker
from orchestration.embedded.ports import free_port, is_free
from orchestration.operations import Operations
from orchestration.places import STREAMS_TOML, Places, default_database_url

APPLICATION = "flight-board"
ACTOR = "demo"
_DAGSTER_PORT = 3000
_STOP_SECONDS = 30.0


class StageError(Exception):
    """The demo cannot be set up; the message says why and what to do."""


class Stage:
    """A context manager. Inside it the home is this demo's alone and empty; at its end everything that runs in it is stopped."""

    def __init__(self, project: Places) -> None:
        """`project` is where the application is declared; the demo's home is the folder `demo` in that project's."""
        self._project = project
        home = project.home / "demo"
        self.places = Places(root=home, home=home, streams_toml=home / STREAMS_TOML, database_url=default_database_url(home))
        self.broker = EmbeddedBroker(self.places.broker_dir, free_port())
        port = _DAGSTER_PORT if is_free(_DAGSTER_PORT) else free_port()
        self.dagster = DagsterServer(home / "dagster", port, self.environment)
        self._lock = FileLock(project.home / "demo.lock", timeout=0)
        self._operations: Operations | None = None
        """Once the application is declared."""
        self._outside: dict[str, str | None] = {}
        self.killed: list[str] = []
        """What `stop` had to kill in the end; nothing, if all is well."""

    @property
    def environment(self) -> dict[str, str]:
        """What makes any `penstock` command, and Dagster, work on the demo."""
        places = self.places
        return {
            "PENSTOCK_HOME": str(places.home),
            "PENSTOCK_STREAMS": str(places.streams_toml),
            "PENSTOCK_DATABASE_URL": places.database_url,
        }

    def __enter__(self) -> Stage:
        """Raises StageError if another demo runs, or the home cannot be written."""
        home = self.places.home
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
        os.environ.update(self.environment)  # all that is started from here on can be found by it
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
        """Ends what an earlier demo left running, and removes its data. Raises StageError."""
        self._kill_left_over()
        self.broker.stop()
        try:
            if self.places.home.exists():
                shutil.rmtree(self.places.home)
            self.places.home.mkdir()
        except OSError as error:
            raise StageError(f"what the last demo left in {self.places.home} cannot be removed: {error}") from error

    def declare(self) -> Operations:
        """The application as the project declares it, on the demo's broker. Raises StageError, WrongDeclarationError."""
        declared = Applications.read(self._project.streams_toml)
        try:
            declared.named(APPLICATION)
        except WrongDeclarationError as error:
            raise StageError(f"{error}; the demo plays this application") from error
        document = tomlkit.parse(self._project.streams_toml.read_text(encoding="utf-8")).unwrap()
        application = document["applications"][APPLICATION]
        application["config"] = {**application.get("config", {}), "bootstrap.servers": self.broker.bootstrap_servers}
        tables = [table for table in document.get("tables", []) if table["application"] == APPLICATION]
        text = tomlkit.dumps({"applications": {APPLICATION: application}, "tables": tables, "spark": document.get("spark", {})})
        self.places.streams_toml.write_text(text, encoding="utf-8")
        self._operations = Operations(
            self.places, Applications.parse(text, self.places.streams_toml), ControlPlane(self.places.database_url)
        )
        return self._operations

    def stop(self) -> None:
        """Instances first, while their broker is there to take their last commit; then Dagster, the broker, and whatever else is left."""
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
        """Every process that was started for this home and still runs."""
        found: list[psutil.Process] = []
        for process in psutil.process_iter():
            try:
                ours = process.pid != os.getpid() and process.environ().get("PENSTOCK_HOME") == str(self.places.home)
                if ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (psutil.Error, OSError):  # it ended meanwhile, or belongs to somebody else
                continue
        return found

    def _kill_left_over(self) -> list[str]:
        """Kills what is left, and says what that was."""
        killed: list[str] = []
        while left := self.left_over():  # what is killed may just have started something
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    killed.append(f"process {process.pid} ({' '.join(process.cmdline())[:120]})")
                    process.kill()
            psutil.wait_procs(left, timeout=_STOP_SECONDS)
        return killed
