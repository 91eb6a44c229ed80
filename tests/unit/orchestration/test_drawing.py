"""Pictures of topologies: what is in them, that SVG is XML and Mermaid has nothing that it would take for its own."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping

import pytest

from penstock import Consumed, Grouped, Materialized, StreamsBuilder, StreamsConfig, serdes
from penstock.orchestration.drawing import Level, Note, TopicRate, mermaid, parse, svg, with_call_sites
from penstock.orchestration.drawing.live import have_reported_again, newest_text, notes
from penstock.orchestration.kafka.observer import Picture
from penstock.runtime.coordination.records import Member, PausedAt, TaskReport
from penstock.runtime.model.states import TaskKind, TaskState

SVG = "{http://www.w3.org/2000/svg}"


def description() -> str:
    builder = StreamsBuilder()
    strings = Consumed(serdes.STRING, value=serdes.STRING)
    airports = builder.global_table("airports", strings, Materialized("all-airports"))
    (
        builder.stream(("flights", "charters"), strings)
        .join(airports, lambda key, value: value, lambda left, right: f"{left}{right}")
        .group_by(lambda key, value: value, Grouped(serdes.STRING, value=serdes.STRING, name="by-airport"))
        .count(Materialized("departures"))
        .to_stream()
        .to(lambda key, value: "chosen")
    )
    config = StreamsConfig({"application.id": "board", "bootstrap.servers": "localhost:1"})
    return str(builder.build().resolved(config).describe())


def test_every_node_topic_and_store_is_read_from_the_description() -> None:
    drawing = parse(description(), {0: Note("2 tasks")})
    assert [(part.number, part.is_global, part.note.text) for part in drawing.parts] == [
        (0, True, "2 tasks"),
        (1, False, ""),
        (2, False, ""),
    ]
    nodes = {node.name: node for part in drawing.parts for node in part.nodes}
    assert {topic for node in nodes.values() if node.kind == "source" for topic in node.topics} == {
        "flights", "charters", "airports", "board-by-airport-repartition",
    }  # fmt: skip
    sinks = [node.topics for node in nodes.values() if node.kind == "sink"]
    assert ("board-by-airport-repartition",) in sinks
    assert any(topics[0].startswith("[") for topics in sinks), "a topic that is chosen per record"
    assert {store for node in nodes.values() for store in node.stores} == {"all-airports", "departures"}
    assert all(child in nodes for node in nodes.values() for child in node.children)


def test_a_picture_that_is_wider_than_its_page_is_scaled_to_it() -> None:
    drawing = parse(description())
    whole, same, small = (ET.fromstring(svg(drawing, widest=widest)).attrib for widest in (None, 10_000, 300))
    assert whole == same and whole["viewBox"] == small["viewBox"]
    assert small["width"] == "300" and float(small["height"]) == pytest.approx(float(whole["height"]) * 300 / float(whole["width"]), abs=1)


def test_an_unnamed_node_is_shown_with_the_line_that_made_it() -> None:
    node = next(node.name for part in parse(description()).parts for node in part.nodes if node.name.startswith("KSTREAM-LEFTJOIN-"))
    drawing = parse(description(), call_sites={node: "join at board.py:31"})
    label = "join at board.py:31"
    assert f">{label}</text>" in svg(drawing) and f"<title>{node}</title>" in svg(drawing) and f'["{label}"]' in mermaid(drawing)
    text = with_call_sites(description(), {node: "join at board.py:31"})
    assert text.endswith(f"\n\nLines:\n  {node}: join at board.py:31\n")
    assert with_call_sites(description(), {}) == description() and len(parse(text).parts) == 3


def test_other_text_is_refused() -> None:
    with pytest.raises(ValueError, match="not the text of a topology"):
        parse("flowchart TB")


def test_the_svg_shows_all_of_it_inside_its_frame() -> None:
    drawing = parse(description(), {1: Note("3 tasks, 5 records/s")})
    root = ET.fromstring(svg(drawing))
    texts = [element.text or "" for element in root.iter(f"{SVG}text")]
    for part in drawing.parts:
        for node in part.nodes:
            assert node.name in texts and all(topic in texts for topic in node.topics) and all(store in texts for store in node.stores)
    assert any("5 records/s" in text for text in texts)
    left, top, width, height = map(float, root.attrib["viewBox"].split())
    frames = list(root.iter(f"{SVG}g"))
    assert len(frames) == len(drawing.parts)
    for frame in frames:
        x, y = map(float, re.findall(r"-?[\d.]+", frame.attrib["transform"]))
        outer = next(frame.iter(f"{SVG}rect"))
        assert x + float(outer.attrib["width"]) <= left + width and y + float(outer.attrib["height"]) <= top + height
        shapes = [element.attrib for element in frame.iter(f"{SVG}rect")][1:]
        assert all(float(shape["x"]) >= 0 and float(shape["x"]) + float(shape["width"]) <= float(outer.attrib["width"]) for shape in shapes)
        for one in shapes:
            for other in shapes:
                if one is not other and one["y"] == other["y"]:
                    assert float(one["x"]) + float(one["width"]) <= float(other["x"]) or float(other["x"]) < float(one["x"])


def test_the_mermaid_chart_names_everything_and_quotes_it() -> None:
    text = mermaid(parse(description(), {1: Note('a "note" <here>')}))
    assert text.startswith("flowchart TB\n")
    for name in ("board-by-airport-repartition", "departures", "all-airports"):
        assert f'"{name}"' in text
    assert "#quot;note#quot; #lt;here#gt;" in text
    declared = set(re.findall(r"^\s+(?:subgraph )?(\w+)[\[(]", text, re.MULTILINE))
    used = {key for line in text.splitlines() if " --> " in line or " -.- " in line for key in re.split(r" --> | -\.- ", line.strip())}
    assert used <= declared


def test_what_is_wrong_has_a_colour_and_edges_their_rates() -> None:
    drawing = parse(description(), {1: Note("1 paused", Level.PAUSED), 2: Note("lag 9", Level.LAGGING)})
    rates = {"flights": TopicRate(1_200.0, 3.0), "board-by-airport-repartition": TopicRate(700.0, 1_100.0)}
    drawn, chart = svg(drawing, rates), mermaid(drawing, rates)
    frames = [frame.attrib["class"] for frame in ET.fromstring(drawn).iter(f"{SVG}rect") if "frame" in frame.attrib.get("class", "")]
    assert frames == ["frame ", "frame paused", "frame lagging"]
    shown = [text.text for text in ET.fromstring(drawn).iter(f"{SVG}text") if text.attrib.get("class") == "rate"]
    assert sorted(map(str, shown)) == ["1,100/s", "1,200/s", "700/s"], "read at the source, written at the sink"
    assert "class p1 paused" in chart and "class p2 lagging" in chart and chart.count('-->|"1,200/s"|') == 1


def member(heartbeat_ms: int, tasks: Mapping[str, TaskReport], topology: str = "h") -> Member:
    return Member(
        instance="i",
        incarnation=1,
        transactional_id="t",
        host="h",
        pid=1,
        tasks=dict(tasks),
        heartbeat_ms=heartbeat_ms,
        topology_hash=topology,
    )


def report(offsets: int, state: TaskState = TaskState.RUNNING, kind: TaskKind = TaskKind.ACTIVE) -> TaskReport:
    paused = PausedAt(topic="in", partition=0, offset=offsets) if state is TaskState.PAUSED else None
    return TaskReport(kind=kind, state=state, offset_sum=offsets, end_sum=offsets + 10, lag=10, paused=paused)


def picture(*members: Member) -> Picture:
    return Picture("app", {each.identity: each for each in members}, {}, {"h": "Topologies:"}, None)


def test_rates_are_those_between_two_reports_of_the_same_worker() -> None:
    before = picture(member(1_000, {"0_0": report(100), "0_1": report(0, TaskState.PAUSED), "1_0": report(5)}))
    after = picture(
        member(3_000, {"0_0": report(2_100), "0_1": report(0, TaskState.PAUSED), "1_1": report(7), "0_2": report(1, kind=TaskKind.STANDBY)})
    )
    assert notes(after, before) == {0: Note("2 tasks, 1 paused, 1,000 records/s, lag ≥ 20", Level.PAUSED), 1: Note("1 task, lag 10")}
    assert notes(after) == {0: Note("2 tasks, 1 paused, lag ≥ 20", Level.PAUSED), 1: Note("1 task, lag 10")}
    assert notes(after, before, {0: 9_000, 1: 61})[0].text.endswith("1,000 records/s, lag 9,000"), "measured"
    assert notes(after, before, {1: 61})[1].level is Level.GOOD and notes(after, None, {1: 10_001})[1].level is Level.LAGGING
    assert have_reported_again(after, before) and not have_reported_again(before, before)
    assert have_reported_again(picture(), before), "a worker that is gone is not waited for"
    assert newest_text(after) == "Topologies:" and newest_text(picture()) is None
