"""Patterns whose extents kernels, which count them in 32 bits, do not take: nothing was written."""

from __future__ import annotations

import pytest
import torch

from kernmantle.structured.mode_product.cuda import problem_of
from kernmantle.structured.mode_product.weight_gradient import bind_gradient

FAR = 2**31


@pytest.mark.parametrize(
    ("pattern", "taken"),
    [
        ((FAR, 1, 1, 1), False),
        ((1, 1, 1, FAR), False),
        ((1, 1, FAR, 1), False),
        ((FAR - 1, 1, 1, 1), True),
        ((2, 1, 1, FAR - 1), True),
    ],
    ids=str,
)
def test_extents_of_more_than_31_bits(pattern, taken):
    a, b, c, d = pattern
    x, out, weight = (
        torch.empty(size, dtype=torch.bfloat16, device="meta")
        for size in ((1, 1, a * c * d), (1, 1, a * b * d), (1, *pattern))
    )
    assert (problem_of(x, weight, None, "", "", out) is not None) == taken
    if not taken:
        assert bind_gradient(x, out, pattern, "") is None
