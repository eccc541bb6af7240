"""Float32 matrices as two halves of 11 bits: what the split keeps, and when it is taken."""

import pytest
import torch

import kernmantle as km
from kernmantle.testing import assert_close
from kernmantle.torch_ops import split_matmul
from kernmantle.torch_ops.split_matmul import split, split_rows, worthwhile


def matrix(scale, rows=5, columns=300):
    values = torch.randn(rows, columns, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * scale
    return values.clamp(-3e38, 3e38).float()


@pytest.mark.parametrize("scale", [1e-38, 1e-30, 1e-3, 1.0, 1e5, 1e30, 3e37])
@pytest.mark.parametrize("dim", [0, 1])
def test_both_halves_together_are_the_matrix(scale, dim):
    given = matrix(scale)
    parts = split(given, dim)
    assert parts.high.dtype == parts.low.dtype == torch.float16
    assert parts.scale.shape[dim] == 1
    whole = (parts.high.double() + parts.low.double()) * parts.scale.double()
    assert_close(whole, given, dtype=torch.float32, magnitude=given.abs().amax(dim, keepdim=True).double())


def test_rows_of_different_sizes_keep_their_digits():
    given = matrix(1.0) * torch.tensor([1e-20, 1.0, 0.0, 1e20, 1e-3])[:, None]
    parts = split(given, 1)
    whole = (parts.high.double() + parts.low.double()) * parts.scale.double()
    assert_close(whole, given, dtype=torch.float32, magnitude=given.abs().amax(1, keepdim=True).double())


def test_rows_a_few_at_a_time_are_those_at_once(monkeypatch):
    given = matrix(1.0) * torch.tensor([1e-20, 1.0, 0.0, 1e20, 1e-3])[:, None]
    monkeypatch.setattr(split_matmul, "_PIECE", 2 * 4 * given.shape[1])
    for one, other in zip(vars(split_rows(given)).values(), vars(split(given, 1)).values(), strict=True):
        assert torch.equal(one, other)


def test_a_matrix_that_nobody_needs_is_split_in_place():
    given = matrix(1.0)
    spent = given.clone()
    for one, other in zip(vars(split(spent, 0, spent=True)).values(), vars(split(given, 0)).values(), strict=True):
        assert torch.equal(one, other)
    assert not torch.equal(spent, given)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_stays_so(value):
    given = matrix(1.0)
    given[1, 7] = value
    parts = split(given, 1)
    whole = parts.high.float() + parts.low.float()
    assert not whole[1, 7].isfinite()
    assert whole[[0, 2, 3, 4]].isfinite().all()


def test_a_cpu_multiplies_as_ever():
    assert not worthwhile(torch.ones(1 << 12, 1 << 12), torch.ones(1 << 12, 1 << 10))


@pytest.fixture(params=["tf32", "ieee"])
def asked_of_torch(request):
    """A precision of products set by torch's newer name, which its older one then refuses to tell."""
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = request.param
    yield
    torch.backends.cuda.matmul.fp32_precision = before


@pytest.mark.usefixtures("asked_of_torch")
def test_either_way_to_ask_torch_for_tf32_is_understood():
    x = matrix(1.0).T
    gap = (x[:, None] - x).double()
    wanted = -(gap * torch.exp(-(gap**2).sum(-1, keepdim=True) / 50)).sum(1) / 25
    assert not worthwhile(x, x.T)
    assert_close(km.Gaussian(5.0).gradient(x, x, torch.ones(300)), wanted, depth=3000)
