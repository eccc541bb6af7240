"""Score tiles: where they are planned, what their kernels take, what is launched."""

from dataclasses import replace
from typing import Any

import pytest

from kernmantle.backends.cuda.emit import headers
from kernmantle.backends.cuda.gram_plan import Layout
from kernmantle.backends.cuda.row_reduce_emit import emit_rows
from kernmantle.backends.cuda.row_reduce_plan import CudaRowPlan, plan_rows
from kernmantle.backends.cuda.score_plan import SAMPLERS, SIDES, blocks_of
from kernmantle.compiler.nest import ROLES
from kernmantle.compiler.row_reduce import PRODUCT
from kernmantle.ir.definition import bind, define
from kernmantle.torch_ops import cuda_row_reduce_forms

from ..cuda.row_nests import COSTS, ENDS, LAPLACE, PRODUCTS, SQUARES, SUM, TABLED, WEIGHTED, RowCase, exp
from ..golden.compiled import compile_source
from .row_launches import noted, run, spills
from .test_cuda_compile import CARDS

HEADLINE = {
    "gauss_20": RowCase("gauss_20", SQUARES, PRODUCT, 100000, 100000, 20),
    "gauss_64_4": RowCase("gauss_64_4", SQUARES, PRODUCT, 100000, 100000, 64, 4),
    "gauss_100": RowCase("gauss_100", SQUARES, PRODUCT, 100000, 100000, 100),
    "weights_40": RowCase("weights_40", WEIGHTED, "max", 100000, 100000, 40),
    "logsumexp_64": RowCase("logsumexp_64", PRODUCTS, "logsumexp", 100000, 100000, 64),
    "costs_64": RowCase("costs_64", COSTS, "logsumexp", 100000, 100000, 64),
}
SPILLED = {"gauss_20": 230, "gauss_100": 530, "gauss_64_4": 400}
"""Bytes that the main kernel may spill, nearly all where a run of tiles begins; 64 elsewhere."""


def planned(case: RowCase, card: str = "sm_90", **changes: int) -> CudaRowPlan:
    sizes = case.sizes() | changes
    ports = range(len(case.rows.ports))
    strides = tuple(tuple(int(role in case.rows.ports[i].roles) for role in ROLES) for i in ports)
    return plan_rows(case.rows, sizes, CARDS[card], Layout(strides, (16,) * len(strides)))


@pytest.mark.parametrize("name", HEADLINE)
def test_compiles_without_serialised_products(name: str) -> None:
    plan = planned(HEADLINE[name])
    assert plan.form == "score"
    kernels = spills(emit_rows(plan), name)
    assert set(kernels) == {"kernmantle_split", "kernmantle_kernel", "kernmantle_join"}
    assert kernels["kernmantle_kernel"] <= SPILLED.get(name, 64)
    assert kernels["kernmantle_split"] <= 128
    assert kernels["kernmantle_join"] == 0


def test_the_fallback_compiles_with_its_gate() -> None:
    plan = planned(HEADLINE["gauss_20"]).fallback
    assert plan is not None
    assert plan.gated
    assert "uses_differences" in emit_rows(plan)
    assert compile_source(emit_rows(plan), "sm_90", headers(), "gated").binary[:4] == b"\x7fELF"
    assert "uses_differences" not in emit_rows(replace(plan, gated=False))


@pytest.mark.parametrize(
    ("changes", "there"),
    [
        ({}, True),
        ({"k": 128}, True),
        ({"k": 16}, True),
        ({"k": 15}, False),
        ({"k": 129}, False),
        ({"l": 4}, True),
        ({"l": 5}, False),
        ({"a": 2}, False),
        ({"m": 100}, False),
        ({"m": 2000, "n": 2000}, False),
    ],
)
def test_sizes_that_are_taken(changes: dict[str, int], there: bool) -> None:
    assert (planned(HEADLINE["gauss_20"], **changes).form == "score") is there


@pytest.mark.parametrize("card", sorted(set(CARDS) - {"sm_90"}))
def test_other_cards_take_differences(card: str) -> None:
    assert planned(HEADLINE["gauss_20"], card).form != "score"


