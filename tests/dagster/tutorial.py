"""docs/tutorial.md and docs/history-tutorial.md, typed as a reader types them: files are written, commands run, their output is compared
with the page's, and the screenshots are taken in a real browser. `python -m tests.dagster.tutorial` renews the screenshots in docs/.

In a `console` block a line after `$ ` is a command, and the lines up to the next one are its output: `…` stands for any text, a line of it
for any lines; spaces do not count. A command that only looks (`LOOKING`) is repeated until its output is the page's, as a reader would do.
A block `diff` below a line that ends with a path and a colon is a change of that file, a block of another language the file itself.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock.orchestration.embedded.ports import free_port
from tests.dagster.browsing import chromium, opened, see
from tests.support import ROOT, wait_until
from tests.support.installed import users_environment

PAGE, HISTORY = ROOT / "docs" / "tutorial.md", ROOT / "docs" / "history-tutorial.md"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
LOOKING = ("penstock status", "penstock tasks", "penstock alerts", "penstock run-books", "penstock broker tool kafka-console-consumer")
SERVER = "penstock dev"
"""The command of the second terminal."""
PICTURES = {"tutorial-alert.png": ("is paused at", "Failed"), "tutorial-repaired.png": ("no alert is open", "Passed")}
"""Screenshots of the check `no_open_alerts`, with the texts to wait for."""
PATIENCE = 120.0
_STEP = re.compile(r"^```(\w+)\n(.*?)^```$|^!\[[^\]]*\]\(([\w.-]+)\)$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"`([\w./-]+)`:\n+$")


@dataclass(frozen=True, slots=True)
class File:
    path: str
    text: str


@dataclass(frozen=True, slots=True)
class Change:
    path: str
    diff: str

    def apply(self, text: str) -> str:
        """Return the text with the change. Each part of the diff, between lines `@@`, must fit one place."""
        for part in self.diff.split("@@\n"):
            old, new = ("".join(line[1:] for line in part.splitlines(keepends=True) if line[0] in kept) for kept in (" -", " +"))
            assert text.count(old) == 1, f"{self.path}: {text.count(old)} times\n{old}"
            text = text.replace(old, new)
        return text


@dataclass(frozen=True, slots=True)
class Command:
    text: str
    expected: str

    def matches(self, output: str) -> bool:
        """Whether the output is the page's."""
        if not self.expected:
            return True
        expected, lines = ([" ".join(line.split()) for line in text.strip().splitlines()] for text in (self.expected, output))
        pattern = "".join("(?:.*\n)*?" if line == "…" else re.escape(line).replace("…", ".*?") + "\n" for line in expected)
        return re.fullmatch(pattern, "".join(f"{line}\n" for line in lines)) is not None


@dataclass(frozen=True, slots=True)
class Picture:
    name: str


def steps(text: str) -> Iterator[File | Change | Command | Picture]:
    """Yield what a reader of the page does, in order."""
    for found in _STEP.finditer(text):
        language, block, picture = found.groups()
        if picture is not None:
            yield Picture(picture)
        elif language == "console":
            for command in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
                line, _, expected = command.partition("\n")
                yield Command(line, expected)
        elif named := _FILE.search(text[: found.start()]):
            yield (Change if language == "diff" else File)(named[1], block)


class Reader:
    """A reader at a terminal in an empty folder."""

    def __init__(self, folder: Path, pictures: Path) -> None:
        """`pictures`: where the screenshots go."""
        self._folder, self._pictures = folder, pictures
        self._port, kafka_port = free_port(), free_port()
        self._options = {
            SERVER: f"--port {self._port} --kafka-port {kafka_port}",
            "penstock broker start": f"--port {kafka_port}",
        }
        """Options that a reader does not type: of commands that take ports."""
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        kept = {name: value for name, value in os.environ.items() if name == "PENSTOCK_CACHE"}
        self._environment = users_environment(PATH=path, PENSTOCK_BOOTSTRAP_SERVERS=f"127.0.0.1:{kafka_port}", **kept)
        self._log = folder / "dev.log"
        self._server: subprocess.Popen[bytes] | None = None

    def follow(self, page: Path = PAGE) -> None:
        """Do all that the page says."""
        for step in steps(page.read_text()):
            match step:
                case File(path, text):
                    (self._folder / path).write_text(text)
                case Change(path):
                    (self._folder / path).write_text(step.apply((self._folder / path).read_text()))
                case Command():
                    self._type(step)
                case Picture(name):
                    self._photograph(name)

    def close(self) -> None:
        """Press Ctrl-C in the second terminal, and stop what the page has started if it was left in the middle."""
        if self._server is not None and self._server.poll() is None:
            os.killpg(self._server.pid, signal.SIGINT)
            try:
                self._server.wait(60)
            except subprocess.TimeoutExpired:  # also if whoever runs the tests ignores Ctrl-C, as a shell's background processes do
                os.killpg(self._server.pid, signal.SIGKILL)
                self._server.wait(10)
        for command in ("penstock stop --kill --timeout 20", "penstock broker stop"):
            self._output(command)

    def _type(self, command: Command) -> None:
        if command.text.startswith("cd "):
            self._folder /= command.text.removeprefix("cd ")
        elif command.text == SERVER:
            with self._log.open("wb") as log:
                self._server = subprocess.Popen(
                    f"{SERVER} {self._options[SERVER]}".split(),
                    cwd=self._folder,
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            self._compare(command, self._log.read_text, PATIENCE)
        else:
            typed = f"{command.text} {self._options.get(command.text, '')}"
            self._compare(command, lambda: self._output(typed), PATIENCE if command.text.startswith(LOOKING) else 0)

    def _compare(self, command: Command, output: Callable[[], str], patience: float) -> None:
        """Compare the output with the page's, again until the patience ends."""
        seen = ""

        def matches() -> bool:
            nonlocal seen
            seen = output()
            return command.matches(seen)

        try:
            if not matches():
                wait_until(matches, patience, "the output")
        except AssertionError as error:
            raise AssertionError(f"$ {command.text}\n{seen}\nThe page has:\n{command.expected}") from error

    def _output(self, command: str) -> str:
        """Return what a command prints."""
        done = subprocess.run(
            command,
            shell=True,
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=300,
        )
        return done.stdout

    def _photograph(self, name: str) -> None:
        """Take a screenshot of Dagster's UI, if the machine has a browser."""
        executable = chromium()
        if executable is None:
            return
        with opened(executable, 1200, 700) as page:
            see(page, f"http://127.0.0.1:{self._port}/assets/climate/instances?view=checks&checkDetail=no_open_alerts", *PICTURES[name])
            page.screenshot(path=self._pictures / name)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        reader = Reader(Path(folder), PAGE.parent)
        try:
            reader.follow()
        finally:
            reader.close()


if __name__ == "__main__":
    main()
