"""The suite of random structured products: its cases are fixed and fit, its checks fail where results are wrong."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch

from benchmarks import pages, random_structured, store, structured_random, structured_tables
from benchmarks.__main__ import main
from benchmarks.random_structured import KronCase, SparseCase
from benchmarks.run import OURS


def test_the_cases_are_those_of_the_seed() -> None:
    found = random_structured.cases("cuda")
    assert [case.name for case in found] == [case.name for case in random_structured.cases("cuda")]
    drawn = found[len(found) - random_structured.SPARSE - random_structured.KRON :]
    sparse = [case for case in drawn if isinstance(case, SparseCase)]
    kron = [case for case in drawn if isinstance(case, KronCase)]
    assert (len(sparse), len(kron)) == (300, 200)
    assert max(sum(case.ends) for case in found) <= 2**29
    assert {case.dtype for case in drawn} == {"f32", "bf16", "f16"}
    assert {case.last for case in sparse} == {True, False}
    assert {len(case.sizes) for case in kron} == set(range(2, 9))
    odd = [case for case in sparse if case.pattern[1] % 16 and case.pattern[2] % 16]
    assert len(odd) > 0.8 * len(sparse)
    assert any(not all(case.wanted) for case in kron)
    assert any(p != q for case in kron for p, q in case.sizes)


CASES = (
    SparseCase((2, 3, 5, 4), 7, "f32", False), SparseCase((2, 5, 3, 1), 6, "f32", True),
    KronCase(((3, 4), (5, 2)), 6, "f32", (True, False, True)),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_contestant_gives_the_same(case) -> None:
    given = case.arrays("cpu")
    exact = case.exact({name: value.double() for name, value in given.items()})
    for name, call in case.forward(given).items():
        found = call().double().reshape(-1, call().shape[-1])
        found = found if found.shape == exact.shape else found.T
        torch.testing.assert_close(found, exact, rtol=1e-4, atol=1e-5, msg=name)
    for whole in (False, True):
        calls = case.backward(given, whole)
        found = [call()[0] for call in calls.values()]
        assert len({grad.shape for grad in found}) == 1
        if isinstance(case, SparseCase):
            assert {grad.stride() for grad in found} == {given["x"].stride()}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_rows_say_what_was_measured(case, monkeypatch) -> None:
    rates = {"fma.f32": 1e10, "bytes": 1e10}
    rows = structured_random.measure(case, "cpu", {"machine": {}}, rates)
    assert [row["side"] for row in rows] == ["forward", "backward", "step"]
    for row in rows:
        assert row["status"] == "ok"
        assert row["results"][OURS]["median"] > 0
        assert row["floor"]["seconds"] > 0
        assert 0 < structured_random.ratio(row) < math.inf
    assert rows[0]["route"]
    text = structured_random.summary(rows)
    assert "3 rows, 0 not ok" in text
    assert case.name in text
    right = case.ours
    monkeypatch.setattr(type(case), "ours", lambda self, given: right(given) * 1.001)
    assert structured_random.measure(case, "cpu", {"machine": {}}, rates)[0]["status"].startswith("wrong: out")


def test_floors_count_what_each_side_reads_and_writes_of_x_and_weights() -> None:
    case = SparseCase((2, 3, 5, 7), 11, "f32", False)
    x, out, weights = 11 * 2 * 5 * 7, 11 * 2 * 3 * 7, 2 * 3 * 5 * 7
    found = [structured_random._work(case, side, "cuda").bytes / 4 for side in structured_random.SIDES]
    assert found == [x + out + weights, 2 * x + out + 2 * weights, 3 * x + 2 * out + 3 * weights]


def test_a_prefix_is_measured_until_the_time_is_over(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(random_structured, "cases", lambda kind: list(CASES))
    monkeypatch.setattr(structured_random.calibrate, "cpu_rates", lambda *_: {"fma.f32": 1e10, "bytes": 1e10})
    path = tmp_path / "rows.jsonl"
    assert structured_random.run(path, 0.0, device="cpu") == []
    found = structured_random.run(path, 60.0, [CASES[0].name], "cpu")
    assert [row["case"] for row in found] == [f"{CASES[0].name} {side}" for side in structured_random.SIDES]
    assert len(path.read_text().splitlines()) == 3
    found = structured_random.run(path, 60.0, device="cpu", sides=("forward",), part=(2, 2), only="kronsparse")
    assert [row["case"] for row in found] == [f"{CASES[1].name} forward"]


def _row(rows: int, dtype: str, ours: float, other: float, floor: float) -> dict:
    results = {OURS: {"median": ours}, "bmm": {"median": other}}
    return {
        "case": f"{rows} {dtype}", "kind": "kronsparse", "side": "forward", "dtype": dtype, "rows": rows,
        "status": "ok", "results": results, "floor": {"seconds": floor},
    }  # fmt: skip


def test_the_summary_stands_beside_what_is_wanted(tmp_path, capsys) -> None:
    rows = [
        _row(25088, "f32", 4e-5, 1e-4, 2e-5), _row(25088, "bf16", 5e-5, 1e-4, 2e-5), _row(7, "f16", 2e-5, 1.8e-5, 1e-6),
        _row(25088, "f16", 1e-5, 3e-5, 1e-6),
    ]  # fmt: skip
    text = structured_random.summary(rows)
    wanted = next(line for line in text.splitlines() if "wanted" in line)
    assert "0.90 times as fast as the best other in the worst [0.95]" in wanted
    assert "2.50 in the median of 1 of float32 at 25088 rows [3.0]" in wanted
    assert "2.50 in the median of 2 of halves at 25088 rows [2.5]" in wanted
    assert "times a floor of 10 us or more 2.25 [2.0] in the median, 2.5 [4.0] in the worst" in wanted
    path = tmp_path / "rows.jsonl"
    for row in rows:
        store.append(path, row)
    assert main(["structured-random", "--summary", "--output", str(path)]) == 0
    assert wanted in capsys.readouterr().out


def test_pages_list_what_is_slower_and_draw_the_rest(tmp_path) -> None:
    path = tmp_path / "rows.jsonl"
    stamp = {"machine": {"gpu": {"model": "Abacus 9"}, "cpu": {}}, "versions": {}, "commit": "def"}
    made = {"suite": "structured-random", "definition": "", "targets": [], "date": "2026-01-02", "status": "ok"}
    made |= {"stamp": stamp, "kind": "kron", "dtype": "f32", "rows": 3}
    for name, others in (("quick", {"shuffle": 3.0}), ("slow", {"shuffle": 0.5, "weights as given": 0.1})):
        for side in structured_random.SIDES:
            times = {OURS: 1.0} | others
            results = {contestant: {"median": seconds} for contestant, seconds in times.items()}
            row = made | {"case": f"{name} {side}", "title": f"{name} {side}", "side": side, "results": results}
            store.append(path, row)
    text = pages.page([path])
    assert (
        "kron step f32: 2 rows, 1.75 times as fast as the best other in the median, 0.50 in the worst, 1 behind" in text
    )
    assert "| slow step | 1 s | 500 ms | 100 ms | 0.5 x |  |" in text
    assert "| quick step" not in text
    assert text.count("<svg") in (0, 2)


@pytest.mark.parametrize("page", structured_tables.TABLES)
def test_pages_have_their_tables_from_the_committed_rows(page) -> None:
    root = Path(__file__).parents[2]
    text = (root / "docs" / f"{page}.md").read_text(encoding="utf-8")
    assert all(text.count(f"<!-- {name} -->") == 1 for name in structured_tables.TABLES[page])
    written = structured_tables.insert(text, page, root / "benchmarks" / "results")
    assert "<!--" not in written
    tables = [lines for lines in re.findall(r"(?:^\|.*\n)+", written, re.M) if "H200" in lines or "float32" in lines]
    assert len(tables) >= len(structured_tables.TABLES[page])
    for table in tables:
        assert len({re.sub(r"[^|]", "", line) for line in table.splitlines()}) == 1


def test_the_newest_row_of_a_case_is_shown(tmp_path) -> None:
    for name, date, seconds in (("layers", "2026-02-03", 1.0), ("kronsparse", "2026-02-02", 2.0)):
        results = {OURS: {"median": seconds}, "dense": {"median": 3.0}}
        row = {"case": "training step 16 f32", "date": date, "status": "ok", "results": results}
        store.append(tmp_path / f"h200-{name}.jsonl", row)
    assert "| H200, float32, training step |  | 3.00 |  |" in structured_tables.layers(tmp_path)


def test_the_readme_compares_structured_products_with_algorithms_of_torch() -> None:
    text = structured_tables.readme(Path(__file__).parents[2] / "benchmarks" / "results")
    assert text in (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    (line,) = [line for line in text.splitlines() if "all gradients" in line]
    assert float(line.split("|")[-2].removesuffix("x ")) > 1  # the gradient of x alone is ours, and no rival
