"""Sizes of the benchmark of many tasks."""

from __future__ import annotations

import pytest
import typer

from benchmarks.many import _size


def test_a_size_names_how_many_sub_topologies_have_a_store() -> None:
    assert _size("12x50") == (12, 50, 12)
    assert _size("12x200:6") == (12, 200, 6)
    assert _size("3x4:0") == (3, 4, 0)


@pytest.mark.parametrize("given", ["12", "0x4", "12x", "12x50:", "12x50:13", "axb"])
def test_a_size_that_is_none_is_refused(given: str) -> None:
    with pytest.raises(typer.BadParameter, match="expected is for example 12x50"):
        _size(given)
