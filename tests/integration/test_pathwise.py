"""Samples of Gaussian processes: priors against kernels, posteriors against Cholesky in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import kernmantle as km
from kernmantle.estimators import GaussianProcessRegressor, KernelRidge, gaussian_process
from kernmantle.linalg.pathwise import ROWS, Prior, has_prior

from ..cases import pairwise


def kernel_of(name, ard=False):
    options, _ = ROWS[name]
    scales = {"lengthscales": torch.tensor([0.5, 1.0, 2.0])} if ard else {"bandwidth": 0.8}
    return getattr(km, name.split()[0])(**scales, **options)


@pytest.mark.parametrize(("name", "ard", "factor"), pairwise(ROWS, [False, True], [None, 2.5]))
def test_samples_of_the_prior_have_the_covariance_of_the_kernel(name, ard, factor):
    kernel = kernel_of(name, ard) if factor is None else factor * kernel_of(name, ard)
    x = torch.randn(12, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    values = Prior.of(kernel, x, 2000, 3000, 1)(x)
    found, expected = values @ values.T / values.shape[1], kernel(x)
    # Standard errors: of 3000 samples and of 2000 features, relative to the diagonal.
    assert (found - expected).abs().max() < 5 * (3000**-0.5 + 2000**-0.5) * expected.diagonal().max()
    assert (found - 1.5 * expected).abs().max() > 0.25 * expected.diagonal().max()


def test_other_kernels_are_refused():
    x = torch.rand(5, 2, dtype=torch.float64)
    for kernel in (km.Cauchy(1.0), km.Gaussian(1.0) + km.Matern(1.0, nu=1.5), km.Laplace(1.0, p=1.3)):
        assert not has_prior(kernel)
        with pytest.raises(km.errors.ParameterError, match="samples of the prior"):
            km.linalg.pathwise_posterior(kernel, x, x[:, 0], 0.1)
    with pytest.raises(km.errors.ParameterError, match="samples must be"):
        km.linalg.pathwise_posterior(km.Gaussian(1.0), x, x[:, 0], 0.1, samples=0)
    with pytest.raises(km.errors.ParameterError, match="y must have shape"):
        km.linalg.pathwise_posterior(km.Gaussian(1.0), x, x, 0.1)


@pytest.mark.parametrize("memory", [None, 100])
def test_posteriors_are_those_of_cholesky(memory):
    source = torch.Generator().manual_seed(3)
    x = torch.rand(300, 2, generator=source, dtype=torch.float64)
    y = (5 * x.sum(1)).sin() + 0.3 * torch.randn(300, generator=source, dtype=torch.float64)
    z = torch.cat([torch.rand(20, 2, generator=source, dtype=torch.float64), torch.full((1, 2), 5.0).double()])
    kernel, noise = 1.5 * km.Matern(0.7, nu=1.5), 2.0
    found = km.linalg.pathwise_posterior(
        kernel, x, y, noise, samples=400, features=4000, block=100, tolerance=1e-3, passes=200.0, memory=memory
    )
    matrix, between = kernel(x, diagonal=noise), kernel(z, x)
    mean = between @ torch.linalg.solve(matrix, y)
    variance = kernel.diagonal(z) - (between * torch.linalg.solve(matrix, between.T).T).sum(1)
    assert (found.mean(z) - mean).abs().max() < 1e-2
    # Of 400 samples a variance is off by a fifteenth, and their features add a little.
    assert ((found.variance(z) / variance).log().abs() < 0.4).all()
    drawn = found.samples(z)
    assert drawn.shape == (21, 400)
    assert ((drawn.mean(1) - mean).abs() < 5 * (variance / 400).sqrt() + 0.02).all()
    assert torch.equal(found.samples(z), drawn)
    assert isinstance(found.mean(z.numpy()), np.ndarray)


def data(n=400):
    random = np.random.default_rng(0)
    x = random.uniform(size=(n, 2))
    return x, np.sin(5 * x.sum(1)) + 0.1 * random.normal(size=n)


def test_processes_of_many_rows_predict_as_those_of_few():
    x, y = data()
    options = {"kernel": "matern", "kernel_params": {"nu": 1.5}, "bandwidth": 0.5, "noise": 1.0, "optimise": False}
    whole = GaussianProcessRegressor(**options, solver="cholesky").fit(x, y)
    blocks = GaussianProcessRegressor(**options, solver="sketch_and_project").fit(x, y)
    z = np.random.default_rng(1).uniform(size=(30, 2))
    (mean, std), (other, spread) = whole.predict(z, return_std=True), blocks.predict(z, return_std=True)
    assert np.abs(mean - other).max() < 0.03
    assert (np.abs(np.log(spread / std)) < 0.6).all()
    assert blocks.sample_y(z, 3).shape == (30, 3)
    with pytest.raises(ValueError, match="no covariances"):
        blocks.predict(z, return_cov=True)
    with pytest.raises(ValueError, match="64 functions"):
        blocks.sample_y(z, 65)
    with pytest.raises(ValueError, match="is none of"):
        GaussianProcessRegressor(solver="magic").fit(x, y)


def test_estimators_take_blocks_from_a_size_on(monkeypatch):
    x, y = data()
    monkeypatch.setattr(gaussian_process, "LARGE", 300)
    assert GaussianProcessRegressor(optimise=False, noise=2.0).fit(x, y)._process is not None
    assert GaussianProcessRegressor("cauchy", optimise=False, noise=0.1).fit(x, y)._process is None
    assert GaussianProcessRegressor(optimise=False, noise=0.1).fit(x[:200], y[:200])._process is None
    kernel = __import__("sys").modules["kernmantle.linalg.kernel"]
    monkeypatch.setattr(kernel, "ENDLESS", {"cpu": 300})
    found = km.linalg.solve_kernel(km.Gaussian(1.0), torch.from_numpy(x), torch.from_numpy(y), 10.0)
    assert "sketch-and-project" in found.ran
    fitted = KernelRidge(alpha=10.0, bandwidth=1.0).fit(x, y)
    other = KernelRidge(alpha=10.0, bandwidth=1.0, solver="cholesky").fit(x, y)
    assert np.abs(fitted.predict(x) - other.predict(x)).max() < 1e-2
    ridge = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    tracked = km.linalg.solve_kernel(km.Gaussian(1.0), torch.from_numpy(x), torch.from_numpy(y), ridge)
    assert "sketch-and-project" not in tracked.ran
