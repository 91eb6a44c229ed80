"""The tables of legal moves (rules.md, 1)."""

import pytest

from penstock.runtime.model.errors import StreamsError
from penstock.runtime.model.ids import TaskId
from penstock.runtime.model.states import CLIENT_MOVES, State, TaskState, check_task_move


def test_rule_1_the_moves_between_running_restoring_and_rebalancing() -> None:
    assert State.REBALANCING in CLIENT_MOVES[State.CREATED]
    assert {State.RESTORING, State.RUNNING} <= CLIENT_MOVES[State.REBALANCING]
    assert {State.RUNNING, State.REBALANCING} <= CLIENT_MOVES[State.RESTORING]
    assert {State.RESTORING, State.REBALANCING} <= CLIENT_MOVES[State.RUNNING]


@pytest.mark.parametrize("state", [State.CREATED, State.REBALANCING, State.RESTORING, State.RUNNING])
def test_rule_1_every_live_state_can_end_both_ways(state: State) -> None:
    assert {State.PENDING_SHUTDOWN, State.PENDING_ERROR} <= CLIENT_MOVES[state]


@pytest.mark.parametrize("state", [State.NOT_RUNNING, State.ERROR])
def test_the_ends_are_final(state: State) -> None:
    assert CLIENT_MOVES[state] == set()


def test_an_illegal_move_of_a_task_names_both_states() -> None:
    with pytest.raises(StreamsError, match="CREATED to PAUSED"):
        check_task_move(TaskState.CREATED, TaskState.PAUSED)


def test_task_ids_are_ordered_by_subtopology_then_partition() -> None:
    assert sorted(map(TaskId.parse, ["1_0", "0_10", "0_2"])) == [TaskId(0, 2), TaskId(0, 10), TaskId(1, 0)]
    with pytest.raises(ValueError, match="expected <subtopology>_<partition>"):
        TaskId.parse("0-3")


def test_states_have_kafka_streams_numbers_and_restoring_the_next_one() -> None:
    """As `KafkaStreams.State` numbers them, so that dashboards made for it read `client-state` (KIP-1091)."""
    names = ["CREATED", "REBALANCING", "RUNNING", "PENDING_SHUTDOWN", "NOT_RUNNING", "PENDING_ERROR", "ERROR", "RESTORING"]
    assert [state.value for state in sorted(State, key=lambda state: state.number)] == names
    assert sorted(state.number for state in State) == list(range(8))
