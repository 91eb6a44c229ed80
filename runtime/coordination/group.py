"""The members' group `<app>-members`: live members and the leader (coordination.md)."""

from __future__ import annotations

from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.coordination.topics import coordination_topic
from penstock.runtime.kafka.membership import Membership


def members_group(application_id: str) -> str:
    """Return the name of the group whose members are the workers."""
    return f"{application_id}-members"


def membership(config: StreamsConfig) -> Membership:
    """Return the membership of one worker; it connects on its first `poll`."""
    return Membership(config, members_group(config.application_id), coordination_topic(config.application_id))
