"""Packages that only a part of Penstock needs: an extra of the distribution, as in `pip install 'penstock[dagster]'`."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.runtime.model.errors import MissingExtraError


def require(name: str, what: str, *packages: str) -> None:
    """Raise MissingExtraError if one of these packages of an extra is not installed; nothing is imported."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise _missing(name, what, package)


@contextmanager
def extra(name: str, what: str) -> Iterator[None]:
    """Import packages of an extra in this block. Raises MissingExtraError, with what needs them and the command, if one is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "penstock"):
            raise
        raise _missing(name, what, package) from None


def _missing(name: str, what: str, package: str) -> MissingExtraError:
    return MissingExtraError(f"{what} needs the package {package}: pip install 'penstock[{name}]'", name=package)
