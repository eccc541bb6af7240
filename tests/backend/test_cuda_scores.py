"""The row nests of transport and attention compile for GPUs: terms over rows and columns, tables, truths."""

import math
from itertools import cycle

import pytest

from kernmantle.backends.cuda.emit import headers
from kernmantle.backends.cuda.row_reduce_emit import emit_rows
from kernmantle.backends.cuda.row_reduce_plan import plan_rows
from kernmantle.compiler.nest import ROLES, SIZES, Layout
from kernmantle.compiler.row_reduce import PRODUCT, Apply, lower_rows
from kernmantle.ir.definition import bind
from kernmantle.ot import problem
from kernmantle.pairwise import attend
from kernmantle.pairwise.scores import composed
from kernmantle.torch_ops.contract import Contraction

from ..golden.compiled import compile_source
from .test_cuda_compile import CARDS

L1 = Contraction("mk,nk->mn", lambda a, b: abs(a - b)).text
SQUARES = Contraction("mk,nk->mn", lambda a, b: (a - b) ** 2).text
CASES = {
    "soft minimum": (SQUARES, problem.TERMS, "logsumexp", False, 1),
    "soft minimum over rows": (L1, problem.TERMS, "logsumexp", True, 1),
    "plan": (L1, problem.ENTRIES, PRODUCT, False, 3),
    "transposed plan": (SQUARES, problem.ENTRIES, PRODUCT, True, 1),
    "cost": (L1, problem.PRICES, "sum", False, 1),
    "normalisers": (L1, attend.LOGITS["truths", "mn", True], "logsumexp", False, 1),
    "truths over columns": (L1, attend.LOGITS["truths", "n", False], "logsumexp", False, 1),
    "weighted sums": (L1, attend.WEIGHTS["terms", "mn", True], PRODUCT, False, 64),
    "weighted sums under truths": (L1, attend.WEIGHTS["truths", "mn", False], PRODUCT, False, 16),
}


@pytest.mark.parametrize(("name", "card"), list(zip(CASES, cycle(["sm_80", "sm_90", "sm_100"]))))
def test_compiles(name: str, card: str) -> None:
    text, outer, how, is_transposed, columns = CASES[name]
    definition = composed(text, outer, is_transposed).definition
    apply = Apply(bind(definition, frozenset()).program, how)
    arrays = sum(not operand.number for operand in apply.inner.operands)
    stored = ["f32"] * arrays
    if "truths" in outer.key:
        stored[2 + (how == PRODUCT)] = "bool"
    rows = lower_rows(apply, stored, "f32", ["f32"], "f32", True).rows
    extents = {"m": 4096, "n": 4096, "k": 64, "l": columns}
    strides = [[0] * len(ROLES) for _ in rows.buffers]
    for buffer, steps in zip(rows.buffers, strides, strict=True):
        for index, role in enumerate(buffer.roles):
            steps[ROLES.index(role)] = math.prod(extents[other] for other in buffer.roles[index + 1 :])
    facts = Layout(tuple(map(tuple, strides)), (16,) * len(strides))
    plan = plan_rows(rows, dict.fromkeys(map(str, SIZES), 1) | extents, CARDS[card], facts)
    assert compile_source(emit_rows(plan), card, headers(), "scores").binary[:4] == b"\x7fELF"
