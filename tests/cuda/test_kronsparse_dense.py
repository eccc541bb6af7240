"""The dense matrix of Kronecker-sparse weights by one pass, and steps through it, against torch's."""

from __future__ import annotations

import pytest
import torch

from kernmantle.kronsparse import kron_sparse_matmul
from kernmantle.structured.kronsparse import chain_matrix, chain_training
from kernmantle.structured.mode_product import execute
from kernmantle.structured.mode_product.torch_products import dense
from kernmantle.testing import assert_close

pytestmark = pytest.mark.cuda

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
PATTERNS = ((2, 3, 5, 7), (1, 9, 8, 4), (5, 16, 24, 1), (3, 1, 1, 2), (1, 6, 4, 11), (4, 13, 2, 14))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_the_matrix_is_that_of_torch(pattern, dtype) -> None:
    a, b, c, d = pattern
    weight = torch.randn(pattern, device="cuda").to(dtype)
    assert execute.makes_dense(weight)
    assert torch.equal(execute.dense_matrix(weight), dense(weight))
    assert torch.equal(execute.dense_matrix(weight.transpose(1, 2)), dense(weight.transpose(1, 2)))
    assert torch.equal(execute.dense_matrix(weight), dense(weight.cpu()).cuda())
    assert execute.dense_matrix(weight).shape == (a * b * d, a * c * d)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("summed", ["dense", "kernel", "bmm"])
def test_steps_through_the_matrix_sum_by_any_way(summed, dtype, last, monkeypatch) -> None:
    a, b, c, d = pattern = (2, 6, 5, 4)
    monkeypatch.setattr(chain_training, "kind_of", lambda *_, **__: "matrix")
    monkeypatch.setattr(chain_matrix, "quickest_gradient", lambda *_: (summed, 0.0))
    rows = 75 if summed == "dense" else 77 if summed == "kernel" else 79
    x, grad = ((torch.randn(rows, a * m * d, device="cuda")).to(dtype) for m in (c, b))
    if last:
        x, grad = x.mT.contiguous(), grad.mT.contiguous()
    x, weight = x.requires_grad_(), torch.randn(pattern, device="cuda").to(dtype).requires_grad_()
    found = torch.autograd.grad(kron_sparse_matmul(x, weight, batch_last=last), [x, weight], grad)
    own, factor = x.detach().double().requires_grad_(), weight.detach().double().requires_grad_()
    out = dense(factor) @ own if last else own @ dense(factor).mT
    exact = torch.autograd.grad(out, [own, factor], grad.double())
    with torch.no_grad():
        large = own.abs(), factor.abs()
    sizes = [one.requires_grad_() for one in large]
    out = dense(sizes[1]) @ sizes[0] if last else sizes[0] @ dense(sizes[1]).mT
    magnitudes = torch.autograd.grad(out, sizes, grad.double().abs())
    for one, wanted, size in zip(found, exact, magnitudes, strict=True):
        assert_close(one, wanted, depth=rows, magnitude=size)
