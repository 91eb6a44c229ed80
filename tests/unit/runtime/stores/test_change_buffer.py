"""The buffer of a suppression: its order, and its commits."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from penstock import serdes
from penstock.runtime.model.clock import NEVER
from penstock.runtime.stores.buffer import ChangeBuffer, Origin, _InOrder
from penstock.runtime.stores.settings import StoreSettings
from tests.support.stores import Opened

STEPS = st.lists(st.one_of(st.none(), st.tuples(st.integers(0, 3), st.binary(max_size=2))), max_size=60)
"""None takes the first key out; a time and a key are added."""


@given(STEPS)
def test_keys_leave_in_the_order_of_their_times_and_then_of_their_bytes(steps: list[tuple[int, bytes] | None]) -> None:
    order, model = _InOrder(), set[tuple[int, bytes]]()
    for step in [*steps, *[None] * len(steps)]:
        if step is not None and step[1] not in {key for _, key in model}:
            model.add(step)
            assert order.add(*step) == min(model)[0]
        elif step is None and model:
            first = min(model)
            model.remove(first)
            assert order.pop() == (first[1], min(model)[0] if model else NEVER)


def test_a_commit_that_is_prepared_anew_has_what_came_in_between(tmp_path: Path) -> None:
    opened = Opened(lambda: ChangeBuffer(StoreSettings("store", True, serdes.STRING, serdes.LONG, buffer=True)), tmp_path)
    store = opened.store
    store.load()
    for number, key in enumerate("ab"):
        store.put(number, key, number, None, number, Origin("in", 0, number, None))
        assert len(list(store.changelog_records())) == number + 1
        if key == "a":
            store.prepare_commit()
    opened.commit(1)
    again = opened.reopened()
    again.load()
    assert [again.evict().key for _ in range(len(again))] == ["a", "b"]
    again.close()
