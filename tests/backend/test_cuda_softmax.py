"""Softmax-weighted sums in one pass: where they are planned, what their kernels take, for each generation."""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import pytest
import torch

from kernmantle.backends.cuda.emit import headers
from kernmantle.backends.cuda.gram_plan import Layout
from kernmantle.backends.cuda.nvrtc import compile_source
from kernmantle.backends.cuda.row_reduce_emit import ENTRY, SPLIT
from kernmantle.backends.cuda.row_reduce_plan import CudaRowPlan, plan_softmax
from kernmantle.backends.cuda.softmax_emit import COLUMNS, emit_softmax
from kernmantle.backends.cuda.softmax_plan import blocks_of
from kernmantle.compiler.nest import ROLES, SIZES
from kernmantle.compiler.row_reduce import RowNest
from kernmantle.compiler.softmax import GRADIENTS, Weighting, lower_softmax, slope
from kernmantle.ir.definition import bind, define
from kernmantle.ir.functions import FUNCTIONS
from kernmantle.ir.node import var, variables
from kernmantle.ir.ops import evaluate
from kernmantle.torch_ops import cuda_softmax

from .test_cuda_compile import CARDS

exp, tanh = FUNCTIONS["exp"], FUNCTIONS["tanh"]
LOGITS: dict[str, Any] = {
    "product": ("mk,nk->mn", lambda a, b: a * b, lambda s, h: s * h),
    "capped": ("mk,nk->mn", lambda a, b: a * b, lambda s, h: 20 * tanh(s * h / 20)),
    "biased": ("mk,nk,t:n->mn", lambda a, b: a * b, lambda s, t, h: s * h + t),
    "sloped": ("mk,nk,u:m,t:n->mn", lambda a, b: a * b, lambda s, u, t, h: s * h - abs(u - t)),
    "squares": ("mk,nk->mn", lambda a, b: (a - b) ** 2, lambda s, h: -s * h),
    "table": ("mk,nk,t:mn->mn", lambda a, b: a * b, lambda s, t, h: s * h + t),
    "weighted": ("mk,nk,w:k->mn", lambda a, b, w: a * b * w, lambda s, h: s * h),
}


def nest(name: str, dtype: str = "bf16", causal: bool = False, pulled: bool = False) -> RowNest:
    equation, mapped, outputs = LOGITS[name]
    definition = define(equation, mapped, "sum", outputs)
    program = bind(definition, frozenset()).program
    return lower_softmax(Weighting(program, causal), [dtype] * len(program.tensors), dtype, pulled).rows


def planned(rows: RowNest, card: str = "sm_90", **changes: int) -> CudaRowPlan | None:
    sizes = dict.fromkeys(map(str, SIZES), 1) | {"m": 8192, "n": 8192, "k": 64, "l": 64, "c": 32} | changes
    strides = []
    for port in rows.ports:
        step, own = 1, {}
        for role in reversed(f"c{port.roles}"):
            own[role], step = step, step * sizes[role]
        strides.append(tuple(own.get(role, 0) for role in ROLES))
    return plan_softmax(rows, sizes, CARDS[card], Layout(tuple(strides), (16,) * len(strides)))


SPILLED = {"capped": 192, "table": 64}
"""Bytes that gradients by columns may spill; nothing else does."""


@pytest.mark.parametrize("pulled", [False, True])
@pytest.mark.parametrize(
    ("name", "dtype"), [*itertools.product(["product", "capped", "table"], ["bf16", "f32"]), ("product", "f16")]
)
def test_compiles_without_serialised_products(name: str, dtype: str, pulled: bool) -> None:
    plan = planned(nest(name, dtype, pulled=pulled))
    assert plan is not None
    assert plan.form == "softmax"
    log = compile_source(emit_softmax(plan), "sm_90", headers(), name).log
    assert "C75" not in log
    kernels = dict(re.findall(r"entry function '(\w+)'.*?(\d+) bytes spill stores", log, re.DOTALL))
    assert set(kernels) == {ENTRY, SPLIT, *([COLUMNS] if pulled else [])}
    assert int(kernels.pop(COLUMNS, 0)) <= SPILLED.get(name, 0)
    assert set(kernels.values()) == {"0"}


@pytest.mark.parametrize(("k", "width", "causal"), [(32, 32, True), (80, 64, False), (128, 128, True), (1, 5, False)])
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_all_widths_compile(dtype: str, k: int, width: int, causal: bool) -> None:
    plan = planned(nest("sloped", dtype, causal), k=k, l=width)
    assert plan is not None
    log = compile_source(emit_softmax(plan), "sm_90", headers(), "width").log
    assert "C75" not in log


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
        ("squares", "f32", {}, False),
        ("table", "f32", {}, True),
        ("weighted", "f32", {}, False),
    ],
)
def test_what_is_taken(name: str, dtype: str, changes: dict[str, int], there: bool) -> None:
    assert (planned(nest(name, dtype), **changes) is not None) is there


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_gradients_of_wide_rows_are_two_passes(dtype: str) -> None:
    assert planned(nest("product", dtype, pulled=True), k=64, l=64) is not None
    assert planned(nest("product", dtype, pulled=True), k=65, l=64) is None
    assert planned(nest("product", dtype, pulled=True), k=64, l=65) is None


