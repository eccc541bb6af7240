"""Gradients of the weights of Kronecker-sparse products over transposed rows, against float64."""

from __future__ import annotations

import pytest
import torch

from kernmantle.structured.mode_product import block_sum_plan, cuda, weight_gradient
from kernmantle.structured.mode_product.plan_table import rows_of
from kernmantle.testing import assert_close

from .kronsparse_sums import DTYPES, terms

pytestmark = pytest.mark.cuda

PATTERNS = (
    ((2, 33, 65, 17), 18), ((1, 40, 37, 42), 16), ((3, 20, 25, 9), 17), ((2, 30, 21, 24), 7), ((1, 9, 35, 64), 1),
    ((1, 130, 40, 6), 256), ((2, 33, 65, 2), 40), ((1, 40, 70, 97), 100),
)  # fmt: skip
MOST_KINDS = 6


def operands(pattern, rows, dtype):
    a, b, c, d = pattern
    torch.manual_seed(0)
    return [torch.randn(1, a * m * d, rows, device="cuda").to(DTYPES[dtype]).mT for m in (c, b)]


def plans(pattern, rows, dtype):
    """Tiles of every kind of fragments and stages."""
    own = cuda.limits(0)
    every = rows_of(block_sum_plan.candidates(pattern[3], rows, dtype, own))
    found = list({(plan.m, plan.n, plan.warp_l, plan.steps): plan for plan in every}.values())
    return found[:: -(-len(found) // MOST_KINDS)]


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize(("pattern", "rows"), PATTERNS, ids=str)
def test_every_kind_of_tile(pattern, rows, dtype) -> None:
    x, grad = operands(pattern, rows, dtype)
    exact, size = terms(x.double(), grad.double(), pattern), terms(x.double().abs(), grad.double().abs(), pattern)
    for plan in plans(pattern, rows, dtype):
        sums = weight_gradient._bind_blocks(x, pattern, plan, cuda.limits(0))
        assert_close(sums(x, grad), exact, depth=rows, magnitude=size)
