"""Texts of errors of the application's code, which may be anything."""

from __future__ import annotations

import json
import logging

import pytest

from penstock.runtime.model.logs import JsonFormatter
from penstock.runtime.model.user_errors import described, text_of


class Fails(Exception):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def __str__(self) -> str:
        raise self.error


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(0), GeneratorExit()])
def test_an_error_that_has_no_text_is_described_by_its_type(error: BaseException) -> None:
    assert described(Fails(error)) == f"Fails: (its text cannot be shown: {type(error).__name__})"


def test_text_that_utf_8_cannot_encode_is_escaped() -> None:
    assert text_of(ValueError("a\ud800b")) == "a\\ud800b"


def test_a_line_of_the_log_is_written_whatever_its_text() -> None:
    record = logging.LogRecord("a", logging.ERROR, __file__, 1, "failed: %s", ("\udfff",), None)
    assert json.loads(JsonFormatter().format(record))["message"] == "failed: \\udfff"
