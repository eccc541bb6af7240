"""Symmetric matrices of order 33 to 64, one a block, against LAPACK in float64: values, layouts, failures, graphs."""

from __future__ import annotations

import pytest
import torch

import kernmantle as km

pytestmark = pytest.mark.cuda
ORDERS = (33, 34, 40, 41, 48, 55, 56, 63, 64)


def symmetric(count, n, seed=0):
    source = torch.Generator().manual_seed(seed + n)
    a = torch.randn(count, n, n, generator=source, dtype=torch.float64)
    basis = torch.linalg.qr(a[-1]).Q
    a = (a + a.mT) / 2
    a[-1] = (basis * torch.logspace(0, -12, n, dtype=torch.float64)) @ basis.mT
    a[-2] = basis[:, :2] @ basis[:, :2].mT
    a[-3] = torch.diag(torch.arange(n, dtype=torch.float64) % 3)
    return ((a + a.mT) / 2).cuda()


def check(a, found, unit):
    w, v = (part.double() for part in found)
    n, size = a.shape[-1], a.double().norm(dim=(1, 2))
    assert (found.info == 0).all()
    assert "one kernel" in found.ran
    assert float(((a.double() @ v - v * w[:, None]).norm(dim=(1, 2)) / size).max()) <= 3 * n * unit
    assert float((v.mT @ v - torch.eye(n, device="cuda")).abs().max()) <= n * unit
    exact = torch.linalg.eigvalsh(a.double().cpu()).cuda()
    assert float(((w - exact).abs().amax(1) / size).max()) <= n * unit
    assert (w.diff(dim=-1) >= 0).all()


@pytest.mark.parametrize("n", ORDERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_pairs_are_those_of_lapack(n, dtype):
    unit = torch.finfo(dtype).eps
    for count in (3, 4, 3000):
        a = symmetric(count, n).to(dtype)
        check(a, km.linalg.eigh(a), unit)
    whole = symmetric(5, n).to(dtype)
    upper = whole.triu() + torch.full_like(whole, float("nan")).tril(-1)
    check(whole, km.linalg.eigh(upper, lower=False), unit)
    turned = whole.permute(2, 0, 1).contiguous().permute(1, 2, 0)
    check(whole, km.linalg.eigh(turned), unit)
    own = whole.clone()
    found = km.linalg.eigh(own, overwrite_a=True)
    assert found.v.data_ptr() == own.data_ptr()
    check(whole, found, unit)
    assert torch.equal(km.linalg.eigh(whole, eigvals_only=True), km.linalg.eigh(whole).w)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sizes_at_the_ends_of_the_type_and_numbers_that_are_none(dtype):
    a = symmetric(4, 40).to(dtype)
    for exponent in (-60, 60):
        scaled = a * 2.0**exponent
        w, _ = km.linalg.eigh(scaled)
        assert torch.equal(w, km.linalg.eigh(a).w * 2.0**exponent)
    a[1, 3, 2] = float("nan")
    a[2, 5, 5] = float("inf")
    found = km.linalg.eigh(a, check_errors=False)
    assert found.info.tolist() == [0, 41, 41, 0]
    assert found.w[1:3].isnan().all()
    assert found.v[1:3].isnan().all()
    assert found.w[[0, 3]].isfinite().all()
    zero = km.linalg.eigh(torch.zeros(3, 50, 50, device="cuda", dtype=dtype))
    assert not zero.w.any()
    assert torch.equal(zero.v.abs().sum(1), torch.ones(3, 50, device="cuda", dtype=dtype))


def test_in_a_cuda_graph():
    a = symmetric(7, 48).float()
    km.linalg.eigh(a)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = km.linalg.eigh(a)
    a.copy_(symmetric(7, 48, seed=9).float())
    graph.replay()
    check(a, found, torch.finfo(torch.float32).eps)
