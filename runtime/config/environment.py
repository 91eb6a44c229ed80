"""Environment variables in configuration, as `${NAME}` in a text: for secrets, and for values of the machine such as a pod's name."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from penstock.runtime.model.errors import StreamsConfigError
from penstock.runtime.model.secrets import FromEnvironment

BUILD = "PENSTOCK_BUILD"
"""Environment variable that passes an instance's fingerprint to its worker processes (`instance/build.py`)."""

_NAME = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def filled_in(text: str, where: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return the text with each `${NAME}` replaced. Raises StreamsConfigError, naming `where`, for a variable that is not set."""

    def value(found: re.Match[str]) -> str:
        if found[1] not in environment:
            raise StreamsConfigError(f"{where}: {found[0]} is not set in the environment")
        return environment[found[1]]

    return _NAME.sub(value, text)


def setting(text: str, where: str) -> str:
    """As `filled_in`, for a configuration value. The result keeps its template, which messages show instead of the value."""
    return FromEnvironment.of(filled_in(text, where), text) if _NAME.search(text) else text
