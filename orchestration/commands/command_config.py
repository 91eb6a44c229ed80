"""Settings for brokers that a command is given by `--bootstrap-servers`: TLS and login, as `--command-config` of Kafka's tools."""

from __future__ import annotations

import os
from pathlib import Path

from penstock.orchestration.declarations.errors import ExpectedError

VARIABLE = "PENSTOCK_COMMAND_CONFIG"


class CommandConfigError(ExpectedError):
    """The file cannot be read. The text shows no line of it, which may be a secret."""


def command_config(servers: str) -> dict[str, str]:
    """Return the configuration of a client for these brokers: with the settings of the file that `VARIABLE` names, if it is set.

    The file has lines `name = value`, with the names that `[applications.x.config]` has, comments after `#`, and empty ones. Values may
    have `${NAME}` and `${file:PATH}`. Raises CommandConfigError.
    """
    named = os.environ.get(VARIABLE)
    return {**({} if not named else _lines_of(Path(named).expanduser())), "bootstrap.servers": servers}


def _lines_of(path: Path) -> dict[str, str]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise CommandConfigError(f"{VARIABLE}: {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise CommandConfigError(f"{VARIABLE}: {path} cannot be read: its content is not UTF-8") from None
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        name, equals, value = (part.strip() for part in line.partition("="))
        if not name or name.startswith("#"):
            continue
        if not equals:
            raise CommandConfigError(f"{VARIABLE}: {path}, line {number}: expected name = value")
        found[name] = value
    return found
