"""Location of keys, from the records that one instance has read."""

from __future__ import annotations

from functools import partial

import pytest

from penstock import HostInfo, KeyQueryMetadata, Materialized, Processor, StreamsBuilder, StreamsConfig, StreamsMetadata, serdes
from penstock.runtime.coordination.fleet import Fleet
from penstock.runtime.coordination.records import Assignment, Grant, Member, RestoreReport, TaskReport
from penstock.runtime.coordination.streams_metadata import StreamsMetadataState
from penstock.runtime.dsl.options import Consumed
from penstock.runtime.model.errors import InvalidStateStoreError, StreamsConfigError, StreamsError
from penstock.runtime.model.ids import TaskId, TopicPartition
from penstock.runtime.model.states import TaskKind, TaskState
from penstock.runtime.serdes.serde import PlainSerde
from penstock.runtime.topology.topology import Topology
from tests.support.own_stores import OwnBuilder

BASE: dict[str, object] = {"application.id": "app", "bootstrap.servers": "localhost:9092"}
JAVA = {
    "21": -973932308,
    "foobar": -790332482,
    "a-little-bit-long-string": -985981536,
    "a-little-bit-longer-string": -1486304829,
    "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    "abc": 479470107,
}
"""What Java's `Utils.murmur2` makes of UTF-8 (Kafka's `UtilsTest.testMurmur2`)."""
PARTITIONS = 7
A, B, C = (HostInfo(host, 8080) for host in "abc")


def topology() -> Topology:
    """A table of counts, one that is repartitioned, and a global one."""
    builder = StreamsBuilder()
    words = builder.stream("words", Consumed(serdes.STRING, value=serdes.STRING))
    words.group_by_key().count(Materialized("counts"))
    builder.table("small", Consumed(serdes.LONG, value=serdes.STRING), Materialized("table"))
    builder.global_table("places", Consumed(serdes.STRING, value=serdes.STRING), Materialized("places"))
    return builder.build()


def member(name: str, **tasks: TaskReport) -> Member:
    server = "" if name == "nowhere" else f"{name}:8080"
    return Member(
        instance=name, incarnation=1, transactional_id="", host=name, pid=1, member_id=f"id-{name}", application_server=server, tasks=tasks
    )


def grant(name: str, active: list[str], standby: list[str] | None = None, learner: list[str] | None = None) -> Grant:
    return Grant(member_id=f"id-{name}", incarnation=1, instance=name, active=active, standby=standby or [], learner=learner or [])


def fleet(*grants: Grant, members: str = "abc", own: str = "a") -> Fleet:
    return Fleet(
        instance=own,
        members=tuple(map(member, members.split() if " " in members else members)),
        assignment=Assignment(leader="a", grants=list(grants)),
        partitions={"words": PARTITIONS, "small": 2, "places": 3},
    )


def state(known: Fleet | None, own: HostInfo | None = A, of: Topology | None = None) -> StreamsMetadataState:
    resolved = (of or topology()).resolved(StreamsConfig(BASE))
    return StreamsMetadataState(resolved, own, lambda: known)


def everything(name: str) -> Grant:
    return grant(name, [f"0_{n}" for n in range(PARTITIONS)])


@pytest.mark.parametrize("key", JAVA)
def test_the_partition_of_a_key_is_javas(key: str) -> None:
    found = state(fleet(everything("b"))).of_key("counts", key)
    assert found == KeyQueryMetadata(B, frozenset(), (JAVA[key] & 0x7FFFFFFF) % PARTITIONS)


def test_another_serde_a_function_or_a_partitioner_choose_the_partition() -> None:
    places = state(fleet(everything("a")))
    assert places.of_key("counts", 21, serdes.LONG) == places.of_key("counts", (21).to_bytes(8, "big"), serdes.BYTES)
    assert places.of_key("counts", "foobar", str.encode) == places.of_key("counts", "foobar")
    heard: list[object] = []

    def last(topic: str, key: object, value: object, partitions: int) -> int:
        heard.extend((topic, key, value, partitions))
        return partitions - 1

    assert places.of_key("counts", "foobar", last).partition == PARTITIONS - 1 and heard == ["words", "foobar", None, PARTITIONS]
    assert places.of_key("counts", "foobar", lambda topic, key, value, partitions: {4}).partition == 4
    assert places.of_key("counts", "foobar", lambda topic, key, value, partitions: None) == places.of_key("counts", "foobar")
    for wrong in ({1, 2}, set[int](), 7, -1):
        with pytest.raises(StreamsError, match="one partition from 0 to 6 is needed"):
            places.of_key("counts", "foobar", lambda topic, key, value, partitions, chosen=wrong: chosen)


