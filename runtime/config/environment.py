"""Environment variables in configuration, as `${NAME}` in a text: for secrets, and for values of the machine such as a pod's name."""

from __future__ import annotations

import os
import re
from collections.abc import Container, Mapping

from penstock.runtime.config.keys import KEYS
from penstock.runtime.model.errors import StreamsConfigError
from penstock.runtime.model.secrets import FromEnvironment

BUILD = "PENSTOCK_BUILD"
"""Environment variable that passes an instance's fingerprint to its worker processes (`instance/build.py`)."""

Value = str | int | float | bool

_NAME = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def filled_in(text: str, where: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return the text with each `${NAME}` replaced. Raises StreamsConfigError, naming `where`, for a variable that is not set."""

    def value(found: re.Match[str]) -> str:
        if found[1] not in environment:
            raise StreamsConfigError(f"{where}: {found[0]} is not set in the environment")
        return environment[found[1]]

    return _NAME.sub(value, text)


def setting(text: str, where: str, environment: Mapping[str, str] = os.environ) -> str:
    """As `filled_in`, for a configuration value. The result keeps its template, which messages show instead of the value."""
    return FromEnvironment.of(filled_in(text, where, environment), text) if _NAME.search(text) else text


def resolved(
    config: Mapping[str, Value], where: str = "", environment: Mapping[str, str] = os.environ, *, optional: Container[str] = ()
) -> dict[str, Value]:
    """Return the configuration with each `${NAME}` in its texts replaced (`setting`). Raises StreamsConfigError, naming `where` and the
    key, for a variable that is not set; if the key is `optional`, it is left out instead."""
    found: dict[str, Value] = {}
    for key, value in config.items():
        try:
            found[key] = setting(value, f"{where}, {key}" if where else key, environment) if isinstance(value, str) else value
        except StreamsConfigError:
            if key not in optional:
                raise
    return found


def client_config(config: Mapping[str, Value], application: str) -> dict[str, Value]:
    """Return the configuration with variables replaced, for programs that are not instances. A setting of the engine, which only instances
    need, is left out if its variable is not set here. Raises StreamsConfigError for any other."""
    return resolved(config, application, optional=KEYS.keys() - {"bootstrap.servers"})
