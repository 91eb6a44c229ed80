"""Fixtures of the quick tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.orchestration.database import ControlPlane


@pytest.fixture
def control_plane(tmp_path: Path) -> Iterator[ControlPlane]:
    """An empty control plane in a file of its own."""
    made = ControlPlane(f"sqlite:///{tmp_path / 'control-plane.db'}")
    yield made
    made.close()
