"""The configuration is checked as a whole, at construction, and says what would be right."""

from __future__ import annotations

import logging
import re
import traceback
from datetime import timedelta
from pathlib import Path

import pytest
from confluent_kafka import Producer
from hypothesis import given
from hypothesis import strategies as st

from penstock import LogAndContinueExceptionHandler, StreamsConfig, StreamsConfigError, serdes
from penstock.runtime.config import client_tags
from penstock.runtime.config.client_properties import COMMON, CONSUMER, PRODUCER
from penstock.runtime.config.environment import setting
from penstock.runtime.config.keys import KEYS, Kind, as_markdown
from penstock.runtime.kafka.client_logs import KAFKA_LOGGER
from penstock.runtime.kafka.topic_admin import TopicAdmin
from penstock.runtime.model.secrets import FromEnvironment
from penstock.serdes import Serde
from tests.support import ROOT, wait_until

BASE: dict[str, object] = {"application.id": "app", "bootstrap.servers": "localhost:9092"}
ROLES = ("main", "restore", "global", "membership")


def config(**settings: object) -> StreamsConfig:
    return StreamsConfig({**BASE, **settings})


# -- values ----------------------------------------------------------------------------------------------------------------------


def test_the_configuration_is_a_mapping_with_defaults() -> None:
    made = config(**{"max.task.idle.ms": 5, "linger.ms": 7})
    assert made["max.task.idle.ms"] == 5
    assert made["num.stream.threads"] == 1
    assert made["linger.ms"] == 7
    assert made.get("no.such.key") is None
    assert set(KEYS) <= set(made)
    assert len(made) == len(list(made))
    with pytest.raises(KeyError):
        made["no.such.key"]


@pytest.mark.parametrize(("guarantee", "interval"), [("exactly_once_v2", 100), ("at_least_once", 30_000)])
def test_the_commit_interval_follows_the_guarantee(guarantee: str, interval: int) -> None:
    made = config(**{"processing.guarantee": guarantee})
    assert (made["commit.interval.ms"], made.exactly_once) == (interval, guarantee == "exactly_once_v2")
    assert config(**{"processing.guarantee": guarantee, "commit.interval.ms": 7})["commit.interval.ms"] == 7


@pytest.mark.parametrize("value", [1500, "1500", timedelta(seconds=1.5)])
def test_numbers_may_be_texts_and_durations(value: object) -> None:
    assert config(**{"commit.interval.ms": value}).integer("commit.interval.ms") == 1500


def test_the_state_is_never_in_the_temporary_folder(tmp_path: Path) -> None:
    assert config(**{"state.dir": tmp_path}).state_dir == tmp_path
    assert config().state_dir.is_relative_to(Path.home())


@pytest.mark.parametrize("name", ["STRING", "penstock.serdes.STRING", "penstock.serdes:STRING", serdes.STRING])
def test_a_default_serde_may_be_given_by_its_path(name: object) -> None:
    made = config(**{"default.key.serde": name})
    assert made.default_key_serde is serdes.STRING
    assert made.default_value_serde is None


