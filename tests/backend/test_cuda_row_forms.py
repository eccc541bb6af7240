"""Row reductions on Hopper's tensor cores: where each form is planned, what its kernels spill, and fallbacks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kernmantle.backends.cuda.emit import headers
from kernmantle.backends.cuda.row_reduce_emit import ENTRY, JOIN, SCALE, SELECT, SPLIT, emit_rows
from kernmantle.backends.cuda.row_reduce_plan import plan_rows
from kernmantle.compiler.nest import Layout
from kernmantle.compiler.row_reduce import PRODUCT
from kernmantle.ir.program import Program

from ..cuda.row_nests import (
    COSTS,
    ENDS,
    LAPLACE,
    NEAREST,
    PRODUCTS,
    ROOTS,
    SQUARES,
    SUM,
    TABLED,
    WEIGHTED,
    RowCase,
)
from ..golden.compiled import compile_source
from .row_launches import planned, spills
from .test_cuda_compile import CARDS

LARGE = 100000
HEADLINE = {
    "score": [
        RowCase("gauss_20", SQUARES, PRODUCT, LARGE, LARGE, 20),
        RowCase("gauss_64_4", SQUARES, PRODUCT, LARGE, LARGE, 64, 4),
        RowCase("gauss_100", SQUARES, PRODUCT, LARGE, LARGE, 100),
        RowCase("weights_40", WEIGHTED, "max", LARGE, LARGE, 40),
        RowCase("logsumexp_64", PRODUCTS, "logsumexp", LARGE, LARGE, 64),
        RowCase("costs_64", COSTS, "logsumexp", LARGE, LARGE, 64),
    ],
    "columns": [
        RowCase("gauss_64_64", SQUARES, PRODUCT, LARGE, LARGE, 64, 64),
        RowCase("gauss_20_16", SQUARES, PRODUCT, LARGE, LARGE, 20, 16),
        RowCase("gauss_64_128", SQUARES, PRODUCT, LARGE, LARGE, 64, 128),
        RowCase("products_100_32", PRODUCTS, PRODUCT, LARGE, LARGE, 100, 32),
    ],
    "deep": [
        RowCase("gauss_1024_16", SQUARES, PRODUCT, 30000, 30000, 1024, 16),
        RowCase("products_300_96", PRODUCTS, PRODUCT, 30000, 30000, 300, 96),
    ],
    "wide": [
        RowCase("gauss_3_64", SQUARES, PRODUCT, LARGE, LARGE, 3, 64),
        RowCase("laplace_8_16", LAPLACE, PRODUCT, LARGE, LARGE, 8, 16),
    ],
    "select": [
        RowCase("nearest_64", ROOTS, "smallest", 20000, LARGE, 64, 10),
        RowCase("nearest_128", NEAREST, "smallest", 16384, LARGE, 128, 32),
        RowCase("nearest_3", NEAREST, "smallest", LARGE, LARGE, 3, 1),
        RowCase("weighted_50", WEIGHTED, "largest", 20000, LARGE, 50, 10),
        RowCase("nearest_256", ROOTS, "smallest", 20000, LARGE, 256, 10),
        RowCase("nearest_784", NEAREST, "smallest", 20000, LARGE, 784, 32),
    ],
}
"""Forms of row reductions and what is recorded of each."""
CASES = {case.name: case for cases in HEADLINE.values() for case in cases}
FIRST = {form: cases[0] for form, cases in HEADLINE.items() if form != "deep"}

SPILLED = {
    "score": {ENTRY: 64, SPLIT: 128, JOIN: 0},
    "columns": {ENTRY: 64, SCALE: 0, SPLIT: 128, JOIN: 0},
    "deep": {ENTRY: 0, SCALE: 0, SPLIT: 0, JOIN: 0},
    "wide": {ENTRY: 0, SCALE: 0, SPLIT: 0, JOIN: 0},
    "select": {ENTRY: 0, SELECT: 96, SPLIT: 4},
}
"""Bytes that each kernel of a form may spill; so many may three blocks of a multiprocessor that select."""
SPILLED_BY = {
    "gauss_20": {ENTRY: 256}, "gauss_100": {ENTRY: 530}, "gauss_64_4": {ENTRY: 400}, "gauss_64_64": {ENTRY: 72},
    "gauss_64_128": {ENTRY: 0}, "products_300_96": {ENTRY: 256}, "nearest_128": {SELECT: 0},
    "weighted_50": {SELECT: 216}, "nearest_256": {SELECT: 104}, "nearest_784": {ENTRY: 8, SELECT: 104},
}  # fmt: skip
"""The same of single cases, nearly all of it where a run of tiles begins, or outside of the loop over them."""

SIZES = {
    "score": (
        [{}, {"k": 128}, {"k": 16}, {"l": 4}],
        [{"k": 15}, {"k": 129}, {"l": 5}, {"a": 2}, {"m": 100}, {"m": 2000, "n": 2000}],
    ),
    "columns": (
        [{}, {"k": 16}, {"k": 128}, {"l": 5}, {"l": 256}, {"m": 1000, "n": 100000}],
        [{"k": 15}, {"k": 4097}, {"l": 4}, {"l": 257}, {"a": 2}, {"m": 100}, {"m": 2000, "n": 2000}],
    ),
    "wide": (
        [{}, {"k": 1}, {"k": 8}, {"l": 9}, {"m": 7000, "n": 7000}, {"m": 30000, "n": 30000, "l": 12}],
        [
            {"k": 9},
            {"l": 8},
            {"l": 65},
            {"a": 2},
            {"m": 100},
            {"m": 4096, "n": 4096},
            {"m": 20000, "n": 20000, "l": 12},
        ],
    ),
    "select": (
        [{}, {"k": 128}, {"k": 2}, {"k": 129}, {"k": 4096}, {"l": 32}, {"m": 16}, {"m": 210, "n": 2500}],
        [
            {"k": 1},
            {"k": 4097},
            {"l": 33},
            {"a": 2},
            {"m": 15},
            {"n": 2000},
            {"m": 200, "n": 2500},
            {"m": 64, "n": 1 << 31},
        ],
    ),
}
"""Changes of the sizes of a form's first case with which it is taken, and with which it is not."""

