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


def test_variances_are_those_of_the_posterior():
    factors, mask, _ = grid(4, 5)
    a = km.linalg.MaskedKronecker(3.0 * km.KroneckerProduct(factors), mask, 0.2)
    whole, matrix = dense(factors, mask, 0.2 / 3)
    cells = mask.reshape(-1)
    exact = 3 * (whole - whole[:, cells] @ torch.linalg.solve(matrix, whole[cells])).diagonal()
    found = a.variance(2000, tolerance=1e-6).reshape(-1)
    assert (found / exact - 1).abs().max() < 5 * (2 / 2000) ** 0.5
    assert torch.equal(found, a.variance(2000, tolerance=1e-6).reshape(-1))


@pytest.mark.parametrize("noisy", [False, True])
def test_gradients_of_the_likelihood_and_of_means_are_those_of_the_dense_matrix(noisy):
    """By the bandwidths of two axes, the scale, the noise and the values."""
    axes = [torch.linspace(0, 1, size, dtype=torch.float64)[:, None] for size in (5, 6)]
    _, mask, y = grid(5, 6)
    cells, weight = mask.reshape(-1), torch.linspace(-1, 1, 30, dtype=torch.float64)
    eye = torch.eye(int(cells.sum()), dtype=torch.float64)
    start = [torch.tensor(value, dtype=torch.float64) for value in (0.3, 0.5, 1.7, 0.3)]

    def values(structured):
        first, second, scale, noise, targets = leaves = [t.clone().requires_grad_() for t in (*start, y)]
        factors = [km.Gaussian(width)(axis) for width, axis in zip((first, second), axes, strict=True)]
        if structured:
            a = km.linalg.MaskedKronecker(scale * km.KroneckerProduct(factors), mask, noise if noisy else 0.3)
            assert a.requires_grad
            mean = a.mean(targets, tolerance=1e-12).reshape(-1)
            fit = targets @ a.solve(targets, tolerance=1e-12).x
            trace = (a @ eye).diagonal().sum()
        else:
            whole = scale * torch.kron(*factors)
            matrix = whole[cells][:, cells] + (noise if noisy else 0.3) * eye
            mean = whole[:, cells] @ torch.linalg.solve(matrix, targets)
            fit, trace = targets @ torch.linalg.solve(matrix, targets), matrix.trace()
        total = mean @ weight + fit + trace.log()
        return torch.autograd.grad(total, leaves if noisy else [*leaves[:3], targets])

    for found, exact in zip(values(True), values(False), strict=True):
        assert torch.allclose(found, exact, rtol=1e-7, atol=1e-9)


def test_the_gradient_of_the_determinant_is_that_of_the_dense_matrix():
    """All signs of a determinant's probes are averaged: for a diagonal matrix they give it exactly."""
    noise = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    factors = [torch.diag(torch.linspace(1, 2, size, dtype=torch.float64)).requires_grad_() for size in (3, 4)]
    mask = torch.ones(3, 4, dtype=torch.bool)
    mask[1, 2] = False
    value = km.linalg.logdet(km.linalg.MaskedKronecker(km.KroneckerProduct(factors), mask, noise), steps=12).value
    cells = mask.reshape(-1)
    exact = (torch.kron(*factors)[cells][:, cells] + noise * torch.eye(11, dtype=torch.float64)).logdet()
    assert torch.allclose(value, exact)
    (found,), (wanted,) = (torch.autograd.grad(each, [noise]) for each in (value, exact))
    assert torch.allclose(found, wanted)


def test_samples_are_refused_where_a_gradient_is_recorded():
    factors, mask, y = grid(4, 5)
    a = km.linalg.MaskedKronecker(km.KroneckerProduct([factors[0].requires_grad_(), factors[1]]), mask, 0.1)
    for draw in (lambda: a.samples(y, 2), lambda: a.variance(2)):
        with pytest.raises(km.errors.GradientError, match="has no gradient"):
            draw()
        with torch.no_grad():
            assert torch.isfinite(draw()).all()


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
    a = km.linalg.MaskedKronecker(km.KroneckerProduct(factors), mask, 0.1)
    for call in (a.mean, lambda y: a.samples(y, 2)):
        with pytest.raises(km.errors.ShapeError, match="a value for each cell"):
            call(torch.zeros(20, dtype=torch.float64))
    with pytest.raises(km.errors.ParameterError, match="count must be a positive integer"):
        a.variance(0)


def test_operands_of_other_shapes_and_kinds_are_named():
    factors, mask, y = grid(5, 6)
    a = km.linalg.MaskedKronecker(km.KroneckerProduct(factors), mask, 0.1)
    for v, error, match in (
        (y.numpy(), km.errors.DtypeError, "torch tensors, not ndarray"),
        (y[1:], km.errors.ShapeError, "the operator multiplies"),
        (y[None, :, None], km.errors.ShapeError, "the operator multiplies"),
    ):
        with pytest.raises(error, match=match):
            a @ v
    with pytest.raises(km.errors.DtypeError, match="mean takes values as a torch tensor"):
        a.mean(y.numpy())
    for noise in ("a", None, float("inf"), torch.ones(2)):
        with pytest.raises(km.errors.ParameterError, match="noise must be positive"):
            km.linalg.MaskedKronecker(km.KroneckerProduct(factors), mask, noise)
    with pytest.raises(km.errors.ShapeError, match=r"batch axes \(3,\) of its scale"):
        km.linalg.MaskedKronecker(km.KroneckerProduct(factors, torch.ones(3).double()), mask, 0.1)
