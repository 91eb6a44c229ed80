"""Shared by the sensors: a tick handles applications one by one; one whose broker is down does not block the others."""

from collections.abc import Callable

from penstock.orchestration.declarations.applications import Application
from penstock.orchestration.instances.operations import Operations
from penstock.runtime.model.errors import BrokerUnavailableError

INTERVAL_SECONDS = 5
FEED_SECONDS = 10.0


def for_each_application(operations: Operations, act: Callable[[Application], None]) -> list[str]:
    """Update the control plane's tables for each application, and call `act` for it.

    Return, for each application whose broker does not answer, why it was skipped.
    """
    away: list[str] = []
    for application in operations.applications.applications:
        try:
            with operations.feed(application) as feed:
                feed.step(FEED_SECONDS)
        except BrokerUnavailableError as error:
            away.append(str(error))
            continue
        act(application)
    return away


def skip_message(away: list[str], otherwise: str) -> str:
    """Return the reason why a tick does nothing."""
    return "; ".join(away) if away else otherwise
