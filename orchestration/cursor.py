"""How far a sensor has read the events: the number of the last one, for each application.

The numbers are given out under the lock of the feed's row and have no gaps (`Event.sequence`), so an event never becomes visible behind
the cursor. (Rejected: one cursor over the table's own ids. On PostgreSQL they become visible out of order, and a plain `id > last` then
skips a row for ever.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from orchestration.control_plane.models import Event
from runtime.events import EventKind


@dataclass(frozen=True, slots=True)
class Cursor:
    """The number of the last event seen, by application. `str()` is what Dagster keeps."""

    seen: dict[str, int] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str | None) -> Cursor:
        """What `str()` wrote; the start, for None or for something else (an older version's): actions are safe to repeat."""
        try:
            return cls(msgspec.json.decode(text or "{}", type=dict[str, int]))
        except msgspec.DecodeError:
            return cls()

    def __str__(self) -> str:
        return msgspec.json.encode(self.seen, order="sorted").decode()

    def read(self, session: Session, application: str, kinds: Iterable[EventKind], limit: int = 500) -> tuple[Sequence[Event], Cursor]:
        """The next events of these kinds, in their order, and the cursor after them.

        A cursor that is ahead of the events belongs to a database that was dropped and rebuilt: it starts over.
        """
        last = session.scalar(select(func.max(Event.sequence)).where(Event.application == application)) or 0
        seen = self.seen.get(application, 0)
        if seen > last:
            seen = 0
        query = (
            select(Event)
            .where(Event.application == application, Event.sequence > seen, Event.kind.in_([kind.value for kind in kinds]))
            .order_by(Event.sequence)
            .limit(limit)
        )
        events = session.scalars(query).all()
        newest = events[-1].sequence if events else seen
        reached = newest if len(events) == limit else max(last, newest)  # on PostgreSQL the second query may see more than the first
        return events, Cursor({**self.seen, application: reached})
