"""When the silence of a member counts, and who watches whom (coordination.md, 5)."""

from __future__ import annotations

import msgspec

from penstock.runtime.coordination.failure_detection import Silence, watched_by
from penstock.runtime.coordination.log import Entry
from penstock.runtime.coordination.records import ASSIGNMENT_KEY, Assignment, Death, Member, Written
from penstock.runtime.coordination.registry import Registry

SILENCE_MS, EVERY_MS = 1_500, 250
ALIVE = str(SILENCE_MS).encode()


class Heartbeats:
    """The topic, as one reader has read it; `now_ms` is the brokers' time."""

    def __init__(self) -> None:
        self.now_ms, self.silence = 1_000_000, Silence(SILENCE_MS)

    def say(self, sender: str, value: bytes = ALIVE) -> None:
        self.silence.note(sender, value, self.now_ms, "own")

    def pass_by(self, ms: int, *senders: str) -> set[str]:
        """Let time pass, with heartbeats of these; return who is silent at its end."""
        for _ in range(ms // EVERY_MS):
            self.now_ms += EVERY_MS
            for sender in senders:
                self.say(sender)
        return self.silence.silent()


def test_who_was_heard_and_stops_is_silent_when_its_time_is_over() -> None:
    heard = Heartbeats()
    heard.pass_by(1_000, "own", "a", "b")
    assert heard.pass_by(SILENCE_MS, "own", "a") == set()
    assert heard.pass_by(EVERY_MS, "own", "a") == {"b"}
    heard.say("b")
    assert heard.silence.silent() == set(), "it has come back"


def test_who_was_taken_for_dead_has_to_be_heard_before_it_counts_as_silent_again() -> None:
    """Its heartbeats may not arrive although it lives: each of its next incarnations would be taken for dead too."""
    heard = Heartbeats()
    heard.pass_by(1_000, "own", "a")
    assert heard.pass_by(SILENCE_MS + EVERY_MS, "own") == {"a"}
    heard.silence.forget("a")
    assert heard.pass_by(60_000, "own") == set()
    read_again, heard.now_ms = heard.now_ms, 1_000_000
    heard.pass_by(1_000, "own", "a")
    heard.now_ms = read_again
    assert heard.pass_by(60_000, "own") == set(), "a reader that begins anew reads the last records again"
    heard.say("a")
    assert heard.pass_by(SILENCE_MS + EVERY_MS, "own") == {"a"}


def test_who_was_never_heard_is_not_silent() -> None:
    heard = Heartbeats()
    assert heard.pass_by(60_000, "own") == set()


def test_without_heartbeats_of_its_own_a_reader_takes_nobody_for_silent() -> None:
    heard = Heartbeats()
    heard.pass_by(1_000, "own", "a", "b")
    assert heard.pass_by(60_000, "a") == set(), "the log itself shows how late each is; the reader's own clock counts for nothing"
    assert Heartbeats().pass_by(60_000, "a", "b") == set()


def test_after_a_gap_in_its_own_heartbeats_a_reader_waits_until_it_has_heard_the_others_again() -> None:
    """The broker was away, or its partition has moved: clients come back at different times."""
    heard = Heartbeats()
    heard.pass_by(1_000, "own", "a", "b")
    heard.now_ms += 30_000
    assert heard.pass_by(10_000, "own", "a") == set()
    heard.say("b")
    assert heard.pass_by(SILENCE_MS + EVERY_MS, "own", "a") == {"b"}


def test_a_new_leader_of_the_partition_whose_clock_is_behind_makes_nobody_silent() -> None:
    heard = Heartbeats()
    heard.pass_by(1_000, "own", "a")
    heard.now_ms -= 60_000
    assert heard.pass_by(5_000, "own", "a") == set()
    assert heard.pass_by(SILENCE_MS + EVERY_MS, "own") == {"a"}


def test_the_longer_silence_of_reader_and_sender_counts() -> None:
    heard = Heartbeats()
    heard.say("own")
    heard.say("rare", b"10000")
    heard.say("often", b"300")
    assert heard.pass_by(SILENCE_MS + EVERY_MS, "own") == {"often"}
    assert heard.pass_by(10_000 - SILENCE_MS, "own") == {"often", "rare"}


def test_the_end_of_a_process_counts_at_once_and_for_good() -> None:
    heard = Heartbeats()
    heard.say("a", b"ended")
    assert heard.silence.ended == {"a"}
    assert heard.pass_by(60_000, "own") == set(), "it is not silent too"


def member(instance: str, worker: int = 1, **more: object) -> Member:
    plain = Member(
        instance=instance,
        worker=worker,
        incarnation=1,
        transactional_id="t",
        host="h",
        pid=1,
        member_id=f"{instance}-{worker}",
        heartbeats=f"beats of {instance}-{worker}",
    )
    return msgspec.structs.replace(plain, **more)


def fleet(*records: Written, leader: str = "c/1/1") -> Registry:
    registry = Registry()
    for offset, record in enumerate([*records, Assignment(leader=leader, grants=[])]):
        key = ASSIGNMENT_KEY if isinstance(record, Assignment) else record.key
        registry.apply(Entry(offset, record, key), 1_000)
    return registry


def watched(registry: Registry, identity: str, *, leads: bool = False) -> list[str]:
    return [found.identity for found in watched_by(identity, registry, leads=leads)]


def test_the_leader_watches_all_other_instances_and_its_second_the_leaders() -> None:
    registry = fleet(member("a"), member("b"), member("b", 2), member("c"), member("c", 2))
    assert watched(registry, "c/1/1", leads=True) == ["a/1/1", "b/1/1", "b/2/1"]
    assert watched(registry, "a/1/1") == ["c/1/1", "c/2/1"]
    for other in ("b/1/1", "b/2/1", "c/2/1"):
        assert watched(registry, other) == []


def test_the_next_living_one_is_second() -> None:
    for gone in (member("a", returns=True), member("a", member_id="")):
        assert watched(fleet(gone, member("b"), member("c")), "b/1/1") == ["c/1/1"]
    dead = Death(instance="a", worker=1, incarnation=1, by="c/1/1", at_ms=1)
    assert watched(fleet(member("a"), member("b"), member("c"), dead), "b/1/1") == ["c/1/1"]


def test_members_that_close_send_no_heartbeats_or_were_reported_are_not_watched() -> None:
    dead = Death(instance="e", worker=1, incarnation=1, by="c/1/1", at_ms=1)
    registry = fleet(member("a", returns=True), member("b", heartbeats=""), member("c"), member("e"), dead, member("f"))
    assert watched(registry, "c/1/1", leads=True) == ["f/1/1"]


def test_a_leader_that_is_not_on_the_log_is_watched_by_nobody() -> None:
    assert watched(fleet(member("a"), member("b")), "a/1/1") == []
