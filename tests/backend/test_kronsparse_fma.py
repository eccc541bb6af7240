"""Plans of Kronecker-sparse products by FMA instructions: they compile, cover results, and are chosen as timed."""

from __future__ import annotations

import itertools

import pytest

from kernmantle.backends.cuda.emit import headers
from kernmantle.structured.mode_product.cuda_emit import emit_fma
from kernmantle.structured.mode_product.fma_plan import THREADS, FmaPlan, candidates, fma_choice
from kernmantle.structured.mode_product.plan import Problem, contiguous
from kernmantle.structured.mode_product.tiles import expected_seconds, tiled_seconds

from ..cases import sampled
from ..golden.compiled import compile_source
from .test_cuda_compile import CARDS

DTYPES = ("f32", "f16", "bf16")
PATTERNS = ((2, 3, 33, 37), (1, 40, 2, 5), (3, 1, 7, 64), (2, 17, 3, 1), (1, 9, 10, 130), (2, 4, 5, 67))
CARD = CARDS["sm_90"]


@pytest.mark.parametrize(
    ("card", "pattern", "dtype", "first"),
    sampled(6, list(itertools.product(CARDS, PATTERNS, DTYPES, (True, False)))),
    ids=str,
)
def test_every_plan_compiles_without_spills(card, pattern, dtype, first) -> None:
    for batch in (257, 512):
        for plan in candidates(contiguous(pattern, batch, dtype, first), CARDS[card]):
            found = compile_source(emit_fma(plan), card, headers(), "fma").resources
            each = plan.each if isinstance(plan, FmaPlan) else 1
            assert found.registers * THREADS * each <= 65536
            assert found.spill_stores == 0


def test_blocks_cover_the_result() -> None:
    for pattern, first, batch in itertools.product(PATTERNS, (True, False), (1, 64, 257)):
        a, b, _, d = pattern
        for plan in candidates(contiguous(pattern, batch, "f16", first), CARD):
            blocks, slots = plan.grid(contiguous(pattern, batch, "f16", first), CARD)
            assert 1 <= slots <= batch
            rows = plan.rows * plan.vector
            outputs = plan.outputs if isinstance(plan, FmaPlan) else plan.vector if first else plan.columns
            most = THREADS * outputs * (batch if first and not isinstance(plan, FmaPlan) else rows)
            assert blocks * most >= a * b * d * batch


# Microseconds on an H200, packed weights: pattern, rows, type, are features together; by FMA, and what ran before.
MEASURED = (
    ((22, 230, 2, 15), 3506, "f16", True, 212, 664), ((26, 323, 2, 3), 6507, "f32", True, 233, 528),
    ((124, 18, 2, 1), 37648, "f32", True, 146, 227), ((1, 667, 4, 122), 3279, "f32", True, 448, 1507),
    ((86, 3, 31, 87), 344, "bf16", True, 95, 282), ((51, 3, 25, 91), 2065, "f32", True, 320, 1167),
    ((58, 619, 4, 7), 1061, "bf16", False, 301, 547), ((94, 9, 9, 1), 28983, "f16", False, 39, 72),
    ((8, 194, 3, 38), 367, "f16", False, 25, 41), ((87, 4, 100, 124), 239, "f32", False, 275, 626),
    ((8, 14, 127, 97), 2453, "f16", True, 788, 424), ((38, 8, 664, 24), 438, "bf16", False, 417, 210),
    ((32, 212, 6, 6), 6413, "bf16", True, 405, 210), ((94, 14, 46, 18), 479, "bf16", True, 155, 58),
    ((27, 213, 5, 4), 3288, "bf16", True, 98, 82),
)  # fmt: skip


@pytest.mark.parametrize(("pattern", "batch", "dtype", "first", "fma", "before"), MEASURED, ids=str)
def test_the_quicker_is_chosen(pattern, batch, dtype, first, fma, before) -> None:
    problem = contiguous(pattern, batch, dtype, first)
    found = fma_choice(problem, CARD)
    assert found is not None
    assert fma / 1.7 < 1e6 * found[0] < 1.7 * fma
    assert (found[0] < tiled_seconds(problem, CARD, True)) == (fma < before)
    assert expected_seconds(problem, CARD, True) <= found[0]


def test_other_products_are_not_taken() -> None:
    def problem(pattern, batch=25088, dtype="f32") -> Problem:
        return contiguous(pattern, batch, dtype, True)

    assert fma_choice(problem((1, 3, 4, 40), 16), CARD) is None  # few bytes
    assert fma_choice(problem((1, 64, 64, 64)), CARD) is None
    assert fma_choice(problem((1, 3, 64, 64), dtype="f64"), CARD) is None
    mixed = Problem((1, 3, 64, 64), 1, 25088, "f32", True, False, 16, 4)
    assert fma_choice(mixed, CARD) is None
