"""What ops and assets share: the actor of their commands, and refusals that a run shows as a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg
from dagster._core.errors import DagsterUserCodeProcessError
from dagster_shared.error import SerializableErrorInfo

from penstock.orchestration.declarations.errors import ExpectedError
from penstock.runtime.model.errors import StreamsError


def actor_of(context: dg.OpExecutionContext | dg.AssetExecutionContext) -> str:
    return f"dagster run {context.run.run_id[:8]}"


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
