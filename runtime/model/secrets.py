"""Configuration values in messages and logs, without possible secrets.

A value is shown if its key is known to hold no secret. A value from the environment is shown as written, `${NAME}`, because a variable may
contain anything. A list or table is shown as its kind only, because it may contain a secret at any depth.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_SECRET_KEY = re.compile(
    r"passw|passphrase|secret|token|credential|\bpem\b|jaas|oauthbearer\.(?:config|extensions)|user\.info|userinfo|kinit\.cmd|"
    r"api[._-]?key|access[._-]?key|account[._-]?key|private|signature|\burls?\b",
    re.IGNORECASE,
)
_USER_OF_URL = re.compile(r"(?<=://)[^/@\s\"']+@")
_QUERY_OF_URL = re.compile(r"(://[^\s\"'?]+)\?[^\s\"']*")
_PART_OF_ADDRESS = re.compile(r"[@;?]")
"""Parts of an address with users, passwords and parameters; also matches malformed addresses."""
_KINDS = {str: "a text", bool: "a truth value", int: "a whole number", float: "a number", list: "a list", tuple: "a list", dict: "a table"}
_LONGEST = 60


class FromEnvironment(str):
    """A configuration text in which variables were replaced, with its `template`, which contains their names."""

    __slots__ = ("template",)
    template: str

    @classmethod
    def of(cls, text: str, template: str) -> FromEnvironment:
        made = cls(text)
        made.template = template
        return made


def is_secret(key: str) -> bool:
    """Return True if a key's value may be a secret, judged by the key's name."""
    return _SECRET_KEY.search(key) is not None


def shown(key: str, value: object) -> str:
    """Return a value as messages may show it: the value, its template, or only its kind."""
    if isinstance(value, FromEnvironment):
        return shown(key, value.template)
    container = isinstance(value, list | tuple | dict | set | frozenset | bytes)
    if is_secret(key) or container or (isinstance(value, str) and _PART_OF_ADDRESS.search(value)):
        return f"{kind(value)} (not shown: it may hold a secret)"
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def redacted(text: str, settings: Mapping[str, object]) -> str:
    """Return another program's message, such as librdkafka's about a setting, without the values that `shown` hides."""
    for key, value in settings.items():
        if isinstance(value, FromEnvironment):
            text = text.replace(value, value.template) if value else text
        elif isinstance(value, str) and value and is_secret(key):
            text = text.replace(value, "…")
    return without_credentials(text)


def kind(value: object) -> str:
    """Return the kind of a value for a message, such as `a list`."""
    return _KINDS.get(type(value), f"a value of type {type(value).__name__}")


def without_credentials(text: str) -> str:
    """Return the text without the user part and the query of each URL in it."""
    return _QUERY_OF_URL.sub(r"\1", _USER_OF_URL.sub("", text))
