"""Series over commits, what they say of main, and the page that shows them."""

import json
from pathlib import Path

import pytest

from benchmarks import history

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def row(commit, date, seconds, case="L1", **further):
    stamp = {"commit": commit, "machine": {"cpu": {"model": "Abacus 9", "architecture": "wood", "threads": 1}}}
    ours = {"kernmantle": {"status": "ok", "median": seconds}}
    return {"suite": "cpu", "case": case, "definition": "d", "date": date, "stamp": stamp, "results": ours} | further


def series(*seconds):
    return history.Series("cpu", "m", "L1", "d", tuple((f"day {i}", f"c{i}", s) for i, s in enumerate(seconds)))


@pytest.mark.parametrize(
    ("seconds", "verdict"),
    [
        ((1.0,), "measured once"), ((1.0, 1.05), "as before"), ((1.0, 0.8), "faster"), ((1.0, 1.3), "slower"),
        ((1.0, 1.0, 1.3), "slower, once"), ((1.0, 1.3, 1.3), "slower"), ((2.0, 1.0, 1.05), "as before"),
    ],
)  # fmt: skip
def test_verdicts(seconds, verdict):
    assert series(*seconds).verdict == verdict


def test_rows_become_series_by_case_and_commit():
    rows = [
        row("b", "2026-02", 2.0), row("a", "2026-01", 1.0), row("b", "2026-03", 2.5), row("a", "2026-01", 7.0, "L2"),
        row("", "2026-01", 3.0), {"what": "a tile"}, row("c", "2026-04", 1.0, results={"theirs": {"median": 1.0}}),
    ]  # fmt: skip
    first, second = history.joined([history.points(rows)])
    assert first.points == (("2026-01", "a", 1.0), ("2026-03", "b", 2.5))
    assert second.points == (("2026-01", "a", 7.0),)
    assert first.change == 2.5


def test_a_slower_row_is_on_the_page(tmp_path):
    lines = [row("a", "2026-01", 1e-3), row("b", "2026-02", 2e-3), row("a", "2026-01", 1.0, "L2")]
    (tmp_path / "cpu.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    page = history.page(tmp_path)
    assert "**1 of 1 cases" in page
    assert "| L1 | 2 ms | b, 2026-02 | 1 ms | 1 ms | 2.00 | slower | 1 ms (a) → 2 ms (b) |" in page
    assert "L2" not in page


def test_the_committed_history_is_read():
    found = history.all_series(RESULTS)
    assert sum(len(one.points) > 1 for one in found) > 500
    assert "cases measured more than once" in history.page(RESULTS)
