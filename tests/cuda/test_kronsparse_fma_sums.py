"""Gradients of the weights of Kronecker-sparse products by FMA instructions, against float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernmantle.structured.mode_product import cuda, fma_sum_plan, weight_gradient
from kernmantle.structured.mode_product.plan_table import rows_of

from .kronsparse_sums import DTYPES, check, check_what_is_no_number

pytestmark = pytest.mark.cuda

PATTERNS = ((2, 33, 65, 9), (1, 96, 50, 12), (2, 17, 4, 130), (1, 1, 1, 1), (2, 11, 29, 1), (40, 3, 2, 48))


def operands(pattern, rows, dtype, first, gap=0, groups=1):
    """x and the gradient of the result; their features, or the batch, lie together ``gap`` numbers behind an edge."""
    a, b, c, d = pattern
    torch.manual_seed(0)
    found = []
    for features in (a * c * d, a * b * d):
        shape = (groups, rows, features + gap) if first else (groups, features, rows + gap)
        made = torch.randn(shape, device="cuda").to(DTYPES[dtype])[..., gap:]
        found.append(made if first else made.mT)
    return found


def plans(pattern, rows, dtype, first, access):
    """A plan of every kind, each with several parts of the batch."""
    own = rows_of(fma_sum_plan.candidates(pattern, rows, dtype, first, access, cuda.limits(0)))
    kinds = {(plan.share > 1, plan.vector, plan.tile[2] < pattern[3]): plan for plan in own}
    return [replace(plan, slots=3) for plan in kinds.values()]


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_every_kind_of_tile(pattern, dtype, first, monkeypatch) -> None:
    every = plans(pattern, 1000, dtype, first, 16)
    check(monkeypatch, "fma", *operands(pattern, 1000, dtype, first), pattern, every)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("gap", [0, 1, 8])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 17, 5000])
def test_any_rows_strides_and_groups(rows, dtype, gap, first, monkeypatch) -> None:
    pattern = (2, 18, 10, 5)
    check(monkeypatch, "fma", *operands(pattern, rows, dtype, first, gap, 2), pattern)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_batch_that_is_last_is_transposed_where_that_is_quicker(dtype, monkeypatch) -> None:
    pattern, rows = (2, 18, 10, 6), 21
    monkeypatch.setattr(weight_gradient, "rows_seconds", lambda *_: -1.0)
    check(monkeypatch, "fma", *operands(pattern, rows, dtype, False, 3), pattern)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_no_number_stays_where_it_is(dtype, first, monkeypatch) -> None:
    pattern = (2, 18, 10, 5)
    check_what_is_no_number(monkeypatch, "fma", *operands(pattern, 100, dtype, first), pattern)
