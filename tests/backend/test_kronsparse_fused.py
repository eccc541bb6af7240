"""Two Kronecker-sparse products as one: what is planned, and that the kernels compile everywhere with few spills."""

from __future__ import annotations

import math
import re
from functools import cache

import pytest

from kernmantle.backends.cuda.emit import headers
from kernmantle.backends.cuda.nvrtc import Cubin
from kernmantle.structured.mode_product.cuda_emit import emit_fused
from kernmantle.structured.mode_product.fused_plan import (
    FusedProblem,
    candidates,
    contiguous,
    fused_seconds,
    plan_fused,
)

from ..golden.compiled import compile_source
from .test_cuda_compile import CARDS

MONARCH = (6, 64, 64, 1), (1, 768, 192, 2)
SQUARE = (64, 64, 64, 1), (1, 64, 64, 64)
DEEP = (16, 16, 16, 16), (1, 16, 16, 256)
LEVELS = (256, 16, 16, 1), (16, 16, 16, 16)
MOST_SPILLED = 64


@cache
def compiled(source: str, card: str) -> Cubin:
    return compile_source(source, card, headers(), "pair")


def planned(chain, batch, dtype, first, card):
    problem = contiguous(*chain, batch, dtype, first)
    found = plan_fused(problem, CARDS[card])
    assert found is not None
    return problem, found


@pytest.mark.parametrize(
    ("card", "dtype", "first"),
    [*((card, "f32", True) for card in CARDS), ("sm_90", "f32", False), ("sm_80", "bf16", True)],
)
def test_compiles_within_its_registers(card, dtype, first) -> None:
    for chain, batch in ((MONARCH, 16), (DEEP, 256)):
        problem, found = planned(chain, batch, dtype, first, card)
        log = compiled(emit_fused(found), card).log
        taken = [int(each) for each in re.findall(r"Used (\d+) registers", log)]
        assert len(taken) >= 2, log
        assert max(taken) * found.threads <= 65536
        assert max(int(each) for each in re.findall(r"(\d+) bytes spill stores", log)) <= MOST_SPILLED
        assert found.shared(problem) <= CARDS[card].shared_per_block


def test_sizes_do_not_reach_the_source() -> None:
    for chain in (MONARCH, SQUARE):
        problem = contiguous(*chain, 64, "f32", True)
        alike = {}
        for found in candidates(problem, CARDS["sm_90"]):
            alike.setdefault((found.across, found.m, found.warps, found.run), set()).add(emit_fused(found))
        assert all(len(sources) == 1 for sources in alike.values())


def test_blocks_cover_the_result() -> None:
    problem = contiguous((6, 40, 20, 1), (2, 37, 30, 4), 100, "f32", True)
    assert (problem.p, problem.inner, problem.rank, problem.deep) == (3, 4, 10, 2)
    for found in candidates(problem, CARDS["sm_90"]):
        parts = -(-4 // found.slice) * -(-37 // found.columns)
        assert found.blocks(problem) == 2 * parts * -(-100 // found.rows)
    assert "back-to-back sm_90" in str(found)


# Microseconds on an H200 in a graph, 16 rows: chain, type, is the batch in front; as one, as two, as the dense matrix.
MEASURED = (
    (MONARCH, "f32", True, (6.3, 8.7, 5.0)), (MONARCH, "bf16", True, (4.6, 6.0, 3.2)),
    (MONARCH, "bf16", False, (4.7, 8.1, 5.0)), (LEVELS, "bf16", True, (4.7, 6.6, 9.2)),
    (LEVELS, "bf16", False, (5.0, 5.7, 13.9)), (DEEP, "bf16", False, (5.1, 5.7, 14.4)),
)  # fmt: skip


@pytest.mark.parametrize(("chain", "dtype", "first", "taken"), MEASURED, ids=str)
def test_the_model_is_near_what_was_measured(chain, dtype, first, taken) -> None:
    found = fused_seconds(contiguous(*chain, 16, dtype, first), CARDS["sm_90"])
    assert 0.8 < 1e6 * found / 1.1 / taken[0] < 1.25


def test_pairs_are_for_few_rows_that_are_read_together() -> None:
    for chain, batch, dtype, first in (
        (LEVELS, 17, "bf16", True), (MONARCH, 16, "f32", False), (DEEP, 16, "bf16", True),
    ):  # fmt: skip
        assert fused_seconds(contiguous(*chain, batch, dtype, first), CARDS["sm_90"]) == math.inf


def test_problems_that_do_not_fit_have_no_plan() -> None:
    wide = FusedProblem((1, 64, 64, 1), (1, 64, 64, 1), 16, "f32", True, True, True)
    assert plan_fused(wide, CARDS["sm_90"]) is not None
    deep = FusedProblem((1, 100_000, 4, 1), (1, 4, 100_000, 1), 16, "f32", True, True, True)
    assert plan_fused(deep, CARDS["sm_90"]) is None
