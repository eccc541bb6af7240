"""The suite of Kronecker-sparse products: its grid, its oracles, what it sums up."""

from __future__ import annotations

import csv
import math

import pytest

from benchmarks import __main__ as command
from benchmarks import energy, kronsparse, pages, report, run, store
from kernmantle.errors import ParameterError
from kernmantle.kronsparse import KSPattern, PackedKSLinear

from ..measured import STAMP, measured


def test_the_grid_has_the_shapes_of_transformers() -> None:
    patterns = list(kronsparse.grid(25088))
    assert len(set(patterns)) == len(patterns)
    assert KSPattern(1, 48, 48, 4) in patterns
    assert all(p.b == p.c or p.b == 4 * p.c or p.c == 4 * p.b for p in patterns)
    assert all(25088 * max(p.in_features, p.out_features) < 2**31 for p in patterns)
    assert len(patterns) > 300


@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
def test_every_contestant_of_a_product_is_checked(last, monkeypatch) -> None:
    monkeypatch.setitem(kronsparse.BATCH, "cpu", 40)
    row = measured(kronsparse.case((3, 8, 12, 4), "f32", last, "cpu"), kronsparse.suite("cpu"))
    assert row["status"] == "ok"
    assert set(row["results"]) == {run.OURS, kronsparse.UNPACKED, *kronsparse.PEERS}
    assert {name: found["status"] for name, found in row["results"].items() if found["status"] == "wrong"} == {}
    assert {"bmm", "einsum", "dense"} <= {n for n, found in row["results"].items() if found["status"] == "ok"}


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("step", [False, True], ids=["forward", "step"])
def test_layers_are_checked(step, dtype) -> None:
    row = measured(kronsparse.layer_case(64, dtype, step, "cpu"), kronsparse.suite("cpu"))
    assert row["status"] == "ok"
    assert row["results"]["dense"]["status"] == "ok"


def test_a_wrong_product_is_found(monkeypatch) -> None:
    right = PackedKSLinear.forward
    monkeypatch.setattr(PackedKSLinear, "forward", lambda self, x, activation=None: right(self, x, activation) + 1)
    monkeypatch.setitem(kronsparse.BATCH, "cpu", 40)
    row = measured(kronsparse.case((3, 8, 12, 4), "f32", False, "cpu"), kronsparse.suite("cpu"))
    assert row["status"] == "wrong"


def test_ratios_are_to_the_best_of_the_others() -> None:
    def row(case, **medians):
        results = {name: {"median": value, "status": "ok"} for name, value in medians.items()}
        return {"case": case, "status": "ok", "results": results, "stamp": STAMP}

    rows = [
        row("(6, 64, 64, 1) f32 last", kernmantle=2.0, bmm=5.0, dense=3.0),
        row("forward pass 16 f32", kernmantle=2.0, dense=3.0),
        row("(1, 2, 2, 4) f16 first", kernmantle=2.0),
    ]
    assert kronsparse.ratios(rows) == {("f32", "last"): [(KSPattern(6, 64, 64, 1), 1.5)]}
    rows.append(row("(6, 64, 64, 2) f32 last", kernmantle=2.0, bmm=1.0, dense=3.0) | {"status": "ok"})
    said = kronsparse.summary(rows)
    assert said.startswith("f32, batch last: 1.00 times as fast")
    assert said.endswith("of 2 patterns, 0.50 times at (6, 64, 64, 2)")


def test_the_picture_shows_every_type_and_layout(tmp_path) -> None:
    pytest.importorskip("matplotlib")
    results = {"kernmantle": {"median": 1.0}, "bmm": {"median": 2.0}}
    rows = [{"case": f"(6, 64, 64, 1) f32 {way}", "status": "ok", "results": results} for way in ("first", "last")]
    kronsparse.picture(rows, tmp_path / "speed.png")
    assert (tmp_path / "speed.png").read_bytes()[:4] == b"\x89PNG"
    with pytest.raises(ParameterError, match="no rows"):
        kronsparse.picture([], tmp_path / "none.png")


def test_pages_sum_up_and_draw_the_grid_and_list_the_slice(tmp_path) -> None:
    kept = tmp_path / "rows.jsonl"
    made = {"stamp": STAMP, "suite": "kronsparse", "definition": "", "targets": [], "date": "2026", "status": "ok"}
    for case in ("(6, 64, 64, 1) f32 last", "(1, 48, 48, 4) f32 last", "(2, 48, 48, 16) f32 last", "forward pass"):
        times = {"kernmantle": {"median": 1.0, "status": "ok"}, "bmm": {"median": 2.5, "status": "ok"}}
        if case.startswith("(2, 48, 48, 16)"):  # which no table lists
            times["einsum"] = {"median": 2.5, "status": "ok"}
        store.append(kept, made | {"case": case, "title": f"title of {case}", "results": times})
    (group,) = pages.groups([kept])
    assert group.peers == ["bmm"]
    for text in (pages.page([kept]), pages.html([kept])):
        assert "2.50 times as fast as the best other algorithm in the median of 3 patterns" in text
        assert "title of (1, 48, 48, 4) f32 last" in text
        assert "title of forward pass" in text
        assert "(2, 48, 48, 16)" not in text
        assert text.count("<svg") == (2 if pages.figure(group) else 0)


def test_the_whole_grid_is_asked_for_by_full() -> None:
    assert len(kronsparse.suite("cuda", full=True).rows) > 5 * len(kronsparse.suite("cuda").rows)
    with pytest.raises(ParameterError, match="--full"):
        command.main(["solvers", "--full"])


def test_targets_are_met_on_their_machine_only() -> None:
    targets = kronsparse.case((6, 64, 64, 1), "f16", True, "cuda").targets
    assert [(target.kind, target.machine) for target in targets] == [("seconds", "H200")]
    assert math.isclose(targets[0].value, 13e-6)


def test_rows_as_comma_separated_values(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(kronsparse.BATCH, "cpu", 40)
    row = measured(kronsparse.case((3, 8, 12, 4), "f32", True, "cpu"), kronsparse.suite("cpu"))
    report.spreadsheet([row], tmp_path / "rows.csv")
    with (tmp_path / "rows.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["contestant"] for line in lines] == list(row["results"])
    assert float(lines[0]["median"]) == row["results"][run.OURS]["median"]
    assert {line["case"] for line in lines} == {"(3, 8, 12, 4) f32 last"}


def test_joules_are_those_of_a_call(monkeypatch) -> None:
    taken = [0]

    def sample(calls: int) -> float:
        taken[0] += 250 * calls  # millijoules
        return 0.0

    monkeypatch.setattr(energy, "_counter", lambda: lambda: 10_000 + taken[0])
    assert energy.joules(sample, 0.01, 0.5) == pytest.approx(0.25)
    assert taken[0] == 50 * 250
    monkeypatch.setattr(energy, "_counter", lambda: None)
    assert energy.joules(sample, 0.01, 0.5) is None
