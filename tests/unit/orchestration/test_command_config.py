"""Login of commands that name their brokers."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.orchestration.commands.command_config import VARIABLE, CommandConfigError, command_config
from penstock.orchestration.commands.common import named
from penstock.runtime.model.errors import StreamsConfigError


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "client.properties"
    monkeypatch.setenv(VARIABLE, str(path))
    return path


def test_without_a_file_there_is_no_login(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert command_config("k:9092") == {"bootstrap.servers": "k:9092"}


def test_the_file_has_a_setting_per_line_and_the_option_names_the_brokers(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", "s3cret=")
    file.write_text(
        "# of the operators\n\nbootstrap.servers=other:1\nsecurity.protocol = SASL_SSL\nsasl.mechanism=PLAIN\n"
        "sasl.username=ann\nsasl.password=${KAFKA_PASSWORD}\n"
    )
    connection = named("app", "k:9092").connection
    assert connection.servers == "k:9092"
    settings = connection.client({})
    assert (settings["security.protocol"], settings["sasl.password"]) == ("SASL_SSL", "s3cret=")


def test_what_cannot_be_read_is_named_without_its_content(file: Path) -> None:
    with pytest.raises(CommandConfigError, match=r"client\.properties cannot be read: No such file"):
        named("app", "k:9092")
    file.write_text("sasl.username=ann\nsasl.password s3cret\n")
    with pytest.raises(CommandConfigError, match="line 2: expected name = value") as caught:
        named("app", "k:9092")
    assert "s3cret" not in str(caught.value)
    file.write_text("sasl.pasword=s3cret\n")
    with pytest.raises(StreamsConfigError, match=r"sasl\.pasword") as misspelled:
        named("app", "k:9092")
    assert "s3cret" not in str(misspelled.value)
