"""Fixture of the suites of stores. Each suite has its own `kind`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from penstock.runtime.stores.base import EngineStore
from tests.support.stores import Opened, opened


class Kind(Protocol):
    """One implementation of the suite's interface."""

    @property
    def make(self) -> Callable[[], EngineStore]: ...


@pytest.fixture
def under_test(kind: Kind, tmp_path: Path) -> Iterator[Opened[EngineStore]]:
    """Yield an open store of this kind."""
    yield from opened(kind.make, tmp_path)
