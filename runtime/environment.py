"""What configuration takes from the environment: `${NAME}` in a text. For secrets, and for what only the machine knows (a pod's name)."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from runtime.errors import StreamsConfigError

_NAME = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def filled_in(text: str, where: str, environment: Mapping[str, str] = os.environ) -> str:
    """The text with each `${NAME}` replaced. Raises StreamsConfigError, naming `where`, for one that is not set."""

    def value(found: re.Match[str]) -> str:
        if found[1] not in environment:
            raise StreamsConfigError(f"{where}: {found[0]} is not set in the environment")
        return environment[found[1]]

    return _NAME.sub(value, text)
