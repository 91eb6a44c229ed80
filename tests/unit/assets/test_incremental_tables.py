"""Decision whether records since the last run may be merged, or a topic has to be read from its start. Rule 13, for tables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from penstock import serdes
from penstock.assets.spark.changelog.incremental import FOLDER, KeptState, read_state, rebuild_reason
from penstock.assets.spark.changelog.log_range import ChangelogError, LogRange, require_whole
from penstock.assets.spark.changelog.store_log import StoreLog, store_log
from penstock.runtime.dsl.builder import StreamsBuilder
from penstock.runtime.dsl.options import Consumed, Materialized
from penstock.runtime.model.errors import StateDirectoryError
from penstock.runtime.stores.base import StoreLayout, StoreSchemas
from penstock.runtime.topology.topology import Topology

DAY_MS = 86_400_000
LOG = StoreLog(
    application="app",
    store="facts",
    layout=StoreLayout("key_value", True, "STRING", "JSON"),
    schemas=StoreSchemas(value={"type": "object"}),
    topic="app-facts-changelog",
    partitions=2,
)
BEFORE = KeptState(log=LOG, schemas=LOG.schemas, topic_id="T1", offsets={0: 10, 1: 20}, stream_times={}, at_ms=1_000)


def found(end: Mapping[int, int], start: Mapping[int, int] | None = None, topic_id: str = "T1", compacted_only: bool = True) -> LogRange:
    return LogRange(
        topic=LOG.topic,
        topic_id=topic_id,
        start=start or dict.fromkeys(end, 0),
        end=end,
        stable=end,
        delete_retention_ms=DAY_MS,
        compacted_only=compacted_only,
    )


def test_new_records_are_merged_while_the_topic_has_all_of_them() -> None:
    assert rebuild_reason(BEFORE, LOG, found({0: 15, 1: 20}), 1_000 + DAY_MS) is None
    assert rebuild_reason(BEFORE, LOG, found({0: 15, 1: 20}, {0: 10, 1: 3}), 2_000) is None  # what was deleted had been merged


@pytest.mark.parametrize(
    ("now", "at_ms", "reason"),
    [
        (found({0: 15, 1: 20}, topic_id="T2"), 2_000, "was deleted and created again: its id was T1 and is T2"),
        (found({0: 9, 1: 20}), 2_000, "app-facts-changelog-0 ends at offset 9, and the last run was at 10"),
        (found({0: 15, 1: 25}, {0: 0, 1: 21}), 2_000, "app-facts-changelog-1 begins at offset 21, and the last run was at 20"),
        (found({0: 15, 1: 20, 2: 0}), 2_000, "has 3 partitions and had 2"),
        (found({0: 15, 1: 20}), 1_001 + DAY_MS, "deletions since then may have been cleaned away"),
    ],
)
def test_rule_13_a_topic_with_missing_records_is_read_from_its_start(now: LogRange, at_ms: int, reason: str) -> None:
    reported = rebuild_reason(BEFORE, LOG, now, at_ms)
    assert reported is not None and reason in reported


def test_rule_13_however_long_ago_where_nothing_came_nothing_was_deleted() -> None:
    assert rebuild_reason(BEFORE, LOG, found({0: 10, 1: 20}), 1_000 * DAY_MS) is None


def test_a_store_whose_declaration_has_changed_is_read_from_its_start() -> None:
    for other in (replace(LOG, value_schema="a BIGINT"), replace(LOG, layout=StoreLayout("key_value", True, "STRING", "LONG"))):
        assert "has changed" in str(rebuild_reason(BEFORE, other, found({0: 15, 1: 20}), 2_000))
    assert rebuild_reason(None, LOG, found({0: 15, 1: 20}), 2_000) == "there is no version to build upon"


def test_unknown_json_types_are_derived_from_later_records() -> None:
    log = replace(LOG, schemas=StoreSchemas())
    before = replace(BEFORE, log=log, schemas=log.schemas)
    assert "no value that shows the type of JSON" in str(rebuild_reason(before, log, found({0: 15, 1: 20}), 2_000))
    assert rebuild_reason(before, log, found({0: 10, 1: 20}), 2_000) is None  # still nothing
    assert rebuild_reason(replace(before, schemas=StoreSchemas(value={"type": "string"})), log, found({0: 15, 1: 20}), 2_000) is None


def test_state_that_is_half_there_or_of_another_version_is_none(tmp_path: Path) -> None:
    assert read_state(tmp_path) is None
    (tmp_path / FOLDER).mkdir()
    assert read_state(tmp_path) is None
    whole = msgspec.json.encode(BEFORE).decode()
    for text in ("", "{", '{"version": 99}', whole.replace('"version":2', '"version":1'), whole):  # the last one: without its rows
        (tmp_path / FOLDER / "state.json").write_text(text)
        assert read_state(tmp_path) is None
    (tmp_path / FOLDER / "rows").mkdir()
    assert read_state(tmp_path) == BEFORE


def test_a_truncated_log_is_an_error_for_keys_and_a_note_for_windows_that_expire() -> None:
    cut = found({0: 15, 1: 20}, {0: 0, 1: 5})
    with pytest.raises(ChangelogError, match="app-facts-changelog-1 begins at offset 5, though it is only compacted"):
        require_whole(LOG, cut)
    noted = require_whole(LOG, found({0: 15, 1: 20}, {0: 0, 1: 5}, compacted_only=False))
    assert "app-facts-changelog-1 begins at offset 5" in noted.notes[0]
    assert require_whole(LOG, found({0: 15})).notes == ()


def topology() -> Topology:
    builder = StreamsBuilder()
    text = Consumed(serdes.STRING, value=serdes.STRING)
    builder.global_table("airports", text, Materialized("airports"))
    unlogged: Materialized[str, str] = Materialized("kept", logging=False)
    builder.table("unlogged", text, unlogged)
    return builder.build()


@pytest.mark.parametrize(
    ("store", "message"),
    [("kept", "store kept of app has no changelog"), ("nothing", "app has no store 'nothing'; there are airports, kept")],
)
def test_a_store_without_a_changelog_is_named(store: str, message: str) -> None:
    with pytest.raises(StateDirectoryError, match=message):
        store_log("app", f"{__name__}:topology", store, {"bootstrap.servers": "nowhere:1"})


def test_a_global_store_is_read_from_its_topic() -> None:
    log = store_log("app", f"{__name__}:topology", "airports", {"bootstrap.servers": "nowhere:1"}, "a BIGINT")
    assert (log.topic, log.is_global, log.subtopology, log.value_schema) == ("airports", True, None, "a BIGINT")
