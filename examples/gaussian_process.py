"""Gaussian process regression in GPyTorch: with its own kernel, with ours, and with that of KeOps if installed.

Only the covariance module differs. Ours does not store the kernel matrix above GPyTorch's size limit for Cholesky, and
kernels composed with ``+`` and ``*`` form one fused kernel.
"""
# ruff: noqa: T201

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import gpytorch
import torch

import kernmantle as km
from kernmantle.integrations.gpytorch import FusedKernel, RBFKernel

STEPS = 10


class Process(gpytorch.models.ExactGP):
    """A constant mean and a scaled kernel."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor, likelihood: Any, kernel: Any) -> None:
        super().__init__(x, y, likelihood)
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(kernel)

    def forward(self, x: torch.Tensor) -> Any:
        """Prior at some rows."""
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def kernels() -> dict[str, Callable[[], Any]]:
    """What is compared; the last one GPyTorch would need two matrices for."""
    found: dict[str, Callable[[], Any]] = {
        "GPyTorch": lambda: gpytorch.kernels.RBFKernel(ard_num_dims=3),
        "kernmantle": lambda: RBFKernel(ard_num_dims=3),
    }
    if find_spec("pykeops") is not None:
        found["KeOps"] = lambda: gpytorch.kernels.keops.RBFKernel(ard_num_dims=3)
    own = 0.5 * km.Gaussian(1.0) + 0.5 * km.Laplace(4.0)
    found["kernmantle, composed"] = lambda: FusedKernel(own, ard_num_dims=3)
    return found


def data(rows: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Three columns, of which the last says nothing."""
    source = torch.Generator().manual_seed(seed)
    x = 4 * torch.rand(rows, 3, generator=source) - 2
    return x, torch.sin(2 * x[:, 0]) * torch.cos(x[:, 1]) + 0.1 * torch.randn(rows, generator=source)


def fit(kernel: Any, x: torch.Tensor, y: torch.Tensor) -> Process:
    """Learn length scales, scale and noise by the marginal likelihood."""
    torch.manual_seed(0)
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    model = Process(x, y, likelihood, kernel)
    model.train()
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    adam = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        adam.zero_grad()
        (-objective(model(x), y)).backward()
        adam.step()
    return model


def main(rows: int) -> None:
    """Train and predict with each kernel, first as GPyTorch does with few rows, then without the matrix."""
    x, y = data(rows, 0)
    x_test, y_test = data(200, 1)
    for limit, how in ((rows, "Cholesky"), (100, "conjugate gradients")):
        errors = {}
        for name, kernel in kernels().items():
            begun = time.perf_counter()
            with gpytorch.settings.max_cholesky_size(limit), warnings.catch_warnings():
                warnings.simplefilter("ignore", gpytorch.utils.warnings.NumericalWarning)
                model = fit(kernel(), x, y).eval()
                with torch.no_grad(), gpytorch.settings.skip_posterior_variances():
                    mean = model(x_test).mean
            errors[name] = float((mean - y_test).square().mean().sqrt())
            lengths = ", ".join(f"{v:.2f}" for v in model.covar_module.base_kernel.lengthscale.flatten().tolist())
            took = time.perf_counter() - begun
            print(f"{how:20} {name:20} error {errors[name]:.4f}, length scales {lengths}, {took:5.2f} s")
        assert errors["kernmantle"] < 1.1 * errors["GPyTorch"]
        assert max(errors.values()) < 0.3


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 300)
