"""Applications for processes that are killed: their topics come from the environment."""

from __future__ import annotations

import os

from penstock.runtime.topology.topology import Topology
from tests.support.engine import count_topology


def count() -> Topology:
    """A count per key of `SOURCE_TOPIC`, to `OUTPUT_TOPIC`."""
    return count_topology(os.environ["SOURCE_TOPIC"], os.environ["OUTPUT_TOPIC"], caching=os.environ.get("CACHING", "1") == "1")
