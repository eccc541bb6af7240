"""Gaussian processes on grids with missing cells against dense algebra in float64."""

from __future__ import annotations

import pytest
import torch

import kernmantle as km


def grid(*sizes, dtype=torch.float64):
    axes = [torch.linspace(0, 1, size, dtype=torch.float64)[:, None] for size in sizes]
    factors = [km.Matern(0.4, nu=1.5)(axis).to(dtype) for axis in axes]
    mask = torch.rand(sizes, generator=torch.Generator().manual_seed(1)) < 0.6
    values = torch.randn(int(mask.sum()), generator=torch.Generator().manual_seed(2), dtype=torch.float64).to(dtype)
    return factors, mask, values


def dense(factors, mask, noise):
    whole = factors[0].double()
    for factor in factors[1:]:
        whole = torch.kron(whole, factor.double())
    cells = mask.reshape(-1)
    return whole, whole[cells][:, cells] + noise * torch.eye(int(cells.sum()), dtype=torch.float64)


@pytest.mark.parametrize("sizes", [(7,), (5, 6), (3, 4, 5)])
@pytest.mark.parametrize("options", [{}, {"refine": True}])
def test_means_and_products_are_those_of_the_dense_matrix(sizes, options):
    factors, mask, y = grid(*sizes)
    a = km.linalg.MaskedKronecker(km.KroneckerProduct(factors), mask, 0.1)
    whole, matrix = dense(factors, mask, 0.1)
    assert torch.allclose(a @ y, matrix @ y)
    assert torch.allclose(a @ torch.eye(len(y), dtype=torch.float64), matrix)
    expected = (whole[:, mask.reshape(-1)] @ torch.linalg.solve(matrix, y)).reshape(sizes)
    assert torch.allclose(a.mean(y, tolerance=1e-9, **options), expected, atol=1e-6)
    estimate = km.linalg.logdet(a, steps=60, probes=60)
    assert abs(float(estimate.value - matrix.logdet())) < 4 * float(estimate.error) + 1e-6


def test_samples_have_the_moments_of_the_posterior():
    factors, mask, y = grid(4, 5)
    a = km.linalg.MaskedKronecker(km.KroneckerProduct(factors), mask, 0.2)
    whole, matrix = dense(factors, mask, 0.2)
    cells = mask.reshape(-1)
    drawn = a.samples(y, 1000, tolerance=1e-6).reshape(20, 1000)
    mean = whole[:, cells] @ torch.linalg.solve(matrix, y)
    covariance = whole - whole[:, cells] @ torch.linalg.solve(matrix, whole[cells])
    assert (drawn.mean(1) - mean).abs().max() < 5 * 1000**-0.5
    assert (drawn.cov() - covariance).abs().max() < 8 * 1000**-0.5
    assert (drawn.cov() - whole).abs().max() > 0.3


def test_float32_claims_what_float64_measures():
    factors, mask, y = grid(6, 7, dtype=torch.float32)
    a = km.linalg.MaskedKronecker(km.KroneckerProduct(factors), mask, 0.5)
    found = a.solve(y, tolerance=1e-5)
    _, matrix = dense(factors, mask, 0.5)
    true = (y.double() - matrix @ found.x.double()).norm() / y.double().norm()
    assert found.converged
    assert abs(float(found.residual) - float(true)) < 1e-2 * float(true)


def test_errors_name_the_argument():
    factors, mask, _ = grid(4, 5)
    with pytest.raises(km.errors.ShapeError, match="mask must be of bool"):
        km.linalg.MaskedKronecker(km.KroneckerProduct(factors), mask[:3], 0.1)
    with pytest.raises(km.errors.ShapeError, match="mask must be of bool"):
        km.linalg.MaskedKronecker(km.KroneckerProduct(factors), mask.int(), 0.1)
    with pytest.raises(km.errors.ShapeError, match="not square"):
        km.linalg.MaskedKronecker(km.KroneckerProduct([factors[0][:2], factors[1]]), mask, 0.1)
    with pytest.raises(km.errors.DtypeError, match="KroneckerProduct of tensors"):
        km.linalg.MaskedKronecker(factors, mask, 0.1)
    with pytest.raises(km.errors.ParameterError, match="noise must be positive"):
        km.linalg.MaskedKronecker(km.KroneckerProduct(factors), mask, 0.0)
