"""Events keep their order through an aborted transaction, and their ids name the occurrence (rules.md, 26)."""

from penstock.runtime.model.clock import SystemClock
from penstock.runtime.model.events import Event, EventKind, EventSink
from penstock.runtime.model.ids import TaskId
from penstock.testing import ManualClock


def sink() -> EventSink:
    events = EventSink("app", "app-1", SystemClock())
    events.begin_incarnation(3)
    return events


def test_events_of_an_aborted_transaction_come_first_again() -> None:
    events = sink()
    first = events.emit(EventKind.TASK_PAUSED, {"offset": 7}, TaskId(0, 1))
    second = events.emit(EventKind.TASK_RESUMED, {}, TaskId(0, 1))
    taken = events.drain()
    third = events.emit(EventKind.SHUTDOWN, {"reason": "asked"})
    events.put_back(taken)
    assert events.drain() == [first, second, third]
    assert not events


def test_rule_26_an_id_names_application_task_kind_coordinates_incarnation_and_number() -> None:
    event = sink().emit(EventKind.TASK_PAUSED, {}, TaskId(0, 1), coordinates="flights-1@42")
    assert event.id == "app/0_1/TASK_PAUSED/flights-1@42/app-1-3-1"


def test_the_same_pause_twice_has_two_ids() -> None:
    events = sink()
    ids = {events.emit(EventKind.TASK_PAUSED, {}, TaskId(0, 1), coordinates="flights-1@42").id for _ in range(2)}
    assert len(ids) == 2


def test_events_before_the_worker_has_joined_differ_from_those_of_an_earlier_start() -> None:
    """The control plane counts an id once: the second start's way to RUNNING would be missing."""
    clock = ManualClock()
    first = EventSink("app", "app-1", clock).emit(EventKind.INSTANCE_STATE, {"from": "CREATED", "to": "REBALANCING"})
    clock.advance(1)
    assert EventSink("app", "app-1", clock).emit(EventKind.INSTANCE_STATE, first.payload).id != first.id


def test_an_event_round_trips_through_json() -> None:
    event = sink().emit(EventKind.CHECKPOINT, {"stores": {"counts": {"app-counts-changelog-0": 12}}}, TaskId(0, 0))
    assert Event.from_json(event.to_json()) == event
    assert event.key == b"0_0"
