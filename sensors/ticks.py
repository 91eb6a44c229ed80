"""What the sensors share: a tick goes through the applications one by one, and one whose broker is away does not hold up the others."""

from collections.abc import Callable

from orchestration.applications import Application
from orchestration.operations import Operations
from runtime.errors import BrokerUnavailableError

INTERVAL_SECONDS = 5
FEED_SECONDS = 10.0


def for_each_application(operations: Operations, act: Callable[[Application], None]) -> list[str]:
    """Brings the control plane up to date with each application and acts on it.

    Returns, for each application whose broker does not answer, why it was left out.
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
    """Why a tick does nothing."""
    return "; ".join(away) if away else otherwise
