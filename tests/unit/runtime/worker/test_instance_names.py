"""Two instances with one name, which would take each other for their own previous incarnations
(`runtime/coordination/compatibility.py`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.coordination.compatibility import Compatibility
from penstock.runtime.coordination.log import Entry
from penstock.runtime.coordination.records import Member, TopologyText
from penstock.runtime.coordination.registry import Known, Registry
from penstock.runtime.model.errors import StreamsConfigError
from penstock.runtime.worker.incarnations import member_record
from penstock.runtime.worker.spec import WorkerSpec


def member(incarnation: int, host: str = "here", *, returns: bool = False) -> Member:
    return Member(
        instance="a", incarnation=incarnation, transactional_id="t", host=host, pid=1, member_id="m", state_dir="/state", returns=returns
    )


class Group:
    """The log and the group, as the new instance `a` sees them."""

    def __init__(self, *, other_lives: bool | None = None) -> None:
        self.other_lives = other_lives
        self.registry = Registry()
        self.check = Compatibility(TopologyText(hash="h", text=""), self.registry, cast(Any, self))

    def poll(self) -> None: ...

    def lives(self, known: Known) -> bool | None:
        return self.other_lives

    def says(self, record: Member, at_ms: int) -> None:
        self.registry.apply(Entry(at_ms, record, record.key, at_ms), 0)

    def admits(self) -> bool:
        return self.check.has_its_name(member(2))


def test_a_previous_incarnation_in_the_same_place_or_one_that_has_left_is_not_waited_for() -> None:
    group = Group()
    group.says(member(1), 10)
    group.says(member(1, "elsewhere", returns=True), 20)
    assert group.admits()


def test_a_silent_namesake_elsewhere_is_waited_for_until_the_group_has_dropped_it() -> None:
    group = Group()
    group.says(member(1, "elsewhere"), 10)
    assert not group.admits()
    group.other_lives = True
    assert not group.admits()
    group.other_lives = False
    assert group.admits()


def test_a_namesake_elsewhere_that_keeps_writing_keeps_the_name() -> None:
    group = Group(other_lives=True)
    group.says(member(1, "elsewhere"), 10)
    assert not group.admits()
    group.says(member(1, "elsewhere"), 20)
    with pytest.raises(StreamsConfigError, match=r"client\.id = 'a' is the name of an instance that runs on elsewhere"):
        group.admits()


def test_a_state_dir_is_recorded_as_an_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same relative `state.dir` in two working directories is two places."""
    anything = cast(Any, None)
    spec = WorkerSpec(
        config=StreamsConfig({"application.id": "app", "bootstrap.servers": "nowhere:1", "state.dir": "state"}),
        instance="a",
        on_state=lambda state: None,
        **dict.fromkeys(("topology", "directory", "clock", "metrics", "events"), anything),
    )
    monkeypatch.chdir(tmp_path)
    assert member_record(spec, 1, "t").state_dir == str(tmp_path.resolve() / "state")
