"""The members' group `<app>-members`: who is alive, and who leads (coordination.md)."""

from __future__ import annotations

from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.coordination.topics import coordination_topic
from penstock.runtime.kafka.membership import Membership


def members_group(application_id: str) -> str:
    """The group whose members are the workers."""
    return f"{application_id}-members"


def membership(config: StreamsConfig) -> Membership:
    """One worker's membership, which connects on its first `poll`."""
    return Membership(config, members_group(config.application_id), coordination_topic(config.application_id))
