"""Messages of a run's child process: whole lines only, whatever the writer does, and an answer that is there when all of it is."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import dagster as dg
import msgspec
import pytest
from dagster_pipes import PipesMessage

from penstock.assets.spark.process.messages import ANSWER, MESSAGES, FolderReader, FolderWriter, LineWriter
from penstock.assets.spark.process.run import Answer, failed
from penstock.orchestration.declarations.spark_settings import SparkSettings
from penstock.runtime.model.errors import StreamsError
from tests.support import wait_until


class Heard:
    """Takes messages in Dagster's place; refuses those that say so."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def handle_message(self, message: dict[str, dict[str, str]]) -> None:
        text = message["params"]["message"]
        if text == "refuse":
            raise RuntimeError("database is locked")
        self.texts.append(text)


def message(text: str) -> PipesMessage:
    return {"__dagster_pipes_version": "0.1", "method": "log", "params": {"message": text}}


@contextmanager
def listening(reader: FolderReader) -> Iterator[tuple[Path, Heard]]:
    heard = Heard()
    with reader.read_messages(cast(dg.PipesMessageHandler, heard)) as params:
        yield Path(params["folder"]), heard


@contextmanager
def writing(path: Path, code: str) -> Iterator[Callable[[], None]]:
    """A process that runs some code on `file`, the open messages; it continues in `step()` when the function is called."""
    head = f"import os, sys\nfile = open({str(path)!r}, 'ab', buffering=0)\ndef step(): print('here', flush=True); sys.stdin.readline()\n"
    process = subprocess.Popen([sys.executable, "-c", head + code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    stdin, stdout = process.stdin, process.stdout

    def go_on() -> None:
        stdin.write(b"\n")
        stdin.flush()

    try:
        assert stdout.readline() == b"here\n"
        yield go_on
    finally:
        process.kill()
        process.communicate()


def test_a_line_that_is_written_in_pieces_is_one_message() -> None:
    reader = FolderReader()
    data = json.dumps(message("in pièces 😀"), ensure_ascii=False).encode() + b"\n"
    cut = data.index("😀".encode()) + 2  # in the middle of a character
    code = f"file.write({data[:cut]!r}); step(); file.write({data[cut:]!r}); file.write({data!r}); step()"
    with listening(reader) as (folder, heard), writing(folder / MESSAGES, code) as go_on:
        LineWriter(folder / "other").write_message(message("elsewhere"))
        assert heard.texts == []
        go_on()
        wait_until(lambda: len(heard.texts) == 2, 30)
    assert heard.texts == ["in pièces 😀"] * 2


def test_a_writer_that_is_killed_in_mid_line_leaves_what_was_whole(caplog: pytest.LogCaptureFixture) -> None:
    reader = FolderReader()
    data = json.dumps(message("whole")).encode() + b"\n"
    with listening(reader) as (folder, heard), writing(folder / MESSAGES, f"file.write({data + data[:9]!r}); step()"):
        pass
    assert heard.texts == ["whole"]
    assert reader.answer is None
    assert "is cut off after 9 bytes" in caplog.text


def test_a_torn_line_and_one_that_is_refused_cost_themselves_alone(caplog: pytest.LogCaptureFixture) -> None:
    reader = FolderReader()
    whole = [json.dumps(message(text)).encode() for text in ("first", "refuse", "last")]
    torn = [b'{"method": "log", "par', b"\xff\xfe", b"[]", b'"text"', b"", b"\x00" * 9, b'{"method": "log"}']
    with listening(reader) as (folder, heard):
        (folder / MESSAGES).write_bytes(b"\n".join([whole[0], *torn, whole[1], *torn, whole[2]]) + b"\n")
    assert heard.texts == ["first", "last"]
    assert "database is locked" in caplog.text
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 2 * (len(torn) - 1) + 1


def test_long_lines_of_several_threads_are_whole() -> None:
    """Written in pieces of a buffer's size, as a text file of Python is, they stand in one another."""
    reader = FolderReader()
    texts = [f"{number}{'é' * (200_000 if number % 2 else 5)}" for number in range(20)]
    with listening(reader) as (folder, heard):
        writer = LineWriter(folder / MESSAGES)
        threads = [threading.Thread(target=writer.write_message, args=(message(text),)) for text in texts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        writer.write_message(message("x" * 20_000_000))
    assert sorted(heard.texts[:-1]) == sorted(texts)
    assert len(heard.texts[-1]) == 20_000_000


def test_a_message_that_cannot_be_written_fails_nothing(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    LineWriter(Path("/dev/full")).write_message(message("no space"))
    assert "is lost ([Errno 28]" in capfd.readouterr().err


def test_after_a_line_that_broke_off_the_next_one_begins_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, short = os.write, iter([True])

    def write(file: int, data: bytes) -> int:
        return real(file, data[:5] if next(short, False) else data)

    def broken(file: int, data: bytes) -> int:
        real(file, data[:5])
        raise OSError(28, "No space left on device")

    writer = LineWriter(tmp_path / "short")
    monkeypatch.setattr(os, "write", write)
    writer.write_message(message("short write"))
    assert json.loads((tmp_path / "short").read_bytes()) == message("short write")
    monkeypatch.setattr(os, "write", broken)
    writer.write_message(message("broken"))
    monkeypatch.setattr(os, "write", real)
    writer.write_message(message("next"))
    lines = (tmp_path / "short").read_bytes().split(b"\n")
    assert len(lines) == 4 and json.loads(lines[2]) == message("next")


def test_the_answer_is_there_when_all_of_it_is() -> None:
    reader, writer = FolderReader(), FolderWriter()
    with listening(reader) as (folder, _), writer.open({"folder": str(folder)}):
        (folder / f"{ANSWER}.part").write_bytes(b'{"result": {"ro')  # whoever wrote this was killed
        assert not (folder / ANSWER).exists()
        writer.answer(b'{"result": 1}')
        writer.answer(b'{"result": 2}')
    assert reader.answer == b'{"result": 2}'
    assert not folder.exists()


class Silent(Exception):
    """An error without a text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("not a name: \ud800"), "ValueError: not a name: \\ud800"),
        (StreamsError("not a name: \ud800"), "not a name: \\ud800"),
        (Silent(), "Silent: (its text cannot be shown: RuntimeError)"),
    ],
)
def test_an_error_whose_text_cannot_be_written_is_named_in_the_answer(error: Exception, text: str) -> None:
    """Without an answer the run would only say that the process ended before its work was done."""
    try:
        raise error
    except (ValueError, StreamsError, Silent) as raised:
        answer = failed(raised, SparkSettings())
    assert msgspec.json.decode(msgspec.json.encode(answer), type=Answer).error == text


def test_of_a_child_that_is_killed_in_its_answer_there_is_none() -> None:
    reader = FolderReader()
    code = (
        "from pathlib import Path\nfrom penstock.assets.spark.process.messages import FolderWriter\nwriter = FolderWriter()\n"
        "writer._folder = Path(file.name).parent\n(writer._folder / 'answer.part').write_bytes(b'{')\nstep()\n"
        f"os.kill(os.getpid(), {int(signal.SIGKILL)})"
    )
    with listening(reader) as (folder, _), writing(folder / MESSAGES, code) as go_on:
        go_on()
    assert reader.answer is None
