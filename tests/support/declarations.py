"""Checks of declarations in `streams.toml`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.orchestration.declarations.applications import Applications, WrongDeclarationError


def refuses_declaration(text: str, file: Path, says: Sequence[str]) -> None:
    """Assert that reading `text` fails with a message that names the file and contains each part of `says`."""
    with pytest.raises(WrongDeclarationError) as caught:
        Applications.parse(text, file)
    message = str(caught.value)
    assert str(file) in message
    for part in says:
        assert part in message
