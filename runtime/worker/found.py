"""What workers have of a store, and which parts of it answer a query.

Each worker says what it has; who asks puts that together, over one worker or several, and judges once. So the answer, and the words of a
refusal, are the same however many workers there are and wherever they run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from runtime.errors import InvalidStateStoreError
from runtime.worker.queries import QueryPart, StoreQueryParameters


@dataclass(frozen=True, slots=True)
class Found:
    """`parts` that may answer; `restoring`: tasks whose part may not yet; `known`: the stores of this worker's tasks. `whole`: a global
    store, of which each worker has all."""

    parts: tuple[QueryPart, ...]
    restoring: tuple[str, ...] = ()
    known: frozenset[str] = frozenset()
    whole: bool = False


def answering(found: Iterable[Found], wanted: StoreQueryParameters) -> list[QueryPart]:
    """The parts that answer. Raises InvalidStateStoreError if there is none, or one that should is being restored."""
    of_workers = list(found)
    copies = [each for each in of_workers if each.whole]
    if copies:
        of_workers = [next((each for each in copies if each.parts and not each.restoring), copies[0])]
    name = wanted.store_name
    restoring = sorted({task for each in of_workers for task in each.restoring})
    if restoring and not wanted.stale_stores:
        raise InvalidStateStoreError(
            f"store {name!r} is still being restored ({', '.join(restoring)}): to read it as it is, ask for "
            f"StoreQueryParameters({name!r}).enable_stale_stores()"
        )
    parts = [part for each in of_workers for part in each.parts]
    if not parts:
        known = ", ".join(sorted({store for each in of_workers for store in each.known})) or "none"
        where = "" if wanted.partition is None else f", or not its partition {wanted.partition}"
        raise InvalidStateStoreError(f"store {name!r} is unknown or not on this client{where} (stores here: {known})")
    return parts