def test_the_stores_own_serde_is_asked_by_default_and_says_what_it_cannot_write() -> None:
    places = state(fleet(grant("c", ["1_0", "1_1"])))
    assert places.of_key("table", 5).active_host == C
    with pytest.raises(StreamsError, match=r"store 'table': serde LONG cannot write the key 'five'"):
        places.of_key("table", "five")

    def exits(key: object) -> bytes:
        raise SystemExit(0)

    with pytest.raises(StreamsError, match=r"store 'table': .* cannot write the key 5: SystemExit: 0"):
        places.of_key("table", 5, PlainSerde("exits", exits, int, immutable=True))


def test_a_custom_store_needs_a_serde() -> None:
    builder = OwnBuilder("own", "sqlite")
    made = Topology().add_source("source", "words", key_serde=serdes.STRING, value_serde=serdes.STRING)
    made.add_processor("keep", Processor, "source").add_state_store(builder, "keep")
    places = state(fleet(everything("b")), of=made)
    assert places.of_key("own", "foobar", serdes.STRING).active_host == B
    with pytest.raises(StreamsError, match="whose serdes only you know"):
        places.of_key("own", "foobar")


def test_standbys_and_learners_are_listed_and_may_be_the_only_copies() -> None:
    task = f"0_{(JAVA['foobar'] & 0x7FFFFFFF) % PARTITIONS}"
    number = TaskId.parse(task).partition
    found = state(fleet(grant("a", [task]), grant("b", [], [task]), grant("c", [], [], [task]))).of_key("counts", "foobar")
    assert found == KeyQueryMetadata(A, frozenset({B, C}), number)
    orphan = state(fleet(grant("b", [], [task]))).of_key("counts", "foobar")
    assert orphan == KeyQueryMetadata(HostInfo.unavailable(), frozenset({B}), number)


def test_nothing_is_available_before_the_first_assignment_and_while_a_task_is_on_the_move() -> None:
    unassigned = Fleet(instance="a", members=(member("a"),), assignment=None, partitions={})
    for known in (None, unassigned, fleet(grant("a", [])), fleet(everything("b"), members="ac"), fleet(everything("nowhere"))):
        assert state(known).of_key("counts", "foobar") is KeyQueryMetadata.NOT_AVAILABLE
    assert KeyQueryMetadata(HostInfo("unavailable", -1), frozenset(), -1) == KeyQueryMetadata.NOT_AVAILABLE


def test_a_grant_to_an_earlier_incarnation_is_ignored() -> None:
    old = Grant(member_id="id-b", incarnation=0, instance="b", active=[f"0_{n}" for n in range(PARTITIONS)])
    assert state(fleet(old)).of_key("counts", "foobar") is KeyQueryMetadata.NOT_AVAILABLE


def test_a_global_store_is_anywhere() -> None:
    known = fleet(grant("b", []))
    assert state(known).of_key("places", "EWR") == KeyQueryMetadata(A, frozenset(), -1)
    assert state(known, own=None).of_key("places", "EWR") == KeyQueryMetadata(A, frozenset(), -1)
    assert state(fleet(members="bc"), own=None).of_key("places", "EWR").active_host == B


def test_an_unknown_store_is_refused_with_the_known_ones() -> None:
    places = state(None)
    for ask in (partial(places.of_key, "count", "x"), partial(places.for_store, "count")):
        with pytest.raises(InvalidStateStoreError, match="store 'count' is unknown: the topology has counts, places, table"):
            ask()


def test_instances_are_listed_with_their_stores_and_partitions() -> None:
    places = state(fleet(grant("a", ["0_0", "0_6"]), grant("b", ["1_1"], ["0_0"]), members="a b c nowhere"))
    words = [TopicPartition("words", number) for number in (0, 6)]
    a = StreamsMetadata(A, frozenset({"counts", "places"}), frozenset(words), frozenset(), frozenset())
    b = StreamsMetadata(
        B, frozenset({"table", "places"}), frozenset({TopicPartition("small", 1)}), frozenset({"counts"}), frozenset({words[0]})
    )
    c = StreamsMetadata(C, frozenset({"places"}), frozenset(), frozenset(), frozenset())
    assert places.all() == [a, b, c] == places.for_store("places")
    assert places.for_store("counts") == [a, b] and places.for_store("table") == [b]
    assert state(None).all() == []


