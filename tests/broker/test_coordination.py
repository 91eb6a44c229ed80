"""Assignment of tasks on a real broker: members that share, leave, return, die and freeze (coordination.md; rules.md, 4 and 21 to 26)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer, TopicPartition

from penstock.runtime.client.kafka_streams import KafkaStreams
from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.coordination import group
from penstock.runtime.coordination.commands import CommandClient
from penstock.runtime.coordination.group import members_group
from penstock.runtime.coordination.records import Assignment, Desired, Member, Tombstone
from penstock.runtime.coordination.topics import COORDINATION_CONFIG, coordination_topic, guard_topic
from penstock.runtime.dsl.builder import StreamsBuilder
from penstock.runtime.dsl.options import Consumed, Produced
from penstock.runtime.model.clock import SystemClock
from penstock.runtime.model.errors import StreamsError, TaskMigratedError
from penstock.runtime.model.ids import TaskId
from penstock.runtime.model.states import State
from penstock.serdes import BYTES
from tests.support import Kafka, wait_until
from tests.support.engine import BAD, client, count_topology, reaches, worker_of
from tests.support.instances import SESSION, Application, application, coordination_log, members

RECORDS, KEYS = 2_000, 20


@pytest.fixture
def app(broker: Kafka, application_id: str, tmp_path: Path) -> Iterator[Application]:
    with application(broker, application_id, tmp_path) as made:
        yield made


def two_running(app: Application, *, leader: str = "a", follower: str = "b") -> None:
    """Wait for two instances with two tasks each; the first one leads."""
    app.start(leader)
    app.becomes({leader: 4})
    app.start(follower)
    app.becomes({leader: 2, follower: 2})


def tasks_of(app: Application, name: str) -> set[str]:
    return set(app.reports().get(name, {}))


# -- sharing -------------------------------------------------------------------------------------------------------------------


def test_two_members_share_the_tasks_and_no_record_is_counted_twice(app: Application) -> None:
    app.start("a")
    app.becomes({"a": 4})
    app.produce(RECORDS // 2, KEYS)
    app.start("b")
    app.becomes({"a": 2, "b": 2})
    app.produce(RECORDS // 2, KEYS)
    app.each_update_came_once(RECORDS, KEYS)
    assert tasks_of(app, "a") | tasks_of(app, "b") == {"0_0", "0_1", "0_2", "0_3"}


def test_rule_3_of_coordination_a_task_is_released_before_it_is_granted(app: Application) -> None:
    """In log order, no assignment grants a task that another live member may still run."""
    two_running(app)
    app.produce(RECORDS, KEYS)
    app.each_update_came_once(RECORDS, KEYS)
    open_at: dict[str, set[str]] = {}
    for offset, record in coordination_log(app.broker, app.id):
        match record:
            case Member():
                open_at[record.instance] = set(record.tasks)
            case Assignment():
                for grant in record.grants:
                    others = set().union(*(tasks for name, tasks in open_at.items() if name != grant.instance))
                    assert not set(grant.active) & others, f"the assignment at {offset} grants {grant.instance} what another has open"


def test_two_applications_on_one_cluster_know_nothing_of_each_other(broker: Kafka, tmp_path: Path, application_id: str) -> None:
    with (
        application(broker, f"{application_id}-1", tmp_path / "1") as first,
        application(broker, f"{application_id}-2", tmp_path / "2") as second,
    ):
        for app in (first, second):
            app.folder.mkdir()
            app.source, app.output = first.source, app.output
            app.start("a")
        first.becomes({"a": 4})
        second.becomes({"a": 4})
        first.produce(RECORDS, KEYS)
        first.each_update_came_once(RECORDS, KEYS)
        second.each_update_came_once(RECORDS, KEYS)


# -- deaths --------------------------------------------------------------------------------------------------------------------


def survives(app: Application, name: str, *, killed: str) -> None:
    """Kill one of two instances under load; check that the other takes over and that no update is lost or repeated."""
    two_running(app)
    app.produce(RECORDS // 2, KEYS)
    app.kill(killed)
    app.produce(RECORDS // 2, KEYS)
    app.becomes({name: 4})
    app.each_update_came_once(RECORDS, KEYS)


def test_rule_24_the_leader_learns_of_a_follower_s_death_and_grants_its_tasks(app: Application) -> None:
    survives(app, "a", killed="b")


def test_a_leader_that_is_killed_is_replaced_and_nothing_is_lost(app: Application) -> None:
    survives(app, "b", killed="a")


def test_rule_21_a_killed_instance_comes_back_under_a_new_incarnation(app: Application) -> None:
    app.start("a")
    app.becomes({"a": 4})
    app.produce(RECORDS // 2, KEYS)
    app.kill("a")
    app.start("a")
    app.produce(RECORDS // 2, KEYS)
    app.becomes({"a": 4})
    app.each_update_came_once(RECORDS, KEYS)
    incarnations = [record.incarnation for _, record in coordination_log(app.broker, app.id) if isinstance(record, Member)]
    assert incarnations == sorted(incarnations) and len(set(incarnations)) == 2


def test_rule_21_grants_name_member_id_and_incarnation(app: Application) -> None:
    two_running(app)
    app.kill("b")
    app.becomes({"a": 4})
    app.start("b")
    app.becomes({"a": 2, "b": 2})
    known: dict[tuple[str, int], str] = {}
    grants = 0
    for _, record in coordination_log(app.broker, app.id):
        match record:
            case Member():
                known[record.instance, record.incarnation] = record.member_id
            case Assignment():
                for grant in record.grants:
                    assert known[grant.instance, grant.incarnation] == grant.member_id, "granted before it was announced, or to another"
                    grants += bool(grant.active)
    assert grants >= 4


def test_rule_22_a_dead_member_s_tombstone_stands_in_the_transaction_that_grants_its_tasks(app: Application) -> None:
    two_running(app)
    theirs = tasks_of(app, "b")
    app.kill("b")
    app.becomes({"a": 4})
    log = coordination_log(app.broker, app.id)
    death = next(place for place, (_, record) in enumerate(log) if isinstance(record, Tombstone) and record.id.startswith("b/"))
    offset, assignment = log[death - 1]
    assert isinstance(assignment, Assignment) and offset + 1 == log[death][0], "assignment and tombstone do not stand together"
    assert theirs <= set(assignment.grants[0].active)
    alive = next(place for place, (_, record) in enumerate(log) if isinstance(record, Member) and record.instance == "b" and record.active)
    for _, record in log[alive : death - 1]:
        if isinstance(record, Assignment) and any(grant.instance == "b" for grant in record.grants):
            assert not theirs & {task for grant in record.grants if grant.instance == "a" for task in grant.active} or theirs & {
                task for tasks in record.revoking.values() for task in tasks
            }


def test_rule_23_the_guard_refuses_a_member_that_the_group_does_not_know_any_more(broker: Kafka, application_id: str) -> None:
    broker.create_topic(coordination_topic(application_id), 1, exact=True)
    broker.create_topic(guard_topic(application_id), 1, exact=True)
    config = StreamsConfig({"application.id": application_id, "bootstrap.servers": broker.bootstrap_servers, **SESSION})
    membership = group.membership(config)
    membership.join()

    def joined() -> str:
        membership.poll()
        return membership.member_id if membership.joined else ""

    member_id = wait_until(joined, what="membership")
    with pytest.raises(TaskMigratedError):
        membership.metadata("another member")
    metadata = membership.metadata(member_id)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": application_id})
    producer.init_transactions(20)
    token = [TopicPartition(guard_topic(application_id), 0, 0)]
    producer.begin_transaction()
    producer.send_offsets_to_transaction(token, metadata, 20)
    producer.commit_transaction(20)
    membership.close()
    producer.begin_transaction()
    with pytest.raises(KafkaException) as refused:
        producer.send_offsets_to_transaction(token, metadata, 20)
    assert refused.value.args[0].name() in ("UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION")
    producer.abort_transaction(20)
    assert broker.committed_offsets(members_group(application_id), guard_topic(application_id)) == {0: 0}


# -- leaving and returning -----------------------------------------------------------------------------------------------------


def test_rule_4_an_instance_that_restarts_finds_its_tasks(app: Application) -> None:
    """During its absence no other instance gets them, and its state is not restored elsewhere needlessly."""
    app.settings["restart.grace.ms"] = 60_000
    two_running(app)
    app.produce(RECORDS // 2, KEYS)
    theirs = tasks_of(app, "b")
    assert app.stop("b") == 0
    wait_until(lambda: "b" not in app.reports(), 30, "the end of b")
    time.sleep(2)  # several rounds of the leader, in any of which it could reassign the tasks
    assert len(tasks_of(app, "a")) == 2
    app.start("b")
    app.becomes({"a": 2, "b": 2})
    assert tasks_of(app, "b") == theirs
    app.produce(RECORDS // 2, KEYS)
    app.each_update_came_once(RECORDS, KEYS)


def test_rule_4_an_instance_that_does_not_return_loses_its_tasks_after_the_grace(app: Application) -> None:
    app.settings["restart.grace.ms"] = 3_000
    two_running(app)
    assert app.stop("b") == 0
    app.becomes({"a": 4})


def test_rule_4_the_leader_s_own_restart_keeps_its_tasks_too(app: Application) -> None:
    app.settings["restart.grace.ms"] = 60_000
    two_running(app)
    theirs = tasks_of(app, "a")
    assert app.stop("a") == 0
    wait_until(lambda: "a" not in app.reports(), 30, "the end of a")
    time.sleep(2)
    assert len(tasks_of(app, "b")) == 2
    app.start("a")
    app.becomes({"a": 2, "b": 2})
    assert tasks_of(app, "a") == theirs


def test_rule_4_a_member_that_leaves_the_group_hands_its_tasks_over_at_once(broker: Kafka, application_id: str, tmp_path: Path) -> None:
    source, output = broker.create_topic("in", 4), broker.create_topic("out", 4)
    slow = {**SESSION, "session.timeout.ms": 60_000, "restart.grace.ms": 60_000}
    first = client(broker, count_topology(source, output), application_id, tmp_path / "a", **{"client.id": "a", **slow})
    second = client(broker, count_topology(source, output), application_id, tmp_path / "b", **{"client.id": "b", **slow})
    with first, second:
        first.start()
        reaches(first, State.RUNNING)
        second.start()
        wait_until(
            lambda: {name: len(tasks) for name, tasks in members(broker, application_id).items()} == {"a": 2, "b": 2}, what="2 and 2"
        )
        assert second.close(20_000, leave_group=True)
        wait_until(lambda: {name: len(tasks) for name, tasks in members(broker, application_id).items()} == {"a": 4}, 20, "all tasks at a")


def test_an_instance_with_another_topology_is_refused_with_the_differences(broker: Kafka, application_id: str, tmp_path: Path) -> None:
    source, output, other = broker.create_topic("in", 2), broker.create_topic("out", 2), broker.create_topic("other", 2)
    running = client(broker, count_topology(source, output), application_id, tmp_path / "a", **{"client.id": "a", **SESSION})
    builder = StreamsBuilder()
    builder.stream(source, Consumed(BYTES, value=BYTES)).to(other, Produced(BYTES, value=BYTES))
    refused = client(broker, builder.build(), application_id, tmp_path / "b", **{"client.id": "b", **SESSION})
    with running, refused:
        running.start()
        reaches(running, State.RUNNING)
        refused.start()
        assert refused.wait_for(State.ERROR, 30_000)
        message = str(refused.failure)
        assert "another topology" in message and "instance a" in message and other in message and output in message
        assert "is left out: the tasks that move would leave it behind" in message
        assert running.state is State.RUNNING
        assert set(members(broker, application_id)) == {"a"}


def test_a_second_instance_of_one_name_is_refused_and_the_first_one_continues(broker: Kafka, application_id: str, tmp_path: Path) -> None:
    """Each would take the other for an earlier incarnation, and they would stop each other repeatedly."""
    source, output = broker.create_topic("in", 2), broker.create_topic("out", 2)
    first = client(broker, count_topology(source, output), application_id, tmp_path / "a", **{"client.id": "same", **SESSION})
    second = client(broker, count_topology(source, output), application_id, tmp_path / "b", **{"client.id": "same", **SESSION})

    def lives() -> set[str]:
        return {record.identity for _, record in coordination_log(broker, application_id) if isinstance(record, Member)}

    with first, second:
        first.start()
        reaches(first, State.RUNNING)
        before = lives()
        second.start()
        assert second.wait_for(State.ERROR, 30_000)
        assert "client.id = 'same' is the name of an instance that runs" in str(second.failure)
        assert first.state is State.RUNNING
        assert lives() == before and len(before) == 1


def test_a_killed_instance_may_start_on_another_disk_under_its_name(app: Application) -> None:
    app.start("a")
    app.becomes({"a": 4})
    app.kill("a")
    process = app.start("a", **{"state.dir": str(app.folder / "elsewhere")})
    wait_until(lambda: any(member.pid == process.pid and len(member.active) == 4 for member in _members(app)), what="four tasks")


def _members(app: Application) -> list[Member]:
    with CommandClient(app.id, app.broker.connection, "test") as commands:
        return commands.members()


def test_an_incarnation_that_begins_when_the_clock_is_set_back_is_the_later_one_all_the_same(
    broker: Kafka, application_id: str, tmp_path: Path
) -> None:
    """Otherwise the leader would take it for dead, repeatedly until the clock had caught up."""

    class SetBack(SystemClock):
        by_ms = 0

        def wall_ms(self) -> int:
            return super().wall_ms() - self.by_ms

    clock = SetBack()
    settings = {"application.id": application_id, "bootstrap.servers": broker.bootstrap_servers, "state.dir": str(tmp_path), **SESSION}
    with KafkaStreams(count_topology(broker.create_topic("in", 1), broker.create_topic("out", 1)), settings, clock=clock) as streams:
        streams.start()
        reaches(streams, State.RUNNING)

        def migrated() -> None:
            raise TaskMigratedError("as if its session had run out")

        clock.by_ms = 3_600_000
        worker_of(streams)._inbox.put(migrated)
        reaches(streams, State.REBALANCING)
        reaches(streams, State.RUNNING)
        time.sleep(1)  # rounds of the leader, in any of which it could take the later one for the earlier one
        lives = {record.incarnation for _, record in coordination_log(broker, application_id) if isinstance(record, Member)}
        assert streams.state is State.RUNNING and len(lives) == 2


def test_a_changed_topology_may_start_when_no_member_runs_the_old_one(broker: Kafka, application_id: str, tmp_path: Path) -> None:
    """The record of a dead instance must not prevent the new version from starting."""
    source, output, other = broker.create_topic("in", 2), broker.create_topic("out", 2), broker.create_topic("other", 2)
    with client(broker, count_topology(source, output), application_id, tmp_path / "a", **{"client.id": "a", **SESSION}) as old:
        old.start()
        reaches(old, State.RUNNING)
        assert old.close(20_000, leave_group=False)
    with client(
        broker, count_topology(source, other), application_id, tmp_path / "b", **{"client.id": "b", **SESSION, "restart.grace.ms": 0}
    ) as new:
        new.start()
        reaches(new, State.RUNNING)
        wait_until(lambda: len(members(broker, application_id).get("b", {})) == 2, what="both tasks at b")


# -- commands ------------------------------------------------------------------------------------------------------------------


def test_a_command_to_a_paused_task_is_answered_by_its_owner(app: Application) -> None:
    two_running(app)
    [place] = app.broker.produce(app.source, [("k0", BAD)])
    task = f"0_{place.partition}"
    wait_until(lambda: any(tasks.get(task) == "PAUSED" for tasks in app.reports().values()), what=f"the pause of {task}")
    with CommandClient(app.id, app.broker.connection, "test") as commands:
        args = {"topic": app.source, "partition": place.partition, "from": place.offset, "to": place.offset + 1}
        shifted = commands.send("shift", task=TaskId.parse(task), args=args, timeout_s=20)
        assert shifted.ok, shifted.reason
        again = commands.send("shift", task=TaskId.parse(task), args=args, timeout_s=20)
        assert again.ok and again.data["already"]
        resumed = commands.send("resume", task=TaskId.parse(task), timeout_s=20)
        assert resumed.ok, resumed.reason
        owner = next(name for name, tasks in app.reports().items() if task in tasks)
        assert {shifted.by, resumed.by} == {owner}
    app.produce(RECORDS, KEYS)
    app.each_update_came_once(RECORDS, KEYS)


def test_a_command_that_no_instance_can_carry_out_says_why(app: Application) -> None:
    app.start("a")
    app.becomes({"a": 4})
    with CommandClient(app.id, app.broker.connection, "test") as commands:
        unknown = commands.send("resume", task=TaskId(7, 7), timeout_s=20)
        assert not unknown.ok and "there is no task 7_7" in unknown.reason
        wrong = commands.send("explode", task=TaskId(0, 0), timeout_s=20)
        assert not wrong.ok and "explode" in wrong.reason
        app.kill("a")
        with pytest.raises(StreamsError, match="no instance answered for task 0_0"):
            commands.send("resume", task=TaskId(0, 0), timeout_s=2)


def test_a_command_to_an_application_that_never_ran_says_so(broker: Kafka, application_id: str) -> None:
    with CommandClient(application_id, broker.connection, "test") as commands, pytest.raises(StreamsError, match="does not exist"):
        commands.send("resume", task=TaskId(0, 0), timeout_s=5)


def test_rule_26_the_desired_state_is_a_record_that_outlives_all_instances(broker: Kafka, application_id: str) -> None:
    with CommandClient(application_id, broker.connection, "somebody") as commands:
        commands.want("a", True)
        commands.want("b", True)
        commands.want("b", False)
    wanted = {record.instance: record for _, record in coordination_log(broker, application_id) if isinstance(record, Desired)}
    assert {name: (record.running, record.by) for name, record in wanted.items()} == {"a": (True, "somebody"), "b": (False, "somebody")}
    assert COORDINATION_CONFIG["cleanup.policy"] == "compact"
