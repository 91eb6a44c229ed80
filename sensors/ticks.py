"""Shared by the sensors: a tick handles applications one by one; one that cannot be looked at does not block the others."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import dagster as dg
from dagster._core.errors import DagsterUserCodeProcessError
from dagster_shared.error import SerializableErrorInfo

from penstock.orchestration.dagster.names import instances_key
from penstock.orchestration.declarations.applications import Application
from penstock.orchestration.declarations.errors import ExpectedError
from penstock.orchestration.instances.operations import Operations
from penstock.orchestration.projection.feed import SilentBrokers
from penstock.runtime.model.errors import StreamsError

INTERVAL_SECONDS = 5
FEED_SECONDS = 10.0
_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


class NothingSeenError(DagsterUserCodeProcessError):
    """Nothing could be looked at, for the reasons that the message lists. It fails the tick: a skipped one would look healthy.

    Dagster shows an error of this class as its sentence; with any other it shows a stack trace of this code, too. (Its daemon logs a stack
    trace of its own in either case.)
    """

    def __init__(self, sentence: str) -> None:
        super().__init__(  # type: ignore[no-untyped-call]  # Dagster's own, without annotations
            sentence, user_code_process_error_infos=[SerializableErrorInfo(sentence, [], type(self).__name__)]
        )


def failing_with_a_sentence(sensor: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Return a sensor's function whose expected errors (an unreadable database or declaration) fail the tick with their sentence."""

    @wraps(sensor)
    def evaluated(*arguments: _Parameters.args, **named: _Parameters.kwargs) -> _Result:
        try:
            return sensor(*arguments, **named)
        except ExpectedError as error:
            raise NothingSeenError(str(error)) from error

    return evaluated


def for_each_application(operations: Operations, act: Callable[[Application], None]) -> list[str]:
    """Update the control plane's tables for each application, and call `act` for it.

    Return, for each application whose broker does not answer, or whose configuration cannot be used (a variable is not set), why it was
    skipped. Raises NothingSeenError if that is true of all.
    """
    away: list[str] = []
    brokers = SilentBrokers()
    applications = operations.applications.applications
    for application in applications:
        try:
            with brokers.asking(application), operations.feed(application) as feed:
                feed.step(FEED_SECONDS)
        except StreamsError as error:
            away.append(str(error))
            continue
        act(application)
    if applications and len(away) == len(applications):
        raise NothingSeenError("; ".join(away))
    return away


def is_loaded(context: dg.SensorEvaluationContext, application: Application) -> bool:
    """Return False for an application that was declared after the code location was loaded: it has no asset, and jobs refuse its name."""
    repository = context.repository_def  # None in tests that evaluate a sensor alone
    return repository is None or repository.asset_graph.has(instances_key(application.id))


def new_message(operations: Operations, application: Application) -> str:
    """Return what a tick says of an application that is not loaded."""
    return f"{application.id} is new in {operations.applications.source}: reload the code location"


def skip_message(operations: Operations, away: list[str], otherwise: str) -> str:
    """Return the reason why a tick does nothing: what could not be looked at, what was, and what was found there."""
    applications = operations.applications
    if not applications.applications:
        return f"no application is declared in {applications.source}"
    seen = len(applications.applications) - len(away)
    looked = applications.applications[0].id if len(applications.applications) == 1 else f"{seen} applications"
    return "; ".join([*away, f"looked at {looked}: {otherwise}"])
