"""`make bench ARGS=wide`: the truth of a sample, and the rates of parts of a run."""

from __future__ import annotations

from collections import Counter

from benchmarks.data import wide_records
from benchmarks.truth import LONG
from benchmarks.wide import BEGIN, END, PAGE, Rates, SampledTruth, rates


def test_rates_are_of_all_and_of_the_first_and_the_last_tenth() -> None:
    looks = [(0.0, 0), (1.0, 10), (2.0, 110), (6.0, 500), (10.0, 900), (15.0, 1000)]
    assert rates(looks, 1000) == Rates(all=990 / 14, first=100.0, last=20.0)


def test_a_wrong_count_and_a_missing_output_are_seen() -> None:
    records, keys = 2_000, 500
    counts: Counter[str] = Counter()
    outputs = []
    for key, _, _ in wide_records(records, keys):
        counts[key] += 1
        outputs.append((key.encode(), LONG.pack(counts[key])))
    truth = SampledTruth("count", records, keys)
    assert truth.look(iter(outputs)) == (records, 0)
    assert truth.look(iter(outputs[:-1]))[1] >= 1
    last = max(number for number, (key, _) in enumerate(outputs) if int(key[1:]) % 16 == 0)
    outputs[last] = (outputs[last][0], LONG.pack(1_000))
    assert truth.look(iter(outputs)) == (records, 1)


def test_the_page_has_a_place_for_the_table() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page.index(BEGIN) < page.index(END)
