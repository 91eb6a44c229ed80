"""The process of one build, asked through two pipes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import msgspec

from penstock.orchestration.declarations.errors import ExpectedError
from penstock.orchestration.instances.launcher import environment
from penstock.orchestration.rehearsals import messages

_MODULE = "penstock.orchestration.rehearsals.build"
ON_SPARK = "penstock.assets.spark.history.rehearsed"
"""Module of a process that answers `messages.RunOnSpark`. It is not imported here."""
_END_SECONDS = 5.0
_LAST_WORDS = 2_000

A = TypeVar("A", messages.Description, messages.Misfits, messages.Report, messages.Shown)


class RehearsalError(ExpectedError):
    """A rehearsal cannot be carried out; the application was not touched."""


@dataclass(frozen=True, slots=True)
class Build:
    """A version of the program. `code`: the folder from which it is imported before the project's own; None for the project as it is now.
    `label`: how it is called in messages."""

    label: str
    factory: str
    code: Path | None = None

    def __str__(self) -> str:
        return self.factory if self.code is None else f"{self.factory} in {self.code}"


class BuildProcess:
    """A context manager. `folder`: of its log. `module`: what runs in the process; by default, a build on this machine."""

    def __init__(self, build: Build, root: Path, folder: Path, module: str | None = None) -> None:
        self.build = build
        self.folder = folder
        self._log = folder / "log"
        folder.mkdir(parents=True)
        into, requests = os.pipe()
        answers, out = os.pipe()
        code = [] if build.code is None else [str(build.code)]
        inherited = dict(environment(root))
        if module is not None:  # Spark's workers are children, and import the build's code too: before the project's, in which they run
            inherited |= {"PYTHONPATH": os.pathsep.join([*code, inherited["PYTHONPATH"]]), "PYTHONSAFEPATH": "1"}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module or _MODULE, str(into), str(out), *code],
                cwd=root,
                env={**inherited, "PYTHONDONTWRITEBYTECODE": "1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(into, out),
            )
        os.close(into)
        os.close(out)
        self._requests, self._answers = os.fdopen(requests, "wb"), os.fdopen(answers, "rb")
        self._decoder = msgspec.json.Decoder(messages.Answer)

    def ask(
        self,
        request: messages.Request | messages.RunOnSpark,
        kind: type[A],
        progress: Callable[[int], None] = lambda records: None,
        notice: Callable[[str], None] = lambda text: None,
    ) -> A:
        """Return the answer; `progress` is called with the number of records processed so far, `notice` with each new step. Raises
        RehearsalError."""
        build = self.build
        with suppress(BrokenPipeError):  # the process has ended: there is no answer then
            self._requests.write(msgspec.json.encode(request) + b"\n")
            self._requests.flush()
        while (line := self._answers.readline()).endswith(b"\n"):  # a process that ends may leave half of one
            match self._decoder.decode(line):
                case messages.Progress(records=records):
                    progress(records)
                case messages.Notice(text=text):
                    notice(text)
                case messages.Refused(text=text):
                    raise RehearsalError(f"the {build.label} build ({build}) fails: {text}")
                case answer if isinstance(answer, kind):
                    return answer
        said = self._log.read_text(errors="replace").strip()[-_LAST_WORDS:] or "without a word"
        raise RehearsalError(f"the process of the {build.label} build ({build}) ended with status {self._process.wait()}: {said}")

    def __enter__(self) -> BuildProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        with suppress(BrokenPipeError):  # what the process has not read before it ended
            self._requests.close()
        self._answers.close()
        try:
            self._process.wait(_END_SECONDS if error is None else 0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
