"""An alert on its page in Dagster: the order of its facts, a link for each decision, and forms that are filled in, with comments that no
content of a record can leave."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import dagster as dg
import pytest
import yaml
from markdown_it import MarkdownIt

from penstock.orchestration import MAY_BREAK
from penstock.orchestration.alerts import alert_text, alerts, pauses, raw_bytes
from penstock.orchestration.dagster import alert_check, live_metadata
from penstock.orchestration.dagster.jobs import jobs, run_book_job, take_snapshot_job
from penstock.orchestration.dagster.resources import PenstockResource
from penstock.orchestration.database.models import Alert, Event
from penstock.orchestration.declarations.applications import Applications
from penstock.orchestration.run_books.inputs import SkipRecordInputs

JOBS = {job.name: job for job in jobs(Applications.parse("", Path("streams.toml")))}
DECISION = JOBS["approve_run_book"]
AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
HOSTILE = "no\nops: {skip: {config: {offset: 99}}}\r\x85\u2028```\n[link](javascript:alert(1)) <b>\x1b[31m"


def alert(**detail: object) -> Alert:
    paused: dict[str, object] = {"topic": "in", "partition": 0, "offset": 5, "error_type": "ValueError", "error": HOSTILE}
    paused |= {"key_base64": raw_bytes.to_base64(b"k"), "value_base64": raw_bytes.to_base64(HOSTILE.encode()), "stack": "frames"}
    return Alert(
        id=7,
        occurrence="o",
        kind="TASK_PAUSED",
        severity="ERROR",
        state="OPEN",
        application="a",
        instance="a-1",
        task="0_0",
        subject="in-0@5",
        title="task 0_0 is paused at in-0@5",
        detail={**paused, **detail},
        opened_at=AT,
        last_seen_at=AT,
        count=1,
    )


def form(path: str) -> str:
    return parse_qs(urlsplit(path).query)["config"][0]


def test_the_facts_are_in_the_order_of_need_also_where_names_are_sorted() -> None:
    shown = list(alert_check.metadata(alert(**{"run-book": "none: no pattern matches"})))
    assert shown == sorted(shown)
    kept = [name.split(" ", 1)[1] for name in shown]
    assert kept == ["what", "since", "record", "why", "stack", "bytes", "repair", "decisions", "instance", "what else"]
    sections = alert_text.sections(alert())
    assert sections["2 since"] == "once, 2026-01-02 03:04:05+00:00 (ERROR, OPEN)"
    assert sections["3 record"].startswith("in-0@5\n")
    assert "6b" in sections["5 bytes"] and "penstock run-book skip-record a 0_0" in sections["6 repair"]


def test_the_sizes_of_a_record_that_is_larger_than_what_an_alert_keeps_are_its_own() -> None:
    payload: dict[str, object] = {
        name: raw_bytes.to_base64(b"x" * size) for name, size in (("key_base64", 5_000), ("value_base64", 10_106))
    }
    event = Event(
        id="e", application="a", sequence=1, instance="a-1", incarnation=1, kind="TASK_PAUSED", task="0_0", at=AT, payload=payload
    )
    shown = alert(**pauses.pause_alert(event).detail)
    for text, rest in ((alert_text.sections(shown)["5 bytes"], 64), (alert_text.sections(shown, whole=True)["5 bytes"], 256)):
        assert re.findall(r"\((\d+) bytes\)", text) == ["5000", "10106"]
        assert re.findall(r"(\d+) more bytes", text) == [str(5_000 - rest), str(10_106 - rest)]
    assert raw_bytes.decoded(b"x" * 9) == "x" * 9 and "more" not in raw_bytes.hex_dump(b"x" * 9)


def test_times_are_readable_and_what_is_none_is_shown_as_it_is() -> None:
    """A producer may write any number as the timestamp of a record."""
    sections = alert_text.sections(alert(since_ms=1_767_323_045_678, timestamp_ms=1_767_323_044_000))
    assert "since: 2026-01-02 03:04:05 UTC" in sections["7 what else"].splitlines()
    assert "timestamp: 2026-01-02 03:04:04 UTC" in sections["3 record"].splitlines()
    shown = alert_text.facts(alert(since_ms=None, timestamp_ms=2**62))
    assert shown["timestamp_ms"] == str(2**62) and "since" not in shown


@pytest.mark.parametrize(
    ("detail", "names"),
    [
        ({}, ["repair", "try", "rehearse", "instance"]),
        ({"run_book_run": 3, "waits_for_approval": True}, ["approve", "reject", "try", "rehearse", "instance"]),
        ({"reason": "command"}, ["repair", "try", "instance"]),
    ],
)
def test_each_decision_has_a_link(detail: dict[str, object], names: list[str]) -> None:
    links = alert_check.links(alert(**detail))
    assert list(links) == names
    if "reject" in links:
        assert yaml.safe_load(form(links["reject"]))["ops"]["decide"]["config"] == {
            "run_book_run": 3,
            "decision": "reject",
            "reason": "",
            "by": "",
        }


def test_links_to_forms_have_names_since_dagster_shows_a_link_of_metadata_as_its_address() -> None:
    shown = alert_check.metadata(alert(run_book_run=3, waits_for_approval=True))
    decisions = shown["6.1 decisions"]
    assert isinstance(decisions, dg.MarkdownMetadataValue) and decisions.value is not None
    assert [line.split("](")[0] for line in decisions.value.splitlines()] == ["- [approve", "- [reject", "- [try", "- [rehearse"]
    links = re.findall(r"\]\(([^() ]+)\): ", decisions.value)
    assert [urlsplit(link).path for link in links] == [
        f"/guess/{job}/playground/setup" for job in ("approve_run_book", "approve_run_book", "skip_record", "rehearse_repair")
    ]
    addresses = [value.value for value in shown.values() if isinstance(value, dg.UrlMetadataValue)]
    assert [len(address) < 100 for address in addresses] == [True], "the instance: longer ones widen the page beyond the window"


def test_a_resolved_alert_takes_its_links_off_the_page_of_the_instance() -> None:
    """Dagster shows the newest entry of each name."""
    resolved = alert()
    resolved.state = "RESOLVED"
    assert alert_check.metadata(resolved)["6.1 decisions"] == dg.MetadataValue.text("none: the alert is resolved")


def test_the_end_of_the_log_is_shown_at_once_and_the_excerpt_by_a_click() -> None:
    shown = alert_check.metadata(alert(log_end="starting\nFatal: no memory\n"))
    assert shown["4.2 last line of the log"] == dg.MetadataValue.text("Fatal: no memory")
    assert isinstance(shown["4.3 log excerpt"], dg.MarkdownMetadataValue)


def test_json_lines_of_a_log_are_shown_as_a_person_reads_them() -> None:
    lines = [
        '{"at":"2026-01-02T03:04:05.678Z","level":"INFO","logger":"l","message":"starts","application":"a","instance":"a-1"}',
        '{"at":"2026-01-02T03:04:06Z","level":"ERROR","logger":"l","message":"task 0_1 failed","error":"Stack:\\n  f\\nKeyError: 7\\n"}',
    ]
    sections = alert_text.sections(alert(log_end="\n".join(lines)))
    first, last = "2026-01-02T03:04:05.678Z INFO starts", "2026-01-02T03:04:06Z ERROR task 0_1 failed"
    assert sections["4.2 last line of the log"] == f"{last}: KeyError: 7"
    assert sections["4.3 log excerpt"] == f"{first}\n{last}\nStack:\n  f\nKeyError: 7"
    assert alert_text.log_line('{"at": 3}') == '{"at": 3}', "not a line of ours"


def test_no_word_widens_the_page_of_an_instance_beyond_the_window() -> None:
    """Dagster does not break words in its tables. Nothing is left out."""
    long_topic = "t" * 200
    found = alert(topic=long_topic, key_base64=raw_bytes.to_base64(b"k" * 500), error=f"KeyError: '{'e' * 500}'", log=f"/{'l' * 99}.log")
    found.detail["stack"], found.detail["log_end"] = f"  {'s' * 99}", "w" * 99
    found.subject, found.title = f"{long_topic}-0@5", f"task 0_0 is paused at {long_topic}-0@5: KeyError: '{'e' * 300}'"
    texts = dg.TextMetadataValue, dg.MarkdownMetadataValue
    shown = {name: str(value.value) for name, value in alert_check.metadata(found).items() if isinstance(value, texts)}
    del shown["6.1 decisions"]  # names of links
    assert [word for text in shown.values() for word in re.split(r"[\s/?-]|\u200b", text) if len(word) > 30] == []
    whole = {name: text.replace("\u200b", "") for name, text in shown.items()}
    assert f"at {long_topic}-0@5: KeyError: 'eee" in whole["1 what"] and "… (500 bytes)" in whole["5 bytes"]
    assert f"--record {long_topic}-0@5" in whole["6 repair"] and f"/{'l' * 99}.log" in whole["7 what else"]
    assert "` \u200b\xa0\xa0sss" in shown["4.1 stack"], "indentation stays"
    assert live_metadata.lines("penstock status a").value == "` penstock status a `", (
        "a command begins with no mark: a shell would not find it"
    )


def test_a_link_to_an_instance_with_a_long_name_has_its_name_instead_of_its_address() -> None:
    found = alert()
    found.instance = f"{'departures_' * 9}1"
    shown = alert_check.metadata(found)["6.2 instance"]
    assert isinstance(shown, dg.MarkdownMetadataValue) and shown.value is not None
    name, address = shown.value.removesuffix(")").split("](")
    assert name.replace("\u200b", "") == f"[{found.instance}" and address.endswith(f"&partition={found.instance}")


def test_the_newest_entry_of_a_resolved_alert_says_so_first() -> None:
    """It stays on the page of an instance, above the state, until the next alert."""
    resolved = alert()
    resolved.state = "RESOLVED"
    assert alert_check.metadata(resolved)["1 what"] == dg.MetadataValue.text("resolved: task 0_0 is paused at in-0@5")


DECLARED = Applications.parse(
    '[applications.flights]\nfactory = "m:f"\ninstances = 2\n[applications.b]\nfactory = "m:f"\ninstances = 1\n', Path("streams.toml")
)


@pytest.mark.parametrize(
    ("job", "op", "config"),
    [
        ("scale_application", "scale", {"instances": 2}),
        ("deploy_application", "deploy", {}),
        ("skip_record", "skip", {"task": "0_0", "topic": "in", "partition": 0, "offset": 5}),
        ("resume_task", "resume", {"task": "0_0"}),
        ("replay_dead_letters", "replay", {}),
        ("reset_application", "reset", {}),
    ],
)
def test_a_form_lets_choose_among_the_declared_applications(job: str, op: str, config: dict[str, object]) -> None:
    found = next(each for each in jobs(DECLARED) if each.name == job)

    def filled_in(application: str) -> dict[str, object]:
        return {"ops": {op: {"config": {"application": application, **config}}}}

    assert dg.validate_run_config(found, filled_in("flights"))
    with pytest.raises(dg.DagsterInvalidConfigError, match="not in enum type"):
        dg.validate_run_config(found, filled_in("fligths"))


@pytest.mark.parametrize(("job", "op"), [("drain_instance", "drain"), ("stop_instance", "stop"), ("restart_instance", "restart")])
def test_a_form_names_the_declared_instances_and_takes_others_which_scale_may_have_added(job: str, op: str) -> None:
    found = next(each for each in jobs(DECLARED) if each.name == job)
    assert dg.validate_run_config(found, {"ops": {op: {"config": {"instance": "flights-7"}}}})
    (node,) = found.graph.node_defs
    schema = node.config_schema
    assert schema is not None
    description = schema.config_type.fields["instance"].description  # type: ignore[union-attr]  # a form has fields
    assert description.endswith("Declared: flights-1, flights-2, b-1")


def test_a_form_is_filled_in_and_its_comments_contain_the_record_but_cannot_change_it() -> None:
    links = alert_check.links(alert())
    for name, dry_run in (("repair", False), ("try", True)):
        config = yaml.safe_load(form(links[name]))
        expected = {"application": "a", "task": "0_0", "topic": "in", "partition": 0, "offset": 5, "reason": "", "dry_run": dry_run}
        expected |= {} if dry_run else {"by": ""}
        assert config == {"ops": {"skip": {"config": expected}}}
        assert dg.validate_run_config(run_book_job(SkipRecordInputs), config)
    comments = [line for line in form(links["repair"]).splitlines() if line.startswith("#")]
    assert max(map(len, comments)) <= 84, "the form's editor shows as many characters in a window of 1440 pixels"
    comments = [line for line in comments if not line.startswith("#  ")]
    beginnings = [comment.removeprefix("# ").split(":")[0] for comment in comments]
    steps = [f"step {step.name}" for step in SkipRecordInputs.BOOK.STEPS]
    about = ["alert", "task", "error", "first bytes of the key", "first bytes of the value"]
    assert beginnings == [*about, *steps]
    waiting = alert_check.links(alert(run_book_run=3, waits_for_approval=True))
    for name, more in (("approve", steps), ("try", ["dry run", *steps]), ("reject", ["reject"])):
        said = [line.removeprefix("# ").split(":")[0] for line in form(waiting[name]).splitlines() if line.startswith("# ")]
        assert [each for each in said if not each.startswith(" ")] == [*about, *more]


def test_what_a_record_contains_stays_in_its_block() -> None:
    shown = alert_check.metadata(alert(stack=HOSTILE))["4.1 stack"]
    assert isinstance(shown, dg.MarkdownMetadataValue) and shown.value is not None
    lines = re.split("\r\n?|\n", shown.value)  # as Markdown counts them
    assert all(re.fullmatch("```` .+ ````(  )?", line) and line.count("````") == 2 for line in lines), "each is code: none ends within it"
    assert len(lines) == len(re.findall(r"[^\r\n]+", HOSTILE))


@pytest.mark.parametrize(
    "text",
    [
        HOSTILE,
        "<script>alert(1)</script> **bold** ~~gone~~ | a | b |\n|---|---|\n| 1 | 2 |",
        "# head",
        "1. a list",
        "- a list",
        "![](http://tracked) [link](javascript:alert(3)) [x]: y",
        "_emphasis_ &lt; \\[ \\\\x1b ` `` ``` ```` 2 * 3 * 4 __init__ a_b_c",
        "Expected `float`, got `str` - at `$.celsius`",
    ],
)
def test_a_description_is_shown_in_one_line_as_it_is_whatever_an_error_says(text: str) -> None:
    """Dagster shows descriptions of checks and events as Markdown."""
    markdown = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    opened, line, closed = markdown.parse(live_metadata.sentence(text))
    assert (opened.type, closed.type) == ("paragraph_open", "paragraph_close")
    kinds = {part.type for part in line.children or ()}
    assert kinds <= {"text", "text_special", "code_inline"}
    shown = "".join(f"`{part.content}`" if part.type == "code_inline" else part.content for part in line.children or ())
    assert shown.replace(MAY_BREAK, "") == " ".join(text.split())


def test_an_error_neither_fakes_entries_of_a_list_nor_hides_what_repairs_it() -> None:
    assert alerts.as_title("task 0_0 is paused: no\n9  1 s ago  ERROR\r\n\x1b[31m") == "task 0_0 is paused: no 9 1 s ago ERROR \\x1b[31m"
    assert len(alerts.as_title("x" * 10_000)) == alerts.MOST_TITLE
    described = alert_check.metadata(alert(error="x" * 16_000))
    why = described["4 why"].value
    assert isinstance(why, str) and len(why.replace(MAY_BREAK, "")) < 1_200 and "16,000 characters: penstock alerts show 7" in why
    assert "x" * 16_000 in alert_text.sections(alert(error="x" * 16_000), whole=True)["4 why"]


def test_the_table_of_alerts_has_five_columns_and_begins_with_the_worst() -> None:
    mild = alert()
    mild.id, mild.severity, mild.kind = 8, "WARN", "LAG"
    table = alert_check._table([mild, alert()])
    assert len(table.schema.columns) <= 5
    assert [record.data["alert"] for record in table.records] == [7, 8]


@pytest.mark.parametrize(
    ("job", "config", "sentence"),
    [
        (
            run_book_job(SkipRecordInputs),
            {"application": "b", "task": "0_0", "topic": "in", "partition": 0, "offset": 5},
            "no application 'b'",
        ),
        (run_book_job(SkipRecordInputs), {"application": "a", "task": "x", "topic": "in", "partition": 0, "offset": 5}, "subtopology"),
        (JOBS["stop_instance"], {"instance": "b-1"}, "b-1"),
        (JOBS["scale_application"], {"application": "b", "instances": 2}, "no application 'b'"),
        (JOBS["drain_instance"], {"instance": "b-1"}, "b-1"),
        (JOBS["seed_application"], {"instance": "b-1", "seed": "s"}, "b-1"),
        (take_snapshot_job, {"application": "b"}, "no application 'b'"),
        (JOBS["rehearse_application"], {"application": "b"}, "no application 'b'"),
        (DECISION, {"run_book_run": 7, "decision": "approve"}, "there is no run 7; `penstock run-books` lists them"),
    ],
)
def test_a_refusal_is_a_sentence_without_a_stack_trace(
    job: dg.JobDefinition, config: dict[str, object], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "streams.toml").write_text('[applications.a]\nfactory = "m:f"\ninstances = 1\n')
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PENSTOCK_STREAMS", str(tmp_path / "streams.toml"))
    monkeypatch.delenv("PENSTOCK_DATABASE_URL", raising=False)
    (node,) = job.graph.node_dict
    done = job.execute_in_process({"ops": {node: {"config": config}}}, raise_on_error=False, resources={"penstock": PenstockResource()})
    (failure,) = [event for event in done.all_node_events if event.is_step_failure]
    error = failure.step_failure_data.error
    assert error is not None and sentence in error.message and (error.stack, error.cause) == ([], None)
