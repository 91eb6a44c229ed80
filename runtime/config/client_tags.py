"""Tags of an instance for rack-aware standbys (KIP-708): `client.tag.<name>` and `rack.aware.assignment.tags`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.runtime.model.errors import StreamsConfigError
from penstock.runtime.model.secrets import shown

PREFIX = "client.tag."
WHICH = "rack.aware.assignment.tags"
MOST_TAGS = 5
LONGEST_NAME = 20
LONGEST_VALUE = 30
"""Limits of Kafka Streams. They matter because every record of a member contains its tags."""


def client_tags(settings: Mapping[str, object]) -> dict[str, str]:
    """Return the tags by name. Raises StreamsConfigError for too many tags, and for names and values that are empty or too long."""
    tags = {name.removeprefix(PREFIX): str(value) for name, value in settings.items() if name.startswith(PREFIX)}
    if len(tags) > MOST_TAGS:
        raise StreamsConfigError(f"{PREFIX}*: {len(tags)} tags, and {MOST_TAGS} are the most: {', '.join(sorted(tags))}")
    for name, value in tags.items():
        if not 0 < len(name) <= LONGEST_NAME:
            raise StreamsConfigError(f"{PREFIX}{name}: the name of a tag has 1 to {LONGEST_NAME} characters")
        if not 0 < len(value) <= LONGEST_VALUE:
            raise StreamsConfigError(
                f"{PREFIX}{name} = {shown(name, settings[PREFIX + name])}: the value of a tag has 1 to {LONGEST_VALUE} characters"
            )
    return tags


def listed(value: object) -> str:
    """Return `rack.aware.assignment.tags`, a text or a list of names, as one text with commas. Raises StreamsConfigError."""
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence) and all(isinstance(each, str) for each in value):
        return ",".join(value)
    raise StreamsConfigError(f"{WHICH} = {shown(WHICH, value)} is not a list of names of tags")


def rack_aware_tags(text: str, tags: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the tags that distribute standbys. Raises StreamsConfigError for one that this instance does not have."""
    wanted = tuple(name.strip() for name in text.split(",") if name.strip())
    if len(wanted) > MOST_TAGS:
        raise StreamsConfigError(f"{len(wanted)} tags, and {MOST_TAGS} are the most")
    for name in wanted:
        if name not in tags:
            has = ", ".join(sorted(tags)) or "none"
            raise StreamsConfigError(f"{PREFIX}{name} is not set (this instance has the tags: {has})")
    return wanted
