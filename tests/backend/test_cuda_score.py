"""Score tiles: where they are planned, what their kernels take, what is launched."""

from dataclasses import replace
from typing import Any

import pytest

from kernmantle.backends.cuda.row_reduce_emit import emit_rows
from kernmantle.backends.cuda.score_plan import SAMPLERS, SIDES, blocks_of
from kernmantle.compiler.row_reduce import PRODUCT
from kernmantle.ir.definition import bind, define
from kernmantle.torch_ops import cuda_row_reduce_forms

from ..cuda.row_nests import SQUARES, RowCase, exp
from .row_launches import check_memory, noted, planned, run
from .test_cuda_row_forms import CASES


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
    assert [planned(CASES["costs_64"], k=k).linear for k in (16, 20, 24, 37, 128)] == [False, False, True, True, True]


def test_entries_of_rows_are_not_linear_alone() -> None:
    program = bind(define("mk,nk,u:m->mn", lambda a, b: (a - b) ** 2, "sum", lambda s, u: u - s), frozenset()).program
    assert not planned(RowCase("rows", program, "logsumexp", 40000, 40000, 40)).linear


@pytest.mark.parametrize("m", [192, 193, 384, 385, 1000])
@pytest.mark.parametrize("k", [16, 20, 22, 37, 50, 64, 96, 100])
def test_memory_holds_every_tile_that_is_read(m: int, k: int) -> None:
    case, n, width = CASES["gauss_64_4"], 100001, 3
    plan, sizes = planned(case, m=m, n=n, k=k, l=width), case.sizes() | {"m": m, "n": n, "k": k, "l": width}
    layout, (down, across) = plan.memory(sizes), blocks_of(plan.tile, sizes)
    assert down * 128 >= -(-m // 192) * 192
    assert (across - 1) * 128 < n <= across * 128
    wanted = [4 * (4 + SAMPLERS), down * 512 * plan.tile.depth, across * 512 * plan.tile.depth, down * 1024]
    wanted.append(across * 4 * (128 * 5 + 4))
    check_memory(layout, wanted)
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
