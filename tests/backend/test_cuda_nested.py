"""Contractions of scores take the row kernels of the GPU as they are: what is composed compiles for each generation."""

from __future__ import annotations

from typing import Any

import pytest

from kernmantle.backends.cuda.emit import headers
from kernmantle.backends.cuda.row_reduce_emit import emit_rows
from kernmantle.backends.cuda.row_reduce_plan import CudaRowPlan, plan_rows
from kernmantle.compiler.nest import ROLES, SIZES, Layout
from kernmantle.compiler.row_reduce import Apply, can_lower, lower_rows
from kernmantle.ir.definition import bind, define
from kernmantle.ir.functions import FUNCTIONS
from kernmantle.ir.nested import nest
from kernmantle.ir.reducers import Smallest

from ..golden.compiled import compile_source
from .test_cuda_compile import CARDS

exp, sin = FUNCTIONS["exp"], FUNCTIONS["sin"]
SQUARES = define("mk,nk->mn", lambda a, b: (a - b) ** 2)
PRODUCTS = define("mk,nk->mn", lambda a, b: a * b)
LAPLACE = define("mk,nk,w:k->mn", lambda a, b, w: w * abs(a - b))
PROGRAMS: dict[str, tuple[Any, ...]] = {
    "product": (LAPLACE, "mn,m,n,mn,nc->mc", lambda s, a, b, t, v, q: exp(-s * a * a - q) * (b + t) * v, "sum"),
    "columns": (SQUARES, "mn,mc->nc", lambda s, v: exp(-s) * v, "sum"),
    "softmax": (PRODUCTS, "mn,nc->mc", lambda s, v, h: (s / h, v), "softmax"),
    "minimum": (LAPLACE, "mn,n->m", lambda s, b: s * b, "min"),
    "position": (SQUARES, "mn->m", lambda s: s, "argmin"),
    "truth": (LAPLACE, "mn->m", lambda s, q: s > q, "any"),
    "selection": (SQUARES, "mn->m", lambda s: s, Smallest(5)),
}
FORMS = {
    "product": ["tile"], "columns": ["score"], "softmax": ["score", "score"], "minimum": ["pipelined"],
    "truth": ["pipelined"], "selection": ["select"],
}  # fmt: skip


def planned(name: str, k: int, card: str) -> list[CudaRowPlan]:
    """Plans of the passes of a program on large extents, all arrays well aligned."""
    inner, equation, mapped, reduce = PROGRAMS[name]
    (passes,) = nest(define(equation, mapped, reduce), inner, (0,)).passes
    plans = []
    for row_pass in passes:
        program = bind(row_pass.score.definition, frozenset()).program
        apply = Apply(program, row_pass.how, row_pass.count)
        assert can_lower(apply, "f32")
        width = row_pass.count or (3 if row_pass.v is not None else 1)
        outs = ["f32", *(["i64"] * apply.selects)]
        rows = lower_rows(apply, ["f32"] * len(program.tensors), "f32", outs, "f32", True).rows
        sizes = dict.fromkeys(map(str, SIZES), 1) | {"m": 30000, "n": 30000, "k": k, "l": width}
        strides = []
        for buffer in rows.buffers:
            step, own = 1, {}
            for role in reversed(buffer.roles):
                own[role], step = step, step * sizes[role]
            strides.append(tuple(own.get(role, 0) for role in ROLES))
        plans.append(plan_rows(rows, sizes, CARDS[card], Layout(tuple(strides), (16,) * len(strides))))
    return plans


@pytest.mark.parametrize("name", FORMS)
def test_forms_are_those_of_kernels(name: str) -> None:
    assert [plan.form for plan in planned(name, 40, "sm_90")] == FORMS[name]


@pytest.mark.parametrize(
    ("name", "card", "k"),
    [("product", "sm_80", 3), ("softmax", "sm_90", 64), ("minimum", "sm_100", 20), ("truth", "sm_80", 20)],
)  # fmt: skip
def test_what_is_composed_compiles(name: str, card: str, k: int) -> None:
    for plan in planned(name, k, card):
        assert compile_source(emit_rows(plan), card, headers(), str(plan)).binary[:4] == b"\x7fELF"
