"""The order of a suppression's buffer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.runtime.model.clock import NEVER
from penstock.runtime.stores.buffer import _InOrder

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
