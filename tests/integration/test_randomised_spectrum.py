"""Largest eigenvalues by products with random columns, against LAPACK in float64; no claim is too small."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import torch

import kernmantle as km
from kernmantle.testing import assert_close

N = 150


def definite(values, seed=0):
    source = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(N, len(values), generator=source, dtype=torch.float64)).Q
    return (basis * torch.as_tensor(values, dtype=torch.float64)) @ basis.mT


SLOW = [1 / (1 + i) for i in range(100)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("power", [0, 1, 3])
@pytest.mark.parametrize("oversample", [0, 8])
def test_they_say_how_far_off_they_are(dtype, power, oversample):
    a = definite(SLOW).to(dtype)
    w, v = found = km.linalg.eigh(
        a, subset_by_index=(N - 12, N - 1), method="randomised", power=power, oversample=oversample
    )
    exact = torch.from_numpy(scipy.linalg.eigvalsh(a.double().numpy()))
    unit = torch.finfo(dtype).eps
    off = (w.double()[:, None] - exact).abs().amin(1)
    assert (off <= found.residual.double() * exact[-1] * (1 + 1e-3) + 50 * unit).all()
    gap = torch.linalg.matrix_norm(a.double() - (v * w).double() @ v.double().mT, 2)
    assert gap <= float(found.error) * (1 + 1e-6) <= 30 * gap
    assert gap >= exact[-13] - 50 * unit
    true = (a.double() @ v.double() - v.double() * w.double()).norm(dim=0) / exact[-1]
    assert (true <= found.residual.double() * 1.05 + 50 * unit).all()
    assert_close(v.double().mT @ v.double(), torch.eye(12).double(), dtype=dtype, depth=N, magnitude=1)
    assert (w.diff() >= 0).all()
    assert f"randomised, {12 + oversample} columns" in found.ran


def test_more_powers_are_more_accurate():
    a = definite(SLOW)
    rests = [
        float(km.linalg.eigh(a, subset_by_index=(N - 9, N - 1), method="randomised", power=p).residual.max())
        for p in (0, 2, 8)
    ]
    assert rests[0] > 2 * rests[1] > 4 * rests[2]


def test_a_matrix_of_low_rank_is_found_whole():
    a = definite([5.0, 3.0, 2.0])
    found = km.linalg.eigh(a, subset_by_index=(N - 3, N - 1), method="randomised")
    assert_close(found.w, torch.tensor([2.0, 3.0, 5.0]).double(), depth=N, magnitude=5)
    assert float(found.error) <= 1e-12


def test_large_negative_values_are_seen_in_the_residuals_or_found():
    a = definite([3.0, -10.0, 1.0, *[0.5] * 60])
    found = km.linalg.eigh(a, subset_by_index=(N - 2, N - 1), method="randomised", oversample=3, power=8)
    assert_close(found.w[1], torch.tensor(3.0).double(), depth=1000, magnitude=10)
    assert found.error >= 10


def test_kernels_operators_numpy_and_either_triangle():
    x = torch.randn(N, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    kernel = km.Gaussian(1.0)
    whole = kernel(x)
    options = {"subset_by_index": (N - 20, N - 1), "method": "randomised", "power": 4}
    exact = torch.from_numpy(scipy.linalg.eigvalsh(whole.numpy(), subset_by_index=(N - 20, N - 1)))
    for a, lower in ((kernel.operator(x), True), (whole.tril(), True), (whole.triu(), False)):
        found = km.linalg.eigh(a, lower=lower, **options)
        assert float((found.w - exact).abs().max()) <= float(found.residual.max()) * exact[-1] + 1e-10
        assert found.info == 0
    named = km.linalg.eigh(whole.numpy(), **options)
    assert all(isinstance(part, np.ndarray) for part in (named.w, named.v, named.residual, named.error))
    assert torch.equal(km.linalg.eigh(whole, **options, eigvals_only=True), km.linalg.eigh(whole, **options).w)
    other = km.linalg.eigh(whole, **options | {"power": 0}, generator=torch.Generator().manual_seed(9)).w
    assert not torch.equal(other, km.linalg.eigh(whole, **options | {"power": 0}).w)


def test_numbers_that_are_none_are_told():
    a = definite(SLOW)
    a[3, 3] = float("nan")
    found = km.linalg.eigh(a, subset_by_index=(N - 2, N - 1), method="randomised", check_errors=False)
    assert found.info == N
    assert found.w.isnan().all()
    with pytest.raises(km.errors.LinearAlgebraError, match="NaN or infinities"):
        km.linalg.eigh(a, subset_by_index=(N - 2, N - 1), method="randomised")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"subset_by_index": None}, km.errors.ParameterError, "finds the upper end"),
        ({"subset_by_index": (0, 3)}, km.errors.ParameterError, "finds the upper end"),
        ({"tolerance": 1e-3}, km.errors.ParameterError, "neither b nor a tolerance"),
        ({"b": torch.eye(N).double()}, km.errors.ParameterError, "neither b nor a tolerance"),
        ({"oversample": -1}, km.errors.ParameterError, "oversample must be an integer"),
        ({"power": 1.5}, km.errors.ParameterError, "power must be an integer"),
        ({"a": torch.eye(N).double().expand(2, N, N)}, km.errors.ShapeError, "not a batch"),
        ({"a": torch.eye(N).double().requires_grad_()}, km.errors.GradientError, "no gradient"),
    ],
)
def test_errors_come_before_anything_runs(change, error, message):
    options = {"a": definite(SLOW), "subset_by_index": (N - 2, N - 1), "method": "randomised"}
    with pytest.raises(error, match=message):
        km.linalg.eigh(**options | change)