PROGRAMS = {
    "score": (
        [(PRODUCTS, "sum", "f32"), (WEIGHTED, "sum", "f32")],
        [
            (ENDS, PRODUCT, "f32"), (LAPLACE, PRODUCT, "f32"), (SUM, PRODUCT, "f32"), (TABLED, PRODUCT, "f32"),
            (SQUARES, "smallest", "f32"), (SQUARES, PRODUCT, "f64"), (SQUARES, PRODUCT, "f16"),
        ],
    ),
    "columns": (
        [(PRODUCTS, PRODUCT, "f32"), (WEIGHTED, PRODUCT, "f32")],
        [
            (LAPLACE, PRODUCT, "f32"), (SUM, PRODUCT, "f32"), (TABLED, PRODUCT, "f32"), (SQUARES, "sum", "f32"),
            (SQUARES, PRODUCT, "f16"), (SQUARES, PRODUCT, "f64"),
        ],
    ),
    "wide": (
        [(LAPLACE, PRODUCT, "f32"), (PRODUCTS, PRODUCT, "f32"), (SQUARES, PRODUCT, "f16")],
        [(SQUARES, PRODUCT, "f64"), (SQUARES, "sum", "f32"), (WEIGHTED, PRODUCT, "f32"), (TABLED, PRODUCT, "f32")],
    ),
    "select": (
        [
            (NEAREST, "smallest", "f32"), (ROOTS, "smallest", "f32"), (SQUARES, "largest", "f32"),
            (WEIGHTED, "largest", "f32"), (NEAREST, "smallest", "f16"),
        ],
        [
            (NEAREST, "largest", "f32"), (ROOTS, "largest", "f32"), (NEAREST, "smallest", "f64"),
            (LAPLACE, "largest", "f32"), (PRODUCTS, "largest", "f32"), (TABLED, "largest", "f32"),
        ],
    ),
}  # fmt: skip
"""Programs, reductions and types of which a form is taken, and of which it is not."""
SHAPES = {"score": (20, 3), "columns": (40, 20), "wide": (3, 20), "select": (20, 5)}
"""Numbers of a point, and columns of v or columns that are selected, of these."""