@pytest.mark.parametrize(
    ("case", "there"),
    [
        (RowCase("ends", ENDS, PRODUCT, 40000, 40000, 20), False),
        (RowCase("products", PRODUCTS, "sum", 40000, 40000, 20), True),
        (RowCase("weights", WEIGHTED, "sum", 40000, 40000, 20), True),
        (RowCase("laplace", LAPLACE, PRODUCT, 40000, 40000, 20), False),
        (RowCase("two sums", SUM, PRODUCT, 40000, 40000, 20), False),
        (RowCase("tabled", TABLED, PRODUCT, 400, 400, 20), False),
        (RowCase("nearest", SQUARES, "smallest", 40000, 40000, 20, 3), False),
        (RowCase("doubles", SQUARES, PRODUCT, 40000, 40000, 20, 1, "f64"), False),
        (RowCase("halves", SQUARES, PRODUCT, 40000, 40000, 20, 1, "f16"), False),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_programs_that_are_taken(case: RowCase, there: bool) -> None:
    assert (planned(case, m=40000, n=40000).form == "score") is there


def test_precise_entries_are_taken_as_they_are_written() -> None:
    case = HEADLINE["gauss_20"]
    rows = replace(case.rows, matrix=replace(case.rows.matrix, precision="ieee"))
    assert plan_rows(rows, case.sizes(), CARDS["sm_90"], Layout(((1,) * 7,) * 5, (16,) * 5)).form != "score"


@pytest.mark.parametrize(
    ("epilogue", "there"),
    [
        (lambda s, h, v: v - s / h, True),
        (lambda s, h, v: -(h * s) * 3 + v * v, True),
        (lambda s, h, v: s * h - s, True),
        (lambda s, h, v: s, True),
        (lambda s, h, v: v * s, False),
        (lambda s, h, v: h / s + v, False),
        (lambda s, h, v: s * s, False),
        (lambda s, h, v: v, False),
        (lambda s, h, v: exp(-s / h), False),
        (lambda s, h, v: v - s // 2, False),
    ],
)
def test_linear_entries_are_recognised(epilogue: Any, there: bool) -> None:
    define_as = define("mk,nk,v:n->mn", lambda a, b: (a - b) ** 2, "sum", epilogue)
    case = RowCase("linear", bind(define_as, frozenset()).program, "logsumexp", 40000, 40000, 40)
    products = bind(define("mk,nk,v:n->mn", lambda a, b: a * b, "sum", epilogue), frozenset()).program
    assert planned(case).linear is planned(replace(case, program=products)).linear is there
    assert not planned(replace(case, how="sum")).linear
    assert f"LINEAR = {str(there).lower()};" in emit_rows(planned(case))


def test_linear_entries_of_short_points_are_made_as_others() -> None:
    assert [planned(HEADLINE["costs_64"], k=k).linear for k in (16, 20, 24, 37, 128)] == [
        False,
        False,
        True,
        True,
        True,
    ]


def test_entries_of_rows_are_not_linear_alone() -> None:
    program = bind(define("mk,nk,u:m->mn", lambda a, b: (a - b) ** 2, "sum", lambda s, u: u - s), frozenset()).program
    assert not planned(RowCase("rows", program, "logsumexp", 40000, 40000, 40)).linear


def test_the_plan_says_what_it_does() -> None:
    assert "3 products of f16 halves, close pairs by differences" in str(planned(HEADLINE["gauss_20"]))
    assert "differences" not in str(planned(HEADLINE["logsumexp_64"]))


@pytest.mark.parametrize("m", [192, 193, 384, 385, 1000])
@pytest.mark.parametrize("k", [16, 20, 22, 37, 50, 64, 96, 100])
def test_memory_holds_every_tile_that_is_read(m: int, k: int) -> None:
    case, n, width = HEADLINE["gauss_64_4"], 100001, 3
    plan, sizes = planned(case, m=m, n=n, k=k, l=width), case.sizes() | {"m": m, "n": n, "k": k, "l": width}
    layout, (down, across) = plan.memory(sizes), blocks_of(plan.tile, sizes)
    assert down * 128 >= -(-m // 192) * 192
    assert (across - 1) * 128 < n <= across * 128
    ends = [*layout.offsets[1:], layout.size]
    wanted = [4 * (4 + SAMPLERS), down * 512 * plan.tile.depth, across * 512 * plan.tile.depth, down * 1024]
    wanted.append(across * 4 * (128 * 5 + 4))
    for first, end, size in zip(layout.offsets, ends, wanted, strict=True):
        assert first % 128 == 0
        assert end - first >= size
    assert plan.tile.depth >= k
    steps, packed = 16 * plan.tile.unroll, k in (20, 37, 50)
    assert (3 * k if packed else k) <= steps <= (2 if packed else 1) * plan.tile.depth
    assert plan.shared >= plan.tile.stages * 512 * plan.tile.depth + SIDES * 4 * (128 * 5 + 4)


def test_launches_both_plans_with_the_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    made = noted(monkeypatch, cuda_row_reduce_forms, ("split", "scores", "join scores"))
    case = RowCase("launches", SQUARES, PRODUCT, 5000, 6000, 20)
    run(case, (7.0, -0.02))
    assert [kernel for kernel, _, _ in made] == ["split", "scores", "join scores", "main", "join"]
    plan = planned(case)
    split, scores, join, main, _ = made
    counts = split[2][-5]
    assert split[1] == SAMPLERS + sum(blocks_of(plan.tile, case.sizes()))
    assert split[2] == scores[2] == join[2][:-3]
    assert main[2][-1] == counts
    assert scores[1] == join[2][-3] == join[1] + 1 == 132
