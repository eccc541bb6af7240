"""Products whose sums are long: which of halves are taken in float32, as parts of them may else be added in halves."""

from __future__ import annotations

import pytest
import torch

from kernmantle.structured.mode_product.torch_products import is_added_in_halves, summed_product
from kernmantle.testing import assert_close

ROWS = 40_001


def sides(rows, features, last, dtype=torch.bfloat16):
    source = torch.Generator().manual_seed(0)
    x, grad = (torch.randn(rows, features, generator=source).to(dtype) for _ in range(2))
    if last:
        return grad.T.contiguous(), x.T.contiguous().T
    return grad.T, x


@pytest.mark.parametrize(
    ("rows", "features", "last", "dtype", "expected"),
    [
        (ROWS, 16, True, torch.bfloat16, True), (ROWS, 16, True, torch.float16, True),
        (ROWS, 16, False, torch.bfloat16, False), (ROWS, 15, False, torch.bfloat16, True),
        (ROWS - 1, 16, True, torch.bfloat16, False), (30_001, 16, True, torch.bfloat16, False),
        (ROWS, 16, True, torch.float32, False),
    ],
)  # fmt: skip
def test_long_sums_of_halves_that_do_not_begin_at_vectors(rows, features, last, dtype, expected):
    left, right = sides(rows, features, last, dtype)
    assert is_added_in_halves(left, right) == expected
    found, terms = summed_product(left, right), left.double().abs() @ right.double().abs()
    assert found.dtype == dtype
    assert_close(found, left.double() @ right.double(), depth=rows, magnitude=terms)


def test_views_that_begin_between_vectors():
    left, right = sides(ROWS - 1, 16, True)
    memory = torch.zeros(left.numel() + 1, dtype=torch.bfloat16)
    assert is_added_in_halves(memory[1:].view(left.shape).copy_(left), right)
