"""Two instances of one name would take each other for former lives (`runtime/coordination/compatibility.py`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from runtime.config import StreamsConfig
from runtime.coordination.compatibility import Compatibility
from runtime.coordination.log import Entry
from runtime.coordination.records import Member, TopologyText
from runtime.coordination.registry import Known, Registry
from runtime.errors import StreamsConfigError
from runtime.worker.parts import Parts
from runtime.worker.seat import Seat


def member(incarnation: int, host: str = "here", *, returns: bool = False) -> Member:
    return Member(
        instance="a", incarnation=incarnation, transactional_id="t", host=host, pid=1, member_id="m", state_dir="/state", returns=returns
    )


class Group:
    """The log and the group, as the newcomer `a` sees them."""

    def __init__(self, *, other_lives: bool | None = None) -> None:
        self.other_lives = other_lives
        self.registry = Registry()
        self.check = Compatibility(TopologyText(hash="h", text=""), self.registry, cast(Any, self))

    def look(self) -> None: ...

    def lives(self, known: Known) -> bool | None:
        return self.other_lives

    def says(self, record: Member, at_ms: int) -> None:
        self.registry.apply(Entry(at_ms, record, record.key, at_ms), 0)

    def admits(self) -> bool:
        return self.check.has_its_name(member(2))


def test_a_former_life_in_the_same_place_and_one_that_has_said_good_bye_are_not_waited_for() -> None:
    group = Group()
    group.says(member(1), 10)
    group.says(member(1, "elsewhere", returns=True), 20)
    assert group.admits()


def test_one_elsewhere_that_is_silent_is_waited_for_until_the_group_has_dropped_it() -> None:
    group = Group()
    group.says(member(1, "elsewhere"), 10)
    assert not group.admits()
    group.other_lives = True
    assert not group.admits()
    group.other_lives = False
    assert group.admits()


def test_one_elsewhere_that_goes_on_writing_keeps_its_name() -> None:
    group = Group(other_lives=True)
    group.says(member(1, "elsewhere"), 10)
    assert not group.admits()
    group.says(member(1, "elsewhere"), 20)
    with pytest.raises(StreamsConfigError, match=r"client\.id = 'a' is the name of an instance that runs on elsewhere"):
        group.admits()


def test_a_place_is_told_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same `state.dir` in two working folders is two places."""
    parts = Parts.__new__(Parts)
    parts._config = StreamsConfig({"application.id": "app", "bootstrap.servers": "nowhere:1", "state.dir": "state"})
    parts._instance, parts._seat, parts._log_path = "a", Seat(), None
    monkeypatch.chdir(tmp_path)
    assert parts._member(1, "t").state_dir == str(tmp_path.resolve() / "state")
