"""Softmax-weighted sums in one pass: where they are planned, what their kernels take, for each generation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from kernmantle.backends.cuda.row_reduce_emit import ENTRY, SPLIT
from kernmantle.backends.cuda.row_reduce_plan import CudaRowPlan, plan_softmax
from kernmantle.backends.cuda.softmax_emit import COLUMNS, VALUES, emit_softmax, main_kernels
from kernmantle.backends.cuda.softmax_plan import blocks_of
from kernmantle.compiler.nest import ROLES, SIZES, Layout
from kernmantle.compiler.row_reduce import RowNest
from kernmantle.compiler.softmax import DUALS, GRADIENTS, TANGENTS, Weighting, lower_softmax, slope
from kernmantle.ir.definition import bind, define
from kernmantle.ir.functions import FUNCTIONS
from kernmantle.ir.node import var, variables
from kernmantle.ir.ops import evaluate
from kernmantle.ir.reductions import SOFTMAX
from kernmantle.torch_ops import cuda_softmax

from ..cases import pairwise
from .row_launches import spills
from .test_cuda_compile import CARDS

exp, tanh = FUNCTIONS["exp"], FUNCTIONS["tanh"]
LOGITS: dict[str, Any] = {
    "product": ("mk,nk->mn", lambda a, b: a * b, lambda s, h: s * h),
    "capped": ("mk,nk->mn", lambda a, b: a * b, lambda s, h: 20 * tanh(s * h / 20)),
    "biased": ("mk,nk,t:n->mn", lambda a, b: a * b, lambda s, t, h: s * h + t),
    "sloped": ("mk,nk,u:m,t:n->mn", lambda a, b: a * b, lambda s, u, t, h: s * h - abs(u - t)),
    "negative": ("mk,nk->mn", lambda a, b: -2 * (a - b) ** 2, lambda s, h: s * h),
    "squares": ("mk,nk->mn", lambda a, b: (a - b) ** 2, lambda s, h: -s * h),
    "table": ("mk,nk,t:mn->mn", lambda a, b: a * b, lambda s, t, h: s * h + t),
    "weighted": ("mk,nk,w:k->mn", lambda a, b, w: a * b * w, lambda s, h: s * h),
}


def nest(name: str, dtype: str = "bf16", causal: bool = False, how: str = SOFTMAX) -> RowNest:
    equation, mapped, outputs = LOGITS[name]
    definition = define(equation, mapped, "sum", outputs)
    program = bind(definition, frozenset()).program
    return lower_softmax(Weighting(program, causal), [dtype] * len(program.tensors), dtype, how).rows


def planned(rows: RowNest, card: str = "sm_90", **changes: int) -> CudaRowPlan | None:
    sizes = dict.fromkeys(map(str, SIZES), 1) | {"m": 8192, "n": 8192, "k": 64, "l": 64, "c": 32} | changes
    strides = []
    for buffer in rows.buffers:
        step, own = 1, {}
        for role in reversed(f"c{buffer.roles}"):
            own[role], step = step, step * sizes[role]
        strides.append(tuple(own.get(role, 0) for role in ROLES))
    return plan_softmax(rows, sizes, CARDS[card], Layout(tuple(strides), (16,) * len(strides)))


HOW = [SOFTMAX, GRADIENTS, TANGENTS]
"""Passes that there are of all scores and types; sums and tangents at once are of some."""
SPILLED = {"capped": 192, "table": 64, "squares": 8}
"""Bytes that gradients by columns may spill; nothing else does."""


@pytest.mark.parametrize(
    ("name", "dtype", "how"),
    [
        *pairwise(["product", "capped", "table", "squares"], ["bf16", "f32"], HOW), ("product", "f16", GRADIENTS),
        *((name, dtype, DUALS) for name, dtype in [("product", "f16"), ("product", "bf16"), ("sloped", "bf16")]),
    ],
)  # fmt: skip
def test_compiles_without_serialised_products(name: str, dtype: str, how: str) -> None:
    plan = planned(nest(name, dtype, how=how))
    assert plan is not None
    assert plan.form == "softmax"
    kernels = spills(emit_softmax(plan), name)
    assert set(kernels) == {ENTRY, SPLIT, *([COLUMNS] if how == GRADIENTS else [])}
    assert kernels.pop(COLUMNS, 0) <= SPILLED.get(name, 0)
    assert set(kernels.values()) == {0}


WIDTHS = [(32, 32, True), (80, 64, False), (128, 128, True), (1, 5, False)]
NARROW = [(DUALS, "f16", WIDTHS[0]), (DUALS, "f16", WIDTHS[3])]


@pytest.mark.parametrize(("how", "dtype", "widths"), [*pairwise(HOW, ["bf16", "f32"], WIDTHS), *NARROW])
def test_all_widths_compile(how: str, dtype: str, widths: tuple[int, int, bool]) -> None:
    k, width, causal = widths
    plan = planned(nest("sloped", dtype, causal, how), k=k, l=width)
    assert plan is not None
    assert spills(emit_softmax(plan), "width")


@pytest.mark.parametrize(
    ("name", "dtype", "changes", "there"),
    [
        ("product", "bf16", {}, True),
        ("product", "bf16", {"k": 128, "l": 128}, True),
        ("product", "bf16", {"k": 129}, False),
        ("product", "bf16", {"l": 129}, False),
        ("product", "bf16", {"m": 100, "n": 100, "c": 1}, False),
        ("product", "bf16", {"m": 1, "n": 1 << 20, "c": 1}, True),
        ("product", "f64", {}, False),
        ("squares", "f32", {}, True),
        ("negative", "f32", {}, True),
        ("table", "f32", {}, True),
        ("weighted", "f32", {}, False),
    ],
)
def test_what_is_taken(name: str, dtype: str, changes: dict[str, int], there: bool) -> None:
    assert (planned(nest(name, dtype), **changes) is not None) is there


@pytest.mark.parametrize(
    ("name", "dtype", "changes", "there"),
    [
        ("product", "bf16", {}, True),
        ("sloped", "f16", {"k": 3, "l": 5}, True),
        ("product", "bf16", {"k": 65}, False),
        ("product", "bf16", {"l": 65}, False),
        ("product", "f32", {}, False),
        ("capped", "bf16", {}, False),
        ("table", "bf16", {}, False),
        ("squares", "bf16", {}, False),
    ],
)
def test_sums_and_tangents_at_once_are_of_what_registers_hold(
    name: str, dtype: str, changes: dict[str, int], there: bool
) -> None:
    assert (planned(nest(name, dtype, how=DUALS), **changes) is not None) is there
    assert planned(nest(name, dtype, how=TANGENTS), **changes) is not None


@pytest.mark.parametrize(("dtype", "k", "width", "kernels"), [
    ("bf16", 64, 64, 2), ("bf16", 65, 64, 2), ("bf16", 64, 65, 2), ("bf16", 65, 65, 3), ("f32", 64, 64, 2),
    ("f32", 64, 65, 3), ("f32", 128, 128, 3),
])  # fmt: skip
def test_gradients_by_wide_columns_are_made_one_after_the_other(dtype: str, k: int, width: int, kernels: int) -> None:
    plan = planned(nest("product", dtype, how=GRADIENTS), k=k, l=width)
    assert plan is not None
    assert main_kernels(plan) == (ENTRY, COLUMNS, VALUES)[:kernels]
    assert plan.tile.m == (64 if dtype == "f32" and kernels == 3 else 128)


@pytest.mark.parametrize("card", sorted(set(CARDS) - {"sm_90"}))
@pytest.mark.parametrize("how", [*HOW, DUALS])
def test_other_cards_take_two_passes(card: str, how: str) -> None:
    assert planned(nest("product", how=how), card) is None


@pytest.mark.parametrize("how", [*HOW, DUALS])
@pytest.mark.parametrize("name", ["product", "biased", "sloped", "squares"])
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_what_kernels_hand_to_each_other_does_not_overlap(name: str, dtype: str, how: str) -> None:
    plan = planned(nest(name, dtype, how=how))
    if how == DUALS and (dtype == "f32" or name == "squares"):
        assert plan is None
        return
    assert plan is not None
    sizes = dict.fromkeys(map(str, SIZES), 1) | {"m": 1000, "n": 777, "k": 40, "l": 50, "c": 3}
    layout = plan.memory(sizes)
    down, across = blocks_of(plan.rows, plan.tile, sizes)
    planes, squares = 1 + (dtype == "f32"), name == "squares"
    row_ends, column_ends = (name == "sloped") + squares, (name in ("biased", "sloped")) + squares
    row, columns, units = 64 * 64 * 2 * planes, plan.tile.n * 64 * 2 * planes, 64 * (planes - 1)
    rest = 4 * (planes - 1)
    wanted = {
        SOFTMAX: [
            down * row, across * columns, across * columns, down * 4 * (1 + 67 * squares),
            across * 4 * (plan.tile.n * column_ends + units + rest),
        ],
        GRADIENTS: [
            down * row, down * row, across * row, across * row, down * 4 * (64 * (2 + row_ends) + 4),
            across * 4 * (64 * column_ends + 4),
        ],
        TANGENTS: [
            2 * down * row, 2 * across * row, 2 * across * row, down * 4 * (64 * (1 + row_ends + squares) + 4),
            across * 4 * (64 * (column_ends + squares) + 2 * units + rest),
        ],
    }[TANGENTS if how == DUALS else how]  # fmt: skip
    ends = [*layout.offsets[1:], layout.size]
    assert len(layout.offsets) == len(wanted)
    for begin, end, size in zip(layout.offsets, ends, wanted, strict=True):
        assert begin % 1024 == 0
        assert 3 * size <= end - begin < 3 * size + 1024


@pytest.mark.parametrize("name", ["product", "capped", "biased"])
def test_the_slope_is_that_of_entries(name: str) -> None:
    rows = nest(name, "f32", how=GRADIENTS)
    assert rows.how == GRADIENTS
    names = [*variables(rows.matrix.outputs), "s0"]
    values = {each: 0.3 + 0.1 * i for i, each in enumerate(dict.fromkeys(names))}
    step = 1e-6
    low, high = (evaluate(rows.matrix.outputs, values | {"s0": values["s0"] + move})[0] for move in (-step, step))
    assert evaluate([slope(rows)], values)[0] == pytest.approx((high - low) / (2 * step), rel=1e-6)
    assert (var("s0").name in variables([slope(rows)])) is (name == "capped")


def test_a_factor_of_all_terms_is_one_of_the_sum() -> None:
    rows = nest("negative", "f32")
    own = len(rows.matrix.numbers) - len(rows.folded)
    values = dict.fromkeys(rows.matrix.numbers[:own], 0.3)
    values |= {"s0": 0.7} | dict(zip(rows.matrix.numbers[own:], evaluate(rows.folded, values), strict=True))
    assert evaluate(rows.matrix.outputs, values)[0] == pytest.approx(0.7 * 0.3**2 / np.log(2))  # both numbers
    assert evaluate(rows.matrix.map, {"x0": 5.0, "x1": 2.0})[0] == 9.0
    weighted = nest("weighted", "f32")
    assert evaluate(weighted.matrix.map, {"x0": 5.0, "x1": 2.0, "x2": 3.0})[0] == 30.0


@pytest.mark.parametrize(("how", "k"), [*((how, 40) for how in [*HOW, DUALS]), (GRADIENTS, 100)])
def test_what_is_launched(how: str, k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[Any, int, tuple[Any, ...]]] = []
    empty = torch.empty
    names = ("split", "rows", "columns", "values")[: 2 + (how == GRADIENTS) * (1 + (k > 64))]
    monkeypatch.setattr(cuda_softmax, "index_of", lambda device: 0)
    monkeypatch.setattr(cuda_softmax, "limits", lambda index: CARDS["sm_90"])
    monkeypatch.setattr(cuda_softmax, "_load", lambda chosen: names)
    monkeypatch.setattr(cuda_softmax.torch, "empty", lambda size, dtype, device: empty(size, dtype=dtype))
    monkeypatch.setattr(
        cuda_softmax, "start", lambda kernel, index, blocks, given: made.append((kernel, blocks, given))
    )
    rows = nest("product", "bf16" if how == DUALS else "f32", how=how)
    sizes = dict.fromkeys(map(str, SIZES), 1) | {"m": 1000, "n": 777, "k": k, "l": 50, "c": 3}
    integers = np.array(
        [*(sizes[role] for role in SIZES), *(7 for _ in range(len(rows.buffers) * len(ROLES)))], np.int64
    )
    device = torch.device("cuda")
    launcher = cuda_softmax.TARGET().prepare(rows, integers, [16] * len(rows.buffers), device)
    assert launcher is not None
    launcher.run(range(1, len(rows.buffers) + 1), (0.5, 0.25))
    down, alone = 16, k > 64  # pieces of 64 rows; whether one warpgroup consumes
    of_gradients = 13 if alone else 14  # pieces in pairs
    across = {SOFTMAX: 7, GRADIENTS: of_gradients, TANGENTS: 13, DUALS: 13}[how]  # tiles of 128 columns, pieces of 64
    main = [3 * down, 3 * across, 3 * across] if alone else [3 * 8, 3 * 7]
    grids = [3 * (down + across), *(min(size, CARDS["sm_90"].sm_count) for size in main)]
    assert [(kernel, blocks) for kernel, blocks, _ in made] == [*zip(names, grids, strict=False)]
    for _, _, given in made:
        assert given == made[0][2]
    assert 3 not in made[0][2][:2]
    assert made[0][2][: len(rows.buffers) - 1] == (1, 2, *range(4, len(rows.buffers) + 1))
    many = np.array(integers)
    many[SIZES.index("k")] = 200
    assert cuda_softmax.TARGET().prepare(rows, many, [16] * len(rows.buffers), device) is None


def test_texts_are_canonical() -> None:
    weighting = Weighting(bind(define("mk,nk->mn", lambda a, b: a * b, "sum"), frozenset()).program, True)
    assert Weighting.parse(weighting.text) == weighting
    assert weighting.text != Weighting(weighting.inner).text


def test_a_route_names_the_pass_and_its_products() -> None:
    plan = planned(nest("product", "f32", causal=True))
    assert plan is not None
    assert "one pass, 3 products of f16 halves, causal" in str(plan)
    plan = planned(nest("product", "bf16"))
    assert plan is not None
    assert "one pass, products of bf16" in str(plan)
    assert "causal" not in str(plan)
