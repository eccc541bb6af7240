"""How eigh uses the kernel for small matrices: what it does is done here by LAPACK, on the same memory."""

from __future__ import annotations

import pytest
import torch

import kernmantle as km
from kernmantle.testing import assert_close
from kernmantle.torch_ops import cuda_eigen


def symmetric(*shape, seed=0):
    root = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return root + root.mT


class Host:
    """``cuda_eigen.run`` on the CPU, from the lower triangle."""

    def __init__(self):
        self.calls = 0

    def run(self, a, w, v, info):
        self.calls += 1
        assert a.dim() == 3
        assert w.is_contiguous()
        assert w.shape == a.shape[:2]
        assert info.shape == a.shape[:1]
        lower = a.tril() + a.tril(-1).mT
        values, vectors = torch.linalg.eigh(lower)
        w.copy_(values)
        info.zero_()
        if v is not None:
            v.copy_(vectors)


@pytest.fixture(autouse=True)
def host(monkeypatch):
    found = Host()
    monkeypatch.setattr(cuda_eigen, "takes", lambda a: 0 < a.shape[-1] <= 32 and a.numel() > 0)
    monkeypatch.setattr(cuda_eigen, "run", found.run)
    return found


@pytest.mark.parametrize("shape", [(5, 5), (4, 5, 5), (2, 3, 5, 5)])
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("overwrite", [True, False])
def test_one_call_for_all_items(host, shape, lower, overwrite):
    exact = symmetric(*shape)
    a = exact.tril() + torch.full_like(exact, 9).triu(1) if lower else exact.triu() + torch.full_like(exact, 9).tril(-1)
    before = a.clone()
    w, v = found = km.linalg.eigh(a, lower=lower, overwrite_a=overwrite)
    assert found.ran == "one kernel of rotations"
    assert host.calls == 1
    assert found.info.shape == shape[:-2]
    assert_close(w, torch.linalg.eigvalsh(exact), depth=25)
    assert_close(exact @ v, v * w[..., None, :], depth=100)
    assert (v.data_ptr() == a.data_ptr()) == overwrite
    assert torch.equal(a, before) != overwrite
    assert_close(km.linalg.eigh(exact, eigvals_only=True), torch.linalg.eigvalsh(exact), depth=25)


def test_parts_and_views(host):
    exact = symmetric(4, 6, 6)
    part = km.linalg.eigh(exact, subset_by_index=(2, 4))
    assert_close(part.w, torch.linalg.eigvalsh(exact)[:, 2:5], depth=25)
    assert part.v.shape == (4, 6, 3)
    view = exact.mT.contiguous().mT[::2]
    assert_close(km.linalg.eigh(view).w, torch.linalg.eigvalsh(view), depth=25)
    wide = exact[0].expand(7, 6, 6)
    assert_close(km.linalg.eigh(wide).w, torch.linalg.eigvalsh(wide), depth=25)
    assert host.calls == 3


def test_values_in_a_range_and_large_matrices_go_elsewhere(host):
    found = km.linalg.eigh(symmetric(6, 6), subset_by_value=(0.0, 9.0))
    assert (found.w > 0).all()
    km.linalg.eigh(symmetric(33, 33))
    assert host.calls == 0


def test_gradients_go_through_it(host):
    assert torch.autograd.gradcheck(lambda r: km.linalg.eigh(r + r.mT).w, (symmetric(3, 4, 4).requires_grad_(),))
    assert host.calls > 0
