"""Values from outside in configuration: for secrets, and for values of the machine such as a pod's name.

    ${NAME}                 the environment variable
    ${file:/run/secrets/x}  the content of a file, UTF-8, without the newline at its end; its path is absolute, and may have ${NAME}

A file is how Kubernetes mounts a secret, Docker and systemd (`LoadCredential=`) hand one over, and an agent renews one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Container, Mapping
from pathlib import Path

from penstock.runtime.config.keys import KEYS
from penstock.runtime.model.errors import StreamsConfigError
from penstock.runtime.model.secrets import FromEnvironment

BUILD = "PENSTOCK_BUILD"
"""Environment variable that passes an instance's fingerprint to its worker processes (`instance/build.py`)."""

Value = str | int | float | bool

_FILE = "${file:"
_NAME = r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}"
_REFERENCE = re.compile(rf"{_NAME}|\$\{{file:((?:[^${{}}]|{_NAME})+)\}}")


def filled_in(text: str, where: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return the text with each `${NAME}` and `${file:PATH}` replaced. Raises StreamsConfigError, naming `where`, for a variable that is
    not set, and for a file that is empty or cannot be read."""

    def value(found: re.Match[str]) -> str:
        if found[2] is not None:
            return _content(Path(filled_in(found[2], where, environment)), f"{where}: {found[0]}")
        if found[1] not in environment:
            raise StreamsConfigError(f"{where}: {found[0]} is not set in the environment")
        return environment[found[1]]

    return _REFERENCE.sub(value, text)


def _content(path: Path, where: str) -> str:
    if not path.is_absolute():
        raise StreamsConfigError(f"{where}: the path must be absolute: processes have different working directories")
    try:
        text = path.read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
    except OSError as error:
        raise StreamsConfigError(f"{where} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise StreamsConfigError(f"{where} cannot be read: its content is not UTF-8") from None  # the cause shows bytes of the secret
    if not text:  # perhaps it is being written: an empty password would end the login of every client
        raise StreamsConfigError(f"{where} cannot be read: it is empty")
    return text


def setting(text: str, where: str, environment: Mapping[str, str] = os.environ) -> str:
    """As `filled_in`, for a configuration value. The result keeps its template, which messages show instead of the value."""
    return FromEnvironment.of(filled_in(text, where, environment), text) if _REFERENCE.search(text) else text


def is_from_file(value: object) -> bool:
    """Return True for a configuration value that refers to a file, which may change."""
    return isinstance(value, FromEnvironment) and _FILE in value.template


def read_again(key: str, value: object) -> object:
    """Return a configuration value as the file to which it refers has it now; others as they are. Raises StreamsConfigError if the file
    cannot be read."""
    return setting(value.template, key) if isinstance(value, FromEnvironment) and is_from_file(value) else value


def resolved(
    config: Mapping[str, Value], where: str = "", environment: Mapping[str, str] = os.environ, *, optional: Container[str] = ()
) -> dict[str, Value]:
    """Return the configuration with what its texts refer to (`setting`). Raises StreamsConfigError, naming `where` and the key, for a
    variable that is not set, or a file that cannot be read; if the key is `optional`, it is left out instead."""
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