# -- mistakes --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"application.id": None}, "application.id is missing. Names the application"),
        ({"bootstrap.servers": ""}, "bootstrap.servers is missing. host:port"),
        ({"bootstrap.servers": "a:9092, b:99999"}, "99999 is not a port: choose one from 1 to 65535"),
        ({"bootstrap.servers": "SSL://a:0"}, "0 is not a port"),
        ({"aplication.id": "x"}, "unknown configuration key 'aplication.id'; did you mean 'application.id'"),
        ({"commit.interval": 5}, "unknown configuration key 'commit.interval'; did you mean 'commit.interval.ms'"),
        ({"linger.msec": 5}, "did you mean 'linger.ms'"),
        ({"consumer.fetch.min.byte": 5}, "did you mean 'consumer.fetch.min.bytes'"),
        ({"main.consumer.linger.ms": 5}, "unknown configuration key 'main.consumer.linger.ms'"),
        ({"producer.fetch.min.bytes": 5}, "unknown configuration key 'producer.fetch.min.bytes'"),
        ({"xyzzy": 5}, "^unknown configuration key 'xyzzy'$"),
        ({"commit.interval.ms": "soon"}, "commit.interval.ms = 'soon' must be a whole number"),
        ({"commit.interval.ms": 1.5}, "commit.interval.ms = 1.5 must be a whole number"),
        ({"commit.interval.ms": True}, "commit.interval.ms = True must be a whole number"),
        ({"commit.interval.ms": -1}, "commit.interval.ms = -1 must be at least 0"),
        ({"max.task.idle.ms": -2}, "max.task.idle.ms = -2 must be at least -1"),
        ({"state.dir": 5}, "state.dir = 5 must be a string"),
        ({"processing.guarantee": "exactly_once"}, "must be one of exactly_once_v2, at_least_once"),
        ({"application.id": "a b"}, "application.id = 'a b' must have .* names of topics begin with it"),
        ({"producer.acks": 1}, "producer.acks = 1 is not possible: the producer is idempotent"),
        ({"linger.ms": [5]}, "linger.ms must be a string, a number or a boolean, not a list"),
        ({"default.key.serde": "TEXT"}, "default.key.serde = 'TEXT' cannot be imported"),
        ({"default.value.serde": "penstock.serdes.json"}, "default.value.serde = .* is not a Serde; for example penstock.serdes.STRING"),
        ({"deserialization.exception.handler": "no.such.Handler"}, "deserialization.exception.handler = .* cannot be imported"),
    ],
)
def test_an_invalid_value_is_named_with_the_valid_ones(settings: dict[str, object], message: str) -> None:
    with pytest.raises(StreamsConfigError, match=message):
        config(**settings)


SECRET = "s3cr3t-7777777"
KEYS_OF_SECRETS = ("sasl.password", "ssl.key.password", "consumer.ssl.keystore.password", "ssl.key.pem", "sasl.oauthbearer.client.secret")


@given(
    key=st.sampled_from(KEYS_OF_SECRETS),
    wrong=st.sampled_from([[SECRET], {"x": SECRET}, {"x": {"y": [SECRET]}}, (SECRET,), SECRET.encode()]),
)
def test_a_secret_of_the_wrong_type_is_not_shown(key: str, wrong: object) -> None:
    with pytest.raises(StreamsConfigError) as caught:
        config(**{key: wrong})
    assert key in str(caught.value) and SECRET not in str(caught.value)


