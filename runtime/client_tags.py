"""Where an instance is, as far as standbys must know (KIP-708): `client.tag.<name>` and `rack.aware.assignment.tags`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from runtime.errors import StreamsConfigError

PREFIX = "client.tag."
WHICH = "rack.aware.assignment.tags"
MOST_TAGS = 5
LONGEST_NAME = 20
LONGEST_VALUE = 30
"""The limits are Kafka Streams': tags are in every record of a member."""


def client_tags(settings: Mapping[str, object]) -> dict[str, str]:
    """The tags by name. Raises StreamsConfigError for too many of them, and for names and values that are empty or too long."""
    tags = {name.removeprefix(PREFIX): str(value) for name, value in settings.items() if name.startswith(PREFIX)}
    if len(tags) > MOST_TAGS:
        raise StreamsConfigError(f"{PREFIX}*: {len(tags)} tags, and {MOST_TAGS} are the most: {', '.join(sorted(tags))}")
    for name, value in tags.items():
        if not 0 < len(name) <= LONGEST_NAME:
            raise StreamsConfigError(f"{PREFIX}{name}: the name of a tag has 1 to {LONGEST_NAME} characters")
        if not 0 < len(value) <= LONGEST_VALUE:
            raise StreamsConfigError(f"{PREFIX}{name} = {value!r}: the value of a tag has 1 to {LONGEST_VALUE} characters")
    return tags


def listed(value: object) -> str:
    """`rack.aware.assignment.tags` as one text, names divided by commas; it may be given as a list. Raises StreamsConfigError."""
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence) and all(isinstance(each, str) for each in value):
        return ",".join(value)
    raise StreamsConfigError(f"{WHICH} = {value!r} is not a list of names of tags")


def rack_aware_tags(text: str, tags: Mapping[str, str]) -> tuple[str, ...]:
    """The tags that keep standbys apart. Raises StreamsConfigError for one that this instance does not have."""
    wanted = tuple(name.strip() for name in text.split(",") if name.strip())
    if len(wanted) > MOST_TAGS:
        raise StreamsConfigError(f"{WHICH}: {len(wanted)} tags, and {MOST_TAGS} are the most")
    for name in wanted:
        if name not in tags:
            has = ", ".join(sorted(tags)) or "none"
            raise StreamsConfigError(f"{WHICH} names {name!r}, and {PREFIX}{name} is not set (this instance has the tags: {has})")
    return wanted