@pytest.mark.parametrize(("form", "name"), [(form, case.name) for form, cases in HEADLINE.items() for case in cases])
def test_compiles_without_serialised_products(form: str, name: str) -> None:
    plan = planned(CASES[name])
    assert plan.form == form
    kernels, most = spills(emit_rows(plan), name), SPILLED[form] | SPILLED_BY.get(name, {})
    assert kernels.keys() == most.keys()
    assert {kernel: spilled for kernel, spilled in kernels.items() if spilled > most[kernel]} == {}


def rows_of(table: dict[str, tuple[list[Any], list[Any]]]) -> list[tuple[str, Any, bool]]:
    """Return form, row of the table, and whether the form is taken."""
    return [(form, row, not i) for form, both in table.items() for i, rows in enumerate(both) for row in rows]


@pytest.mark.parametrize(("form", "changes", "there"), rows_of(SIZES))
def test_sizes_that_are_taken(form: str, changes: dict[str, int], there: bool) -> None:
    assert (planned(FIRST[form], **changes).form == form) is there


@pytest.mark.parametrize(("form", "row", "there"), rows_of(PROGRAMS))
def test_programs_that_are_taken(form: str, row: tuple[Program, str, str], there: bool) -> None:
    program, how, dtype = row
    case = RowCase("programs", program, how, 100, 100, *SHAPES[form], dtype)
    assert (planned(case, m=40000, n=40000).form == form) is there


def test_points_of_many_numbers_are_taken_in_pieces() -> None:
    assert planned(FIRST["columns"], k=4096).form == "deep"


@pytest.mark.parametrize("card", sorted(set(CARDS) - {"sm_90"}))
@pytest.mark.parametrize("form", FIRST)
def test_other_cards_take_differences(form: str, card: str) -> None:
    assert planned(FIRST[form], card).form not in HEADLINE


@pytest.mark.parametrize("form", FIRST)
def test_precise_entries_are_taken_as_they_are_written(form: str) -> None:
    case = FIRST[form]
    rows = replace(case.rows, matrix=replace(case.rows.matrix, precision="ieee"))
    assert plan_rows(rows, case.sizes(), CARDS["sm_90"], Layout(((1,) * 7,) * 5, (16,) * 5)).form not in HEADLINE


@pytest.mark.parametrize(("form", "gate"), [("score", "uses_differences"), ("select", "selects_by_differences")])
def test_the_fallback_compiles_with_its_gate(form: str, gate: str) -> None:
    plan = planned(FIRST[form]).fallback
    assert plan is not None
    assert plan.gated
    assert gate in emit_rows(plan)
    assert compile_source(emit_rows(plan), "sm_90", headers(), "gated").binary[:4] == b"\x7fELF"
    assert gate not in emit_rows(replace(plan, gated=False))


@pytest.mark.parametrize(("name", "text"), [
    ("gauss_20", "3 products of f16 halves, close pairs by differences, tile where"),
    ("gauss_64_64", "close pairs by differences, times v by 3 more, pipelined where these do not"),
    ("nearest_64", "nearest by one product of f16 halves, exact by differences, tile where"),
    ("gauss_3_64", "times v by 3 products of f16 halves, thin where"),
])  # fmt: skip
def test_the_plan_says_what_it_does(name: str, text: str) -> None:
    assert text in str(planned(CASES[name]))


@pytest.mark.parametrize("name", ["logsumexp_64", "products_100_32"])
def test_products_have_no_close_pairs(name: str) -> None:
    assert "differences" not in str(planned(CASES[name]))
