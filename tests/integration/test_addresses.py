"""Entries more than 2^31 apart, in memory that is asked for and hardly touched."""

from __future__ import annotations

import torch

import kernmantle as km
from kernmantle.structured.mode_product.execute import within_blas_strides
from kernmantle.testing import assert_close

FAR = 2**31


def rows(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_rows_that_lie_far_apart(device):
    memory = torch.empty(FAR + 64, device=device)
    near, y, v = rows(2, 6).to(device), rows(3, 6, seed=1).to(device), rows(2, seed=2).to(device)
    far = memory.as_strided((2, 6), (FAR, 1)).copy_(near)
    out = memory.as_strided((2, 3), (FAR, 1), 32)
    factors, weight = [rows(2, 2).to(device), rows(3, 3).to(device)], rows(1, 4, 6, 1).to(device)
    x, others = near.double(), y.double()
    assert_close(km.cdist(far, y, p=1.5), torch.cdist(x, others, p=1.5), depth=8)
    km.cdist(near, y, p=1, out=out)
    assert_close(out, torch.cdist(x, others, p=1), depth=8)
    kernel = torch.exp(-torch.cdist(others, x).square() / 2)
    assert_close(km.Gaussian().matmul(y, far, v), kernel @ v.double(), depth=16)
    product = torch.kron(*factors).double()
    assert_close(km.kron_matmul(far, factors), x @ product, depth=16)
    assert_close(km.kron_matmul(far.mT, factors, side="left"), product @ x.mT, depth=16)
    matrix = weight[0, :, :, 0].double()
    assert_close(km.kron_sparse_matmul(far, weight), x @ matrix.mT, depth=8)
    assert_close(km.kron_sparse_matmul(far.mT, weight, batch_last=True), matrix @ x.mT, depth=8)


def test_what_blas_cannot_address_is_copied():
    memory = torch.empty(FAR + 64, dtype=torch.int8)
    values = torch.arange(12, dtype=torch.int8).view(1, 2, 6)
    far = memory.as_strided((1, 2, 6), (12, FAR, 1)).copy_(values)
    assert within_blas_strides(far).is_contiguous()
    assert within_blas_strides(far).equal(values)
    assert within_blas_strides(values) is values
