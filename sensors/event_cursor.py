"""Cursor of a sensor on events: the number of the last event that it has read, per application.

The numbers are assigned under the lock of the feed's row and have no gaps (`Event.sequence`), so an event never becomes visible behind the
cursor. (Rejected: one cursor over the table's own ids. On PostgreSQL they become visible out of order, and a plain `id > last` then
skips a row permanently.)

A database that was dropped is filled again from Kafka with the same numbers, long before a sensor looks, but its alerts are lost. So a
cursor also identifies its database, by the time at which that database's audit trail began. For another database it starts over.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from penstock.orchestration.database.models import AuditEntry, Event
from penstock.runtime.model.events import EventKind


@dataclass(frozen=True, slots=True)
class Cursor:
    """Number of the last event read, per application, and the time when the database's audit trail began. Dagster stores `str()` of it."""

    seen: dict[str, int] = field(default_factory=dict)
    database: str = ""

    @classmethod
    def parse(cls, text: str | None) -> Cursor:
        """Parse the output of `str()`; begin at the start for None or an unknown form (an older version's): actions are safe to repeat."""
        try:
            return msgspec.json.decode(text or "{}", type=cls)
        except msgspec.DecodeError:
            return cls()

    def __str__(self) -> str:
        return msgspec.json.encode(self, order="sorted").decode()

    def read(self, session: Session, application: str, kinds: Iterable[EventKind], limit: int = 500) -> tuple[Sequence[Event], Cursor]:
        """Return the next events of these kinds, in order, and the cursor after them.

        A cursor of another database, or one ahead of the events, starts over: the database was dropped and rebuilt.
        """
        began = session.scalars(select(AuditEntry.at).order_by(AuditEntry.id).limit(1)).first()
        database = "" if began is None else began.isoformat()
        everywhere = self.seen if database == self.database else {}
        last = session.scalar(select(func.max(Event.sequence)).where(Event.application == application)) or 0
        seen = everywhere.get(application, 0)
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
        return events, Cursor({**everywhere, application: reached}, database)
