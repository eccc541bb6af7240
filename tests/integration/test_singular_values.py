"""The largest singular values, and spectra of pairs of matrices, against LAPACK in float64 through scipy."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
import scipy.linalg
import torch

import kernmantle as km
from kernmantle.linalg.krylov import default_tolerance
from kernmantle.testing import assert_close

from ..arrays import normal


def with_values(m, n, values):
    left, right = (torch.linalg.qr(normal(size, len(values), seed=size)).Q for size in (m, n))
    return (left * torch.as_tensor(values, dtype=torch.float64)) @ right.mT


FALLING = [0.7**i for i in range(60)]


svd_module = importlib.import_module("kernmantle.linalg.svd")  # the package has its function by this name


class Operator:
    def __init__(self, a):
        self.a, self.shape, self.dtype, self.device = a, tuple(a.shape), a.dtype, a.device

    def __matmul__(self, v):
        return self.a @ v

    @property
    def T(self):
        return Operator(self.a.mT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(200, 80), (80, 200), (90, 90)])
@pytest.mark.parametrize("method", ["krylov", "direct"])
def test_triples_are_those_of_lapack(method, shape, dtype):
    exact = with_values(*shape, FALLING)
    a = exact.to(dtype)
    u, s, vh = found = km.linalg.svd(a, 9, method=method)
    allowed = default_tolerance(max(shape), dtype)
    expected = torch.from_numpy(scipy.linalg.svdvals(a.double().numpy())[:9])
    assert float((s - expected).abs().max()) <= allowed * expected[0]
    gaps = torch.stack(
        [
            (a.double() @ vh.mT.double() - u.double() * s).norm(dim=0),
            (a.double().mT @ u.double() - vh.mT.double() * s).norm(dim=0),
        ]
    )
    assert float(gaps.max()) <= 2 * allowed * expected[0]
    for basis in (u, vh.mT):
        assert_close(basis.double().mT @ basis.double(), torch.eye(9).double(), dtype=dtype, depth=200, magnitude=1)
    assert found.info == 0
    assert float(found.residual.max()) <= allowed
    true = float(torch.linalg.matrix_norm(a.double() - (u * s).double() @ vh.double(), 2))
    assert true <= float(found.error) * (1 + 1e-6) <= 30 * true


@pytest.mark.parametrize("power", [0, 2])
def test_randomised_values_say_how_far_off_they_are(power):
    a = with_values(300, 120, [1 / (1 + i) for i in range(100)])
    u, s, vh = found = km.linalg.svd(a, 12, method="randomised", power=power, oversample=4)
    exact = torch.from_numpy(scipy.linalg.svdvals(a.numpy()))
    off = (s[:, None] - exact).abs().amin(1)
    assert (off <= found.residual * s[0] * (1 + 1e-9)).all()
    true = float(torch.linalg.matrix_norm(a - (u * s) @ vh, 2))
    assert exact[12] <= true <= found.error <= 20 * true
    assert float(found.residual.max()) > 1e-6
    assert "randomised, 16 columns" in found.ran


def test_more_powers_are_more_accurate():
    a = with_values(300, 120, [1 / (1 + i) for i in range(100)])
    rests = [float(km.linalg.svd(a, 12, method="randomised", power=p).residual.max()) for p in (0, 1, 3)]
    assert rests[0] > 2 * rests[1] > 4 * rests[2]


@pytest.mark.parametrize("method", ["direct", "krylov", "randomised"])
def test_residuals_are_of_what_is_returned(method, monkeypatch):
    """A decomposition that is 1 % off says so."""
    right = svd_module._small
    monkeypatch.setattr(svd_module, "_small", lambda a: (right(a)[0], 1.01 * right(a)[1], right(a)[2]))
    found = km.linalg.svd(with_values(90, 90, FALLING), 3, method=method, tolerance=1.0)
    assert 0.005 < float(found.residual[0]) < 0.02


def test_a_tolerance_that_is_missed_is_told():
    a = normal(200, 150)
    with pytest.warns(km.errors.KernmantleWarning, match="a residual of .* is left where 1e-06"):
        found = km.linalg.svd(a, 5, method="randomised", tolerance=1e-6)
    assert found.info == 1
    with pytest.raises(km.errors.LinearAlgebraError, match="info 1"):
        km.linalg.svd(a, 5, method="randomised", tolerance=1e-6, check_errors=True)
    small = with_values(120, 100, [1.0, 1e-3, *[1e-12] * 50])
    with pytest.warns(km.errors.KernmantleWarning, match="residual"):
        found = km.linalg.svd(small.float(), 20, method="krylov", tolerance=1e-9)
    assert found.info == 1
    broken = torch.full((60, 50), float("nan"))
    with pytest.warns(km.errors.KernmantleWarning, match="NaN or infinities"):
        assert km.linalg.svd(broken, 3, method="randomised").info == 2
    with pytest.raises(km.errors.LinearAlgebraError, match="NaN or infinities"):
        km.linalg.svd(broken, 3, check_errors=True)


def test_operators_and_arrays_of_other_libraries():
    a = with_values(150, 90, FALLING)
    for method in ("krylov", "randomised"):
        plain, same = (km.linalg.svd(each, 4, method=method) for each in (a, Operator(a)))
        assert torch.equal(plain.s, same.s)
        assert isinstance(km.linalg.svd(a.numpy(), 4, method=method).s, np.ndarray)
    assert "Krylov" in km.linalg.svd(Operator(a), 4).ran
    assert km.linalg.svd(a, 4).ran == "torch.linalg.svd"
    assert "Krylov" in km.linalg.svd(with_values(600, 520, FALLING), 4).ran


def test_arguments_of_singular_values():
    a, errors = normal(6, 4), km.errors
    for kind, words, call in (
        (errors.ParameterError, "k must be", lambda: km.linalg.svd(a, 5)),
        (errors.ParameterError, "k must be", lambda: km.linalg.svd(a, True)),
        (errors.ParameterError, "method must", lambda: km.linalg.svd(a, 1, method="best")),
        (errors.ParameterError, "tolerance", lambda: km.linalg.svd(a, 1, tolerance=0.0)),
        (errors.ParameterError, "power must be an integer", lambda: km.linalg.svd(a, 1, power=-1)),
        (errors.ParameterError, "of an operator", lambda: km.linalg.svd(Operator(a), 1, method="direct")),
        (errors.ShapeError, "one matrix", lambda: km.linalg.svd(normal(2, 3, 3), 1)),
        (errors.DtypeError, "float32 and float64", lambda: km.linalg.svd(a.half(), 1)),
        (errors.ShapeError, "operator with", lambda: km.linalg.svd(km, 1)),
        (errors.GradientError, "direct", lambda: km.linalg.svd(a.clone().requires_grad_(), 1, method="krylov")),
    ):
        with pytest.raises(kind, match=words):
            call()


def pair(*batch, n=12, seed=0):
    a, root = normal(*batch, n, n, seed=seed), normal(*batch, n, n, seed=seed + 1)
    return a + a.mT, root @ root.mT + torch.eye(n)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("index", [None, (0, 0), (4, 11)])
def test_pairs_are_those_of_lapack(index, lower, dtype):
    a, b = pair()
    expected, _ = scipy.linalg.eigh(a.numpy(), b.numpy(), subset_by_index=index)
    noise = torch.full((12, 12), 7.0)
    read = (lambda t: t.tril() + noise.triu(1)) if lower else (lambda t: t.triu() + noise.tril(-1))
    w, v = found = km.linalg.eigh(read(a).to(dtype), read(b).to(dtype), subset_by_index=index, lower=lower)
    size = float(torch.linalg.matrix_norm(a, 2) * torch.linalg.cond(b))
    assert_close(w.double(), torch.from_numpy(expected), dtype=dtype, depth=144, magnitude=size)
    assert_close(a @ v.double(), b @ v.double() * w.double(), dtype=dtype, depth=144, magnitude=size)
    unit = torch.eye(v.shape[1], dtype=torch.float64)
    assert_close(v.double().mT @ b @ v.double(), unit, dtype=dtype, depth=144, magnitude=float(torch.linalg.cond(b)))
    assert "Cholesky factor of b" in found.ran


def test_batches_of_pairs_broadcast():
    a, b = pair(3)
    for left, right in ((a, b), (a, b[0]), (a[0], b), (a[:, None], b)):
        w = km.linalg.eigh(left, right, eigvals_only=True)
        wide = torch.broadcast_tensors(left, right)
        items = zip(*(t.reshape(-1, 12, 12).numpy() for t in wide), strict=True)
        flat = [scipy.linalg.eigh(*item, eigvals_only=True) for item in items]
        assert_close(w.reshape(-1, 12), torch.from_numpy(np.stack(flat)), depth=144, magnitude=100)


def test_pairs_that_are_not_definite_are_told():
    a, b = pair(2)
    b[1, 4, 4] = -1.0
    with pytest.raises(km.errors.LinearAlgebraError, match=r"item 1 of the batch: the leading minor of order 5 of b"):
        km.linalg.eigh(a, b)
    found = km.linalg.eigh(a, b, check_errors=False)
    assert found.info.tolist() == [0, 12 + 5]
    assert found.w[1].isnan().all()
    assert_close(found.w[0], km.linalg.eigh(a[0], b[0]).w, depth=12)


def test_gradients_of_pairs():
    a, b = pair(n=4)
    half = (a / 2).requires_grad_(), torch.linalg.cholesky(b).requires_grad_()

    def values(a, root):
        w, v = km.linalg.eigh(a + a.mT, root @ root.mT)
        return w, v.abs()

    assert torch.autograd.gradcheck(values, half)


def test_arguments_of_pairs():
    a, b = pair()
    for kind, words, call in (
        (km.errors.ShapeError, "one order", lambda: km.linalg.eigh(a, b[:3, :3])),
        (km.errors.ShapeError, "broadcast", lambda: km.linalg.eigh(a.expand(2, 12, 12), b.expand(3, 12, 12))),
        (km.errors.DtypeError, "a and b|convert", lambda: km.linalg.eigh(a, b.float())),
        (km.errors.ParameterError, "must be matrices", lambda: km.linalg.eigh(Operator(a), b)),
        (km.errors.ParameterError, "symmetric", lambda: km.linalg.eigh(a, b + normal(12, 12), check=True)),
    ):
        with pytest.raises(kind, match=words):
            call()
