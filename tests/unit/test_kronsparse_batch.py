"""Products by one batched product that reads and writes where arrays lie, against the definition as an equation."""

from __future__ import annotations

import itertools

import pytest
import torch

from kernmantle.structured.mode_product.torch_products import bind_batch, block_matrices, by_einsum

PATTERNS = [(3, 4, 5, 1), (1, 4, 5, 1), (2, 3, 3, 1), (3, 4, 5, 2), (1, 2, 3, 4)]


@pytest.mark.parametrize(
    ("pattern", "last", "rows", "transposed"), [*itertools.product(PATTERNS, (False, True), (1, 7), (False, True))]
)
def test_one_batched_product(pattern, last, rows, transposed):
    a, b, c, d = pattern
    source = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(shape, generator=source, dtype=torch.float64) for shape in ((1, rows, a * c * d), pattern))
    out = torch.full((1, rows, a * b * d), torch.nan, dtype=torch.float64)
    if last:
        x, out = x.mT.contiguous().mT, out.mT.contiguous().mT
    if transposed:
        weight = weight.transpose(1, 2).contiguous().transpose(1, 2)
    found = bind_batch(x, weight, out, block_matrices)
    if found is None:  # neighbours in memory belong to different blocks
        assert d > 1
        return
    found(x, weight, out)
    torch.testing.assert_close(out, by_einsum(x, weight[None]))
    assert found.reads_weight == (d == 1)