def test_workers_of_one_instance_are_one_host() -> None:
    second = Member(
        instance="a", incarnation=1, transactional_id="", host="a", pid=1, member_id="id-2", worker=2, application_server="a:8080"
    )
    known = fleet(grant("a", ["0_0"]), Grant(member_id="id-2", incarnation=1, instance="a", active=["0_1"], worker=2), members="a")
    both = Fleet(instance="a", members=(*known.members, second), assignment=known.assignment, partitions=known.partitions)
    [found] = state(both).all()
    assert found.topic_partitions == {TopicPartition("words", 0), TopicPartition("words", 1)}


def test_the_topic_with_most_partitions_counts() -> None:
    """As in Kafka Streams (`StreamsMetadataState.SourceTopicsInfo`)."""
    builder = StreamsBuilder()
    small = builder.stream("small", Consumed(serdes.STRING, value=serdes.STRING))
    builder.stream("words", Consumed(serdes.STRING, value=serdes.STRING)).merge(small).group_by_key().count(Materialized("counts"))
    assert state(fleet(everything("a")), of=builder.build()).of_key("counts", "foobar").partition == (JAVA["foobar"] & 0x7FFFFFFF) % 7


def test_the_lag_of_a_copy_is_what_was_reported_last() -> None:
    def report(kind: TaskKind, state: TaskState, **more: object) -> TaskReport:
        return TaskReport(kind=kind, state=state, offset_sum=0, end_sum=0, **{"lag": 9, **more})  # type: ignore[arg-type]

    restoring = report(TaskKind.ACTIVE, TaskState.RESTORING, restore=RestoreReport(records=1, remaining=44, rate=1.0))
    tasks = {"0_0": report(TaskKind.STANDBY, TaskState.RUNNING), "0_1": report(TaskKind.ACTIVE, TaskState.RUNNING), "0_2": restoring}
    known = Fleet(instance="a", members=(member("a", **tasks), member("b", **{"0_3": tasks["0_0"]})), assignment=None, partitions={})
    assert [known.lag(TaskId(0, number)) for number in range(4)] == [9, 0, 44, None]


# -- addresses -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "wanted"), [("a:8080", A), ("[::1]:80", HostInfo("::1", 80)), ("10.0.0.5:65535", HostInfo("10.0.0.5", 65535))]
)
def test_an_address_is_host_and_port(text: str, wanted: HostInfo) -> None:
    assert HostInfo.build_from_endpoint(text) == wanted and str(wanted) == text
    assert StreamsConfig({**BASE, "application.server": text}).application_server == wanted


@pytest.mark.parametrize("text", ["a", "a:", ":80", "a:0", "a:65536", "::1:80", "http://a:80", "a:80/x", "a b:80", ""])
def test_what_is_no_address_is_refused_with_what_would_be_right(text: str) -> None:
    with pytest.raises(StreamsConfigError, match=r"application\.server = .* is not host:port, with a port from 1 to 65535"):
        StreamsConfig({**BASE, "application.server": text})


def test_credentials_in_an_address_are_not_shown() -> None:
    with pytest.raises(StreamsConfigError, match=r"application\.server = .* is not host:port") as caught:
        StreamsConfig({**BASE, "application.server": "https://me:s3cr3t@host:80/x?sig=s3cr3t"})
    assert "s3cr3t" not in str(caught.value)


def test_the_endpoints_address_is_the_instances_unless_it_is_every_address() -> None:
    assert StreamsConfig({**BASE, "http.port": 8080}).application_server == HostInfo("127.0.0.1", 8080)
    assert StreamsConfig(BASE).application_server is None
    everywhere = {**BASE, "http.port": 8080, "http.host": "0.0.0.0", "http.token": "secret"}
    assert StreamsConfig(everywhere).application_server is None
    assert StreamsConfig({**everywhere, "application.server": "a:8080"}).application_server == A


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.0.0.5", "example.com"])
def test_an_endpoint_beyond_loopback_needs_a_token(host: str) -> None:
    wanted = {**BASE, "http.port": 8080, "http.host": host}
    with pytest.raises(StreamsConfigError, match=r"http\.token"):
        StreamsConfig(wanted)
    with pytest.raises(StreamsConfigError, match=r"http\.token"):
        StreamsConfig({**wanted, "http.token": ""})
    StreamsConfig({**wanted, "http.token": "secret"})
    StreamsConfig({**wanted, "http.port": 0})


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_an_endpoint_on_loopback_needs_none(host: str) -> None:
    StreamsConfig({**BASE, "http.port": 8080, "http.host": host})


def test_a_port_is_at_most_65535() -> None:
    with pytest.raises(StreamsConfigError, match=r"http\.port = 70000 is not a port"):
        StreamsConfig({**BASE, "http.port": 70_000})
