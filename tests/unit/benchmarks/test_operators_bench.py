"""The table of `make bench` with others beside the engine."""

from __future__ import annotations

from benchmarks.measure import Measurement
from benchmarks.peers.programs import PROGRAMS
from benchmarks.run_tables import BEGIN, END, PAGE, Results, text


def measured(rate: float, records: int = 1_000) -> list[Measurement]:
    return [Measurement(records, records / rate, rate, rate, 0.002, 64 * 2**20, records // 2, 0)]


def test_the_page_is_what_the_table_writes_and_what_a_program_cannot_do_is_left_out() -> None:
    results: Results = {
        ("stateless-eos", "penstock"): measured(300_000),
        ("stateless-eos", "hand-written"): measured(600_000),
        ("stateless-eos", "quix"): measured(30_000),
        ("stream-join-eos", "penstock"): measured(40_000),
        ("stream-join-eos", "hand-written"): measured(80_000),
    }
    lines = text(results, 5_000_000, 1).splitlines()
    assert lines[0] == f"5,000,000 records; {PROGRAMS['quix'].most_records:,} for quix, the median of 1:"
    assert lines[2].startswith("| | krec/s | hand-written | ratio | quix | ratio | CPU s/M | hand-written | quix | MiB |")
    assert lines[4].startswith("| stateless-eos | 300 | 600 | **0.50** | 30 | **10.00** | 2.00 | 2.00 | 2.00 | 64 |")
    assert lines[5].startswith("| stream-join-eos | 40 | 80 | **0.50** | – | – | 2.00 | 2.00 | – |")
    assert len({line.count("|") for line in lines[2:]}) == 1
    page = PAGE.read_text(encoding="utf-8")
    table = page[page.index(BEGIN) + len(BEGIN) : page.index(END)].strip().splitlines()
    assert table[2].split(" | ")[:4] == lines[2].split(" | ")[:4] and len({line.count("|") for line in table[2:]}) == 1