@given(token=st.one_of(st.integers(10**6), st.binary(min_size=9), st.lists(st.just(SECRET), min_size=1), st.just({"a": SECRET})))
def test_a_token_of_the_wrong_type_is_not_shown(token: object) -> None:
    with pytest.raises(StreamsConfigError) as caught:
        config(**{"http.token": token})
    assert "http.token = " in str(caught.value) and repr(token) not in str(caught.value) and SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "key",
    [
        *(key.name for key in KEYS.values() if key.kind is Kind.INTEGER or key.choices or key.kind is Kind.OBJECT),
        "auto.offset.reset",
        "topology.optimization",
        "application.server",
        "application.id",
        "client.tag.zone",
        "isolation.level",
        "acks",
    ],
)
def test_a_value_from_the_environment_is_shown_as_it_was_written(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable may hold anything, also where it stands in the wrong place."""
    value = {"isolation.level": "read_uncommitted", "acks": "1"}.get(key, f"{SECRET} {SECRET} {SECRET}")
    monkeypatch.setenv("HIDDEN", value)
    with pytest.raises(StreamsConfigError) as caught:
        config(**{key: setting("${HIDDEN}", "here")})
    assert "${HIDDEN}" in str(caught.value) and repr(value) not in str(caught.value) and SECRET not in str(caught.value)


def test_a_secret_is_read_from_a_file_and_shown_as_it_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kafka password").write_text(f"{SECRET} ${{HOME}}é\n\n", encoding="utf-8")
    monkeypatch.setenv("CREDENTIALS", str(tmp_path))
    written = "<${file:${CREDENTIALS}/kafka password}>"
    assert setting(written, "here") == f"<{SECRET} ${{HOME}}é\n>", "one newline is the editor's; what is in the file is no reference"
    with pytest.raises(StreamsConfigError) as caught:
        config(acks=setting(written, "here"))
    assert written in str(caught.value) and SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("${file:/nowhere/at all}", "here: ${file:/nowhere/at all} cannot be read: No such file or directory"),
        ("${file:relative}", "here: ${file:relative}: the path must be absolute"),
        ("${file:/tmp}", "here: ${file:/tmp} cannot be read: Is a directory"),
        ("${file:/dev/null}", "here: ${file:/dev/null} cannot be read: it is empty"),
        ("${file:${UNSET_HERE}/x}", "here: ${UNSET_HERE} is not set in the environment"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(written: str, reason: str) -> None:
    with pytest.raises(StreamsConfigError, match=re.escape(reason)):
        setting(written, "here")


def test_the_bytes_of_a_file_that_is_no_text_are_not_shown(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(SECRET.encode() + b"\xff")
    with pytest.raises(StreamsConfigError, match="its content is not UTF-8") as caught:
        setting(f"${{file:{tmp_path}/key}}", "here")
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_values_from_the_environment_are_plain_texts_to_whoever_reads_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are given them over a socket, in a form that knows plain texts only."""
    monkeypatch.setenv("HIDDEN", "earliest")
    keys = ("auto.offset.reset", "client.tag.zone", "sasl.password", "http.token")
    made = config(**{key: setting("${HIDDEN}", "here") for key in keys})
    assert {type(made[key]) for key in keys} == {str}


@pytest.mark.parametrize("key", ["security.protocol", "debug", "sasl.mechanism", "plugin.library.paths"])
def test_a_setting_that_the_kafka_client_refuses_is_named_without_what_the_environment_gave(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka quotes the value."""
    monkeypatch.setenv("HIDDEN", SECRET)
    with pytest.raises(StreamsConfigError, match=r"the Kafka client refuses its settings: .*HIDDEN") as caught:
        TopicAdmin(config(**{"security.protocol": "sasl_plaintext", key: setting("${HIDDEN}", "here")}))
    assert SECRET not in str(caught.value) and caught.value.__cause__ is None


def test_the_kafka_clients_log_shows_no_user_of_an_address(caplog: pytest.LogCaptureFixture) -> None:
    """librdkafka quotes `sasl.oauthbearer.token.endpoint.url`."""
    caplog.set_level(logging.DEBUG)
    settings = {
        "bootstrap.servers": "127.0.0.1:1",
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": "me",
        "sasl.oauthbearer.client.secret": SECRET,
        "sasl.oauthbearer.token.endpoint.url": f"http://me:{SECRET}@127.0.0.1:1/x?key={SECRET}",
    }
    producer = Producer(settings, logger=KAFKA_LOGGER)
    wait_until(lambda: producer.poll(0.1) or "Failed to retrieve OIDC token" in caplog.text, what="the line")
    assert "http://127.0.0.1:1/x" in caplog.text and SECRET not in caplog.text


def test_a_key_that_is_no_string_is_named() -> None:
    with pytest.raises(StreamsConfigError, match="configuration key 5 is not a string"):
        StreamsConfig({**BASE, 5: 5})  # type: ignore[dict-item]  # the mistake under test


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"session.timeout.ms": 1000, "heartbeat.interval.ms": 1000},
            r"heartbeat.interval.ms \(1000\) must be shorter than session.timeout.ms",
        ),
        ({"consumer.isolation.level": "read_uncommitted"}, "contradicts processing.guarantee = 'exactly_once_v2'"),
        ({"enable.idempotence": False}, "contradicts processing.guarantee = 'exactly_once_v2'"),
        ({"group.id": "mine"}, "group.id cannot be set: the group is application.id"),
        ({"producer.transactional.id": "mine"}, "producer.transactional.id cannot be set"),
        ({"group.instance.id": "mine"}, "group.instance.id cannot be set: an instance that returns is known by client.id"),
        ({"main.consumer.enable.auto.commit": True}, "main.consumer.enable.auto.commit cannot be set: the engine commits"),
        ({"global.consumer.auto.offset.reset": "latest"}, "cannot be set: a global store holds the whole topic"),
        ({"restore.consumer.auto.offset.reset": "latest"}, "cannot be set: a store is restored from the offset that it holds"),
        ({"consumer.auto.offset.reset": "latest"}, "cannot be set: .* auto.offset.reset without a prefix"),
    ],
)
def test_settings_that_contradict_each_other(settings: dict[str, object], message: str) -> None:
    with pytest.raises(StreamsConfigError, match=message):
        config(**settings)


def test_at_least_once_may_read_uncommitted() -> None:
    made = config(**{"processing.guarantee": "at_least_once", "isolation.level": "read_uncommitted"})
    assert made.consumer_properties("main")["isolation.level"] == "read_uncommitted"


# -- rules.md, 5 -------------------------------------------------------------------------------------------------------------------


class Handler(LogAndContinueExceptionHandler):
    declares = ("alerts.address",)


def test_rule_5_known_keys_are_ours_librdkafkas_and_what_handlers_and_serdes_declare() -> None:
    with pytest.raises(StreamsConfigError, match=r"unknown configuration key 'alerts\.address'"):
        config(**{"alerts.address": "ops@example.org"})
    made = config(**{"alerts.address": "ops@example.org", "deserialization.exception.handler": Handler})
    assert made["alerts.address"] == "ops@example.org"
    assert "alerts.address" not in made.consumer_properties("main")
    path = f"{Handler.__module__}.{Handler.__qualname__}"
    assert config(**{"alerts.address": "x", "deserialization.exception.handler": path})["alerts.address"] == "x"
    serde = Serde(lambda topic, headers, data: data, lambda topic, headers, data: data, declares=("my.schema",))
    assert config(**{"my.schema": "flight", "default.value.serde": serde})["my.schema"] == "flight"
    with pytest.raises(StreamsConfigError, match=r"did you mean 'my\.schema'"):
        config(**{"my.schma": "flight", "default.value.serde": serde})


@given(name=st.text(min_size=1, max_size=40))
def test_rule_5_any_other_key_is_refused(name: str) -> None:
    known = name in KEYS or name in COMMON | CONSUMER | PRODUCER or name.startswith(client_tags.PREFIX)
    try:
        config(**{name: "1"})
    except StreamsConfigError as error:
        assert known or f"unknown configuration key {name!r}" in str(error)
    else:
        assert known


@given(name=st.sampled_from(sorted(KEYS)), data=st.data())
def test_rule_5_a_misspelt_key_names_the_nearest_one(name: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(name) - 1))
    slipped = name[:at] + name[at + 1 :]
    if slipped in COMMON | CONSUMER | PRODUCER or slipped in KEYS:
        return
    with pytest.raises(StreamsConfigError, match="did you mean"):
        config(**{slipped: "1"})


# -- clients -----------------------------------------------------------------------------------------------------------------------


def test_settings_reach_the_clients_that_they_are_for() -> None:
    made = config(
        **{
            "security.protocol": "ssl",
            "fetch.min.bytes": 1,
            "consumer.fetch.min.bytes": 2,
            "restore.consumer.fetch.min.bytes": 3,
            "producer.linger.ms": 9,
            "admin.socket.timeout.ms": 4,
        }
    )
    for role in ROLES:
        assert made.consumer_properties(role)["security.protocol"] == "ssl"
        assert made.consumer_properties(role)["fetch.min.bytes"] == (3 if role == "restore" else 2)
        assert made.consumer_properties(role)["bootstrap.servers"] == "localhost:9092"
    producer, admin = made.producer_properties(), made.admin_properties()
    assert (producer["linger.ms"], producer["security.protocol"]) == (9, "ssl")
    assert "fetch.min.bytes" not in producer and "linger.ms" not in admin and "fetch.min.bytes" not in admin
    assert admin["socket.timeout.ms"] == 4


def test_keys_go_to_the_same_partitions_as_in_java_and_reads_are_committed() -> None:
    made = config()
    assert made.producer_properties()["partitioner"] == "murmur2_random"
    assert made.producer_properties()["enable.idempotence"] is True
    for role in ("main", "restore", "global"):
        assert made.consumer_properties(role)["isolation.level"] == "read_committed"


def test_the_membership_has_the_times_of_the_group() -> None:
    membership = config(**{"session.timeout.ms": 6000, "heartbeat.interval.ms": 2000}).consumer_properties("membership")
    assert (membership["session.timeout.ms"], membership["heartbeat.interval.ms"]) == (6000, 2000)
    assert membership["max.poll.interval.ms"] == 300_000


@pytest.mark.parametrize("role", ROLES)
def test_librdkafka_accepts_all_properties(role: str) -> None:
    from confluent_kafka import Consumer, Producer
    from confluent_kafka.admin import AdminClient

    made = config(**{"client.id": "me"})
    Consumer({**made.consumer_properties(role), "group.id": "app"}).close()
    Producer(made.producer_properties()).flush(0)
    AdminClient(made.admin_properties())


# -- where an instance is ----------------------------------------------------------------------------------------------------------


def test_tags_say_where_an_instance_is_and_which_keep_standbys_apart() -> None:
    made = config(**{"client.tag.zone": "eu-1a", "client.tag.cluster": "k8s-2", "rack.aware.assignment.tags": "zone, cluster"})
    assert made.client_tags == {"zone": "eu-1a", "cluster": "k8s-2"}
    assert made.rack_aware_tags == ("zone", "cluster")
    assert config(**{"client.tag.zone": "a", "rack.aware.assignment.tags": ["zone"]}).rack_aware_tags == ("zone",)
    assert config().rack_aware_tags == ()


@pytest.mark.parametrize(
    ("settings", "reported"),
    [
        ({"rack.aware.assignment.tags": "zone"}, "client.tag.zone is not set"),
        ({"rack.aware.assignment.tags": "zone", "client.tag.rack": "r"}, "this instance has the tags: rack"),
        ({"rack.aware.assignment.tags": 3}, "not a list of names"),
        ({f"client.tag.t{number}": "v" for number in range(6)}, "6 tags, and 5 are the most"),
        ({"client.tag." + "n" * 21: "v"}, "1 to 20 characters"),
        ({"client.tag.": "v"}, "1 to 20 characters"),
        ({"client.tag.zone": "v" * 31}, "1 to 30 characters"),
        ({"client.tag.zone": ""}, "1 to 30 characters"),
        ({"rack.aware.assignment.strategy": "min_traffic"}, "needs client.rack"),
        ({"rack.aware.assignment.strategy": "nearest"}, "one of none, min_traffic, balance_subtopology"),
    ],
)
def test_invalid_tags_and_racks_are_refused(settings: dict[str, object], reported: str) -> None:
    with pytest.raises(StreamsConfigError, match=reported):
        config(**settings)


def test_the_rack_is_that_of_the_consumer_that_reads_the_input() -> None:
    assert config(**{"client.rack": "r1", "rack.aware.assignment.strategy": "min_traffic"}).client_rack == "r1"
    assert config(**{"main.consumer.client.rack": "r2"}).client_rack == "r2"
    assert config().client_rack == ""


# -- the tables --------------------------------------------------------------------------------------------------------------------


def test_librdkafkas_list_is_that_of_the_installed_one() -> None:
    """A property of the list that the installed librdkafka does not know would be let through and fail at the start."""
    from confluent_kafka import Consumer, KafkaException, Producer

    def known(client: type[Consumer] | type[Producer], name: str) -> bool:
        with pytest.raises(KafkaException) as refused:  # at the latest because of the last setting: no client is made
            client({"group.id": "g", name: "1", "debug": "no such value"} if client is Consumer else {name: "1", "debug": "no such value"})
        return "No such configuration property" not in str(refused.value)

    assert [name for name in sorted(COMMON | CONSUMER) if not known(Consumer, name)] == []
    assert [name for name in sorted(PRODUCER) if not known(Producer, name)] == []
    assert "group.instance.id" in COMMON | CONSUMER and "linger.ms" in PRODUCER and "bootstrap.servers" in COMMON


@pytest.mark.parametrize("key", KEYS.values(), ids=lambda key: key.name)
def test_every_key_is_documented_and_its_default_is_valid(key: object) -> None:
    from penstock.runtime.config.keys import ConfigKey

    assert isinstance(key, ConfigKey)
    assert (key.doc.endswith(".") and key.doc[0].isupper()) or key.doc.startswith("host:port")
    if key.default is not None and key.kind is not Kind.OBJECT:
        assert config(**{key.name: key.default})[key.name] == key.default


def test_the_page_lists_every_key_as_it_is() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text()
    assert as_markdown() in page, f"put this table in its place:\n{as_markdown()}"


@pytest.mark.parametrize("name", KEYS)
def test_every_key_is_read_by_something(name: str) -> None:
    """A documented key that nothing reads has no effect."""
    declared = ROOT / "runtime" / "config" / "keys.py"
    assert declared.exists()
    sources = [path for path in (ROOT / "runtime").rglob("*.py") if path != declared]
    assert any(f'"{name}"' in path.read_text() for path in sources)


def test_a_transaction_may_take_longer_than_the_commit_interval() -> None:
    settings = {"application.id": "app", "bootstrap.servers": "b:1"}
    assert StreamsConfig(settings).producer_properties()["transaction.timeout.ms"] == 10_000
    assert StreamsConfig({**settings, "commit.interval.ms": 60_000}).producer_properties()["transaction.timeout.ms"] == 65_000
    with pytest.raises(StreamsConfigError, match=r"transaction.timeout.ms \(20000\) must be longer than commit.interval.ms \(20000\)"):
        StreamsConfig({**settings, "commit.interval.ms": 20_000, "producer.transaction.timeout.ms": 20_000})


def test_a_transaction_lasts_longer_than_the_calls_of_a_turn(caplog: pytest.LogCaptureFixture) -> None:
    settings = {"application.id": "app", "bootstrap.servers": "b:1"}
    by_default = {turn: StreamsConfig(settings).with_time_for_calls(turn) for turn in (0, 2_000, 10_000, 3_600_000)}
    timeouts = {turn: made.producer_properties()["transaction.timeout.ms"] for turn, made in by_default.items()}
    assert timeouts == {0: 10_000, 2_000: 10_000, 10_000: 15_100, 3_600_000: 900_000}
    assert [record.getMessage() for record in caplog.records if "may hold up a task for 3600000 ms" in record.getMessage()]
    caplog.clear()
    given = StreamsConfig({**settings, "producer.transaction.timeout.ms": 10_100})
    assert given.with_time_for_calls(9_999) is given and not caplog.records
    assert given.with_time_for_calls(10_000) is given
    assert "longer than transaction.timeout.ms (10100)" in caplog.text


@pytest.mark.parametrize(("key", "value"), [("rack.aware.assignment.tags", "hidden"), ("bootstrap.servers", "hidden:99999")])
def test_a_value_from_the_environment_is_refused_without_its_parts(key: str, value: str) -> None:
    with pytest.raises(StreamsConfigError, match=r" = '\$\{FROM\}': this value is not possible") as refused:
        StreamsConfig({**BASE, key: FromEnvironment.of(value, "${FROM}")})
    assert "hidden" not in str(refused.value)