@pytest.mark.parametrize("card", sorted(set(CARDS) - {"sm_90"}))
@pytest.mark.parametrize("pulled", [False, True])
def test_other_cards_take_two_passes(card: str, pulled: bool) -> None:
    assert planned(nest("product", pulled=pulled), card) is None


@pytest.mark.parametrize("pulled", [False, True])
@pytest.mark.parametrize("name", ["product", "biased", "sloped"])
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_what_kernels_hand_to_each_other_does_not_overlap(name: str, dtype: str, pulled: bool) -> None:
    plan = planned(nest(name, dtype, pulled=pulled))
    assert plan is not None
    sizes = dict.fromkeys(map(str, SIZES), 1) | {"m": 1000, "n": 777, "k": 40, "l": 50, "c": 3}
    layout = plan.memory(sizes)
    down, across = blocks_of(plan.rows, plan.tile, sizes)
    planes, row_ends, column_ends = 1 + (dtype == "f32"), name == "sloped", name in ("biased", "sloped")
    row = 64 * 64 * 2 * planes
    if pulled:
        wanted = [down * row, down * row, across * row, across * row]
        wanted += [down * 4 * (64 * (2 + row_ends) + 4), across * 4 * (64 * column_ends + 4)]
    else:
        columns = plan.tile.n * 64 * 2 * planes
        side = plan.tile.n * column_ends + (64 + 4) * (planes - 1)
        wanted = [down * row, across * columns, across * columns, down * 4, across * side * 4]
    ends = [*layout.offsets[1:], layout.size]
    assert len(layout.offsets) == len(wanted)
    for begin, end, size in zip(layout.offsets, ends, wanted, strict=True):
        assert begin % 1024 == 0
        assert 3 * size <= end - begin < 3 * size + 1024


@pytest.mark.parametrize("name", ["product", "capped", "biased"])
def test_the_slope_is_that_of_entries(name: str) -> None:
    rows = nest(name, "f32", pulled=True)
    assert rows.how == GRADIENTS
    names = [*variables(rows.matrix.outputs), "s0"]
    values = {each: 0.3 + 0.1 * i for i, each in enumerate(dict.fromkeys(names))}
    step = 1e-6
    low, high = (evaluate(rows.matrix.outputs, values | {"s0": values["s0"] + move})[0] for move in (-step, step))
    assert evaluate([slope(rows)], values)[0] == pytest.approx((high - low) / (2 * step), rel=1e-6)
    assert (var("s0").name in variables([slope(rows)])) is (name == "capped")


@pytest.mark.parametrize("pulled", [False, True])
def test_what_is_launched(pulled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[Any, int, tuple[Any, ...]]] = []
    empty = torch.empty
    names = ("split", "rows", "columns") if pulled else ("split", "rows")
    monkeypatch.setattr(cuda_softmax, "index_of", lambda device: 0)
    monkeypatch.setattr(cuda_softmax, "limits", lambda index: CARDS["sm_90"])
    monkeypatch.setattr(cuda_softmax, "_load", lambda chosen: names)
    monkeypatch.setattr(cuda_softmax.torch, "empty", lambda size, dtype, device: empty(size, dtype=dtype))
    monkeypatch.setattr(
        cuda_softmax, "start", lambda kernel, index, blocks, given: made.append((kernel, blocks, given))
    )
    rows = nest("product", "f32", pulled=pulled)
    sizes = dict.fromkeys(map(str, SIZES), 1) | {"m": 1000, "n": 777, "k": 40, "l": 50, "c": 3}
    integers = np.array([*(sizes[role] for role in SIZES), *(7 for _ in range(len(rows.ports) * len(ROLES)))], np.int64)
    device = torch.device("cuda")
    launcher = cuda_softmax.TARGET().prepare(rows, integers, [16] * len(rows.ports), device)
    assert launcher is not None
    launcher.run(range(1, len(rows.ports) + 1), (0.5, 0.25))
    down, across = 16, 14 if pulled else 7  # pieces of 64 rows, columns by two of them or by tiles of 128
    grids = [3 * (down + across), 3 * 8, 3 * 7]
    assert [(kernel, blocks) for kernel, blocks, _ in made] == [*zip(names, grids, strict=False)]
    for _, _, given in made:
        assert given == made[0][2]
    assert 3 not in made[0][2][:2]
    assert made[0][2][: len(rows.ports) - 1] == (1, 2, *range(4, len(rows.ports) + 1))
    many = np.array(integers)
    many[SIZES.index("k")] = 200
    assert cuda_softmax.TARGET().prepare(rows, many, [16] * len(rows.ports), device) is None


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
