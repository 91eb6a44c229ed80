"""Topics of the application's own that are there already: what does not fit is refused, with the commands that lead out."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from penstock import serdes
from penstock.runtime.kafka.connection import Connection
from penstock.runtime.model.errors import StoreChangedError, StreamsError, WrongPartitionsError
from penstock.runtime.stores.suppliers import Stores
from penstock.runtime.topology.internal_topics import REPARTITION_CONFIG, InternalTopicCheck

HOUR, DAY = 3_600_000, 86_400_000
CHECK = InternalTopicCheck("app", Connection("broker:9092"), DAY)
KEY_VALUE = Stores.key_value_store_builder(Stores.persistent_key_value_store("s"), serdes.STRING, serdes.LONG).changelog_config()
WINDOWS = Stores.window_store_builder(Stores.persistent_window_store("s", 2 * HOUR, HOUR), serdes.STRING, serdes.LONG).changelog_config()
SESSIONS = Stores.session_store_builder(Stores.persistent_session_store("s", HOUR), serdes.STRING, serdes.LONG).changelog_config()
VERSIONED = Stores.versioned_key_value_store_builder(
    Stores.persistent_versioned_key_value_store("s", HOUR), serdes.STRING, serdes.LONG
).changelog_config()
BROKERS = {"retention.ms": "604800000", "retention.bytes": "-1", "min.compaction.lag.ms": "0"}
"""Description of a topic without settings of its own."""


def check(kind: str, found: Mapping[str, str], wanted: Mapping[str, str], partitions: tuple[int, int] = (3, 3)) -> None:
    CHECK.check("app-s-changelog", kind, (partitions[0], {**BROKERS, **found}), (partitions[1], _as_made(wanted)))


def _as_made(config: Mapping[str, str]) -> dict[str, str]:
    """With the additional retention, as `changelog_topics` makes it."""
    if "delete" not in config["cleanup.policy"] or config["retention.ms"] == "-1":
        return dict(config)
    return {**config, "retention.ms": str(int(config["retention.ms"]) + DAY)}


@pytest.mark.parametrize("config", [KEY_VALUE, WINDOWS, SESSIONS, VERSIONED, REPARTITION_CONFIG])
def test_an_unchanged_topic_passes_without_a_warning(config: Mapping[str, str], caplog: pytest.LogCaptureFixture) -> None:
    check("repartition" if config is REPARTITION_CONFIG else "changelog", _as_made(config), config)
    assert not caplog.records


def test_another_number_of_partitions_is_refused_with_the_commands() -> None:
    with pytest.raises(WrongPartitionsError) as raised:
        check("changelog", KEY_VALUE, KEY_VALUE, (3, 4))
    text = str(raised.value)
    assert "app-s-changelog has 3 partitions, but must have 4" in text
    assert text.endswith("build the state again: stop every instance (penstock stop app), then penstock reset app")


@pytest.mark.parametrize("now", [WINDOWS, SESSIONS])
def test_a_changelog_of_keys_is_refused_for_windows(now: Mapping[str, str]) -> None:
    with pytest.raises(StoreChangedError, match=r"made for a key-value store.*penstock reset app"):
        check("changelog", KEY_VALUE, now)


@pytest.mark.parametrize("now", [KEY_VALUE, VERSIONED])
def test_a_changelog_of_windows_is_refused_for_keys(now: Mapping[str, str]) -> None:
    with pytest.raises(StoreChangedError, match=r"was a window or session store,.*add-config cleanup\.policy=\[compact\]"):
        check("changelog", _as_made(WINDOWS), now)


def test_a_changelog_that_deletes_nothing_after_all_passes() -> None:
    check("changelog", {"cleanup.policy": "compact,delete", "retention.ms": "-1"}, KEY_VALUE)
    with pytest.raises(StoreChangedError):
        check("changelog", {"cleanup.policy": "compact,delete", "retention.ms": "-1", "retention.bytes": "1000"}, KEY_VALUE)


@pytest.mark.parametrize(("kind", "wanted"), [("changelog", KEY_VALUE), ("changelog", WINDOWS), ("own", {"cleanup.policy": "compact"})])
def test_a_topic_that_must_be_compacted_and_is_not_is_refused(kind: str, wanted: Mapping[str, str]) -> None:
    with pytest.raises(StreamsError, match=r"brokers would delete what it holds.*kafka-configs .*--alter"):
        check(kind, {"cleanup.policy": "delete"}, wanted)


def test_a_repartition_topic_that_is_compacted_is_refused() -> None:
    with pytest.raises(StreamsError, match="remove records that were not processed"):
        check("repartition", {"cleanup.policy": "compact"}, REPARTITION_CONFIG)


@pytest.mark.parametrize(
    ("kind", "found", "wanted", "reported"),
    [
        ("changelog", {**WINDOWS, "retention.ms": "1000"}, WINDOWS, "keeps records for 1000 ms only.*retention.ms=93600000"),
        ("repartition", {"cleanup.policy": "delete"}, REPARTITION_CONFIG, "keeps records for 604800000 ms only.*retention.ms=-1"),
        ("changelog", KEY_VALUE, VERSIONED, "may be compacted after 0 ms.*min.compaction.lag.ms=90000000"),
    ],
)
def test_a_setting_by_which_brokers_may_delete_data_later_is_a_warning(
    kind: str, found: Mapping[str, str], wanted: Mapping[str, str], reported: str, caplog: pytest.LogCaptureFixture
) -> None:
    check(kind, found, wanted)
    assert re.search(reported, caplog.text)


def test_less_additional_retention_than_configured_now_is_no_loss(caplog: pytest.LogCaptureFixture) -> None:
    check("changelog", WINDOWS, WINDOWS)
    assert not caplog.records
