"""What ops and assets share: the actor of their commands, and refusals that a run shows as a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg
from dagster._core.errors import DagsterUserCodeProcessError
from dagster_shared.error import SerializableErrorInfo

from penstock.orchestration.alerts import alerts
from penstock.orchestration.declarations.errors import ExpectedError
from penstock.orchestration.kafka.event_text import one_line
from penstock.runtime.model.errors import StreamsError

_USER = "user"
"""Tag with the person who launched a run; Dagster+ writes it, while Dagster itself does not know its users."""
_MOST_NAME = 100


def actor_of(context: dg.OpExecutionContext | dg.AssetExecutionContext, by: str = "") -> str:
    """Return who acts: the person, if the form (`by`) or the run's tags name one, and the run."""
    run = f"dagster run {context.run.run_id[:8]}"
    person = alerts.printable(one_line(by or context.run.tags.get(_USER, ""), _MOST_NAME))
    return f"{person} ({run})" if person else run


@contextmanager
def explained() -> Iterator[None]:
    """Fail the step with the sentence of an expected error: a refusal, a name that is not declared, a broker that does not answer. The run
    shows no stack trace then: it would hide the sentence, and lead into code that is not at fault."""
    try:
        yield
    except (ExpectedError, StreamsError) as error:
        raise failure(str(error)) from error


def failure(sentence: str) -> DagsterUserCodeProcessError:
    """Return the error that Dagster shows as this sentence. `dg.Failure` shows the stack trace of its raise, too."""
    return DagsterUserCodeProcessError(  # type: ignore[no-untyped-call]  # Dagster's own, without annotations
        sentence, user_code_process_error_infos=[SerializableErrorInfo(sentence, [], "Refused")]
    )
