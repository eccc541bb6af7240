"""Gradients of the weights of Kronecker-sparse products with wide blocks, by wgmma, against float64."""

from __future__ import annotations

import pytest
import torch

from kernmantle.structured.mode_product import cuda, wide_sum_plan

from .kronsparse_sums import DTYPES, check, check_what_is_no_number

pytestmark = pytest.mark.cuda

PATTERNS = ((2, 70, 72, 1), (1, 200, 152, 1), (1, 145, 77, 1), (3, 17, 300, 1), (1, 60, 33, 3), (2, 130, 100, 2))


def operands(pattern, batch, dtype, first, gap=0, groups=1):
    a, b, c, d = pattern
    torch.manual_seed(0)
    sides = [(batch, a * m * d) if first else (a * m * d, batch) for m in (c, b)]
    arrays = [torch.randn(groups, high, wide + gap, device="cuda").to(DTYPES[dtype])[..., gap:] for high, wide in sides]
    return [array if first else array.mT for array in arrays]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batch", [200, 1003])
@pytest.mark.parametrize(
    ("pattern", "first"),
    [(own, first) for own in PATTERNS for first in (True, False) if own[3] == 1 or not first],
    ids=str,
)
def test_every_tile(batch, first, pattern, dtype, monkeypatch) -> None:
    x, grad = operands(pattern, batch, dtype, first)
    size = x.element_size()
    rows = [pattern[1] * pattern[3], pattern[2] * pattern[3]] if first else [batch]
    shifted = any(size * row % wide_sum_plan.WORD for row in rows)
    own = cuda.limits(0)
    every = list(wide_sum_plan.candidates(pattern, dtype, first, shifted, 3 if dtype == "f32" else 1, own))
    assert every
    check(monkeypatch, "wide", x, grad, pattern, every)


@pytest.mark.parametrize("gap", [0, 1, 2, 8])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("batch", [1, 31, 65, 5000])
def test_any_batch_strides_and_groups(batch, first, dtype, gap, monkeypatch) -> None:
    pattern = (2, 66, 40, 1)
    check(monkeypatch, "wide", *operands(pattern, batch, dtype, first, gap, 2), pattern)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_no_number_stays_where_it_is(dtype, first, monkeypatch) -> None:
    pattern = (2, 40, 50, 1)
    check_what_is_no_number(monkeypatch, "wide", *operands(pattern, 100, dtype, first), pattern)


@pytest.mark.parametrize("first", [True, False])
def test_numbers_of_any_size(first, monkeypatch) -> None:
    pattern = (1, 70, 72, 1)
    x, grad = operands(pattern, 640, "f32", first)
    x *= torch.logspace(-9, 9, 640, 2, device="cuda")[:, None]
    grad *= torch.logspace(20, -20, 70, 2, device="cuda")
    check(monkeypatch, "wide", x, grad, pattern)
    check(monkeypatch, "wide", x * 1e-19, grad, pattern)
