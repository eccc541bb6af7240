"""Blocks of rows, sampled posteriors, masked grids, pairs and triples on CUDA, against float64 on the CPU."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import torch

import kernmantle as km
from kernmantle.estimators import GaussianProcessRegressor, KernelRidge

from ..arrays import normal

pytestmark = pytest.mark.cuda
LAPLACE = km.Laplace(1.0, p=2)


def task(n, columns=None):
    x = torch.rand(n, 3, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    shape = (n,) if columns is None else (n, columns)
    return x, (4 * x.sum(1)).sin().reshape(n, *(1,) * (len(shape) - 1)) + 0.2 * normal(*shape)


def system(x, ridge):
    return torch.exp(-torch.cdist(x, x)) + ridge * torch.eye(len(x), dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("where", ["resident", "copied", "streamed", "memory-mapped"])
@pytest.mark.parametrize("rank", [None, 200])
def test_blocks_of_rows_solve_the_system(where, rank, dtype, tmp_path):
    x, y = task(3000, 2)
    rows, targets = x.to(dtype), y.to(dtype)
    if where == "memory-mapped":
        mapped = np.memmap(tmp_path / "x", rows.numpy().dtype, "w+", shape=tuple(rows.shape))
        mapped[:] = rows.numpy()
        rows, targets = mapped, targets.numpy()
    elif where == "resident":
        rows, targets = rows.cuda(), targets.cuda()
    found = km.linalg.sketch_and_project(
        LAPLACE, rows, targets, 5.0, block=500, rank=rank, tolerance=1e-3, passes=100.0, device="cuda",
        memory=20_000 if where in ("streamed", "memory-mapped") else None,
    )  # fmt: skip
    assert found.converged.all()
    assert ("streamed" in found.ran) == (where in ("streamed", "memory-mapped"))
    c = torch.as_tensor(found.x).double().cpu()
    assert ((y - system(x, 5.0) @ c).norm(dim=0) <= 1.01e-3 * y.norm(dim=0)).all()


def test_an_interrupted_fit_goes_on_as_if_it_had_not_been(tmp_path):
    x, y = (t.float().cuda() for t in task(2000))
    options = {"block": 200, "tolerance": 1e-9, "check_errors": False}
    with pytest.warns(km.errors.KernmantleWarning):
        whole = km.linalg.sketch_and_project(LAPLACE, x, y, 5.0, passes=3.0, **options)
    for passes in (1.0, 1.7, 3.0):
        with pytest.warns(km.errors.KernmantleWarning):
            parts = km.linalg.sketch_and_project(
                LAPLACE, x, y, 5.0, passes=passes, checkpoint=tmp_path / "fit.pt", **options
            )
    assert torch.equal(whole.x, parts.x)


@pytest.mark.parametrize("memory", [None, 20_000])
def test_posteriors_are_those_of_cholesky(memory):
    x, y = task(2000)
    z = torch.cat([task(20)[0], normal(1, 3) + 9])
    kernel, noise = 1.5 * km.Matern(0.7, nu=1.5), 2.0
    found = km.linalg.pathwise_posterior(
        kernel, x.float(), y.float(), noise, samples=400, features=4000, block=500, tolerance=1e-3, passes=200.0,
        memory=memory, device="cuda",
    )  # fmt: skip
    matrix, between = kernel(x, diagonal=noise), kernel(z, x)
    mean = between @ torch.linalg.solve(matrix, y)
    variance = kernel.diagonal(z) - (between * torch.linalg.solve(matrix, between.T).T).sum(1)
    assert (found.mean(z.float()).cpu() - mean).abs().max() < 1e-2
    # Of 400 samples a variance is off by a fifteenth, and their features add a little.
    assert ((found.variance(z.float()).cpu() / variance).log().abs() < 0.4).all()


def test_estimators_of_many_rows_predict_as_those_of_few():
    x, y = (t.float().cuda() for t in task(3000))
    whole = KernelRidge(5.0, kernel=LAPLACE, solver="cholesky").fit(x, y).predict(x)
    for options in ({"solver": "sketch_and_project"}, {"solver": "cg"}, {"centres": 1500}):
        assert (KernelRidge(5.0, kernel=LAPLACE, **options).fit(x, y).predict(x) - whole).abs().max() < 0.05, options
    given = {"kernel": "matern", "bandwidth": 0.7, "noise": 2.0, "optimise": False}
    (mean, std), (other, spread) = (
        GaussianProcessRegressor(**given, solver=solver).fit(x, y).predict(x[:50], return_std=True)
        for solver in ("cholesky", "sketch_and_project")
    )
    assert (mean - other).abs().max() < 0.03
    assert ((spread / std).log().abs() < 0.6).all()


def test_means_and_gradients_of_grids_with_missing_cells():
    mask = torch.rand(40, 30, generator=torch.Generator().manual_seed(1)) < 0.6
    y = normal(int(mask.sum()))

    def gradients(device, structured):
        width = torch.tensor(0.2, dtype=torch.float64, device=device, requires_grad=True)
        noise = torch.tensor(0.5, dtype=torch.float64, device=device, requires_grad=True)
        axes = [torch.linspace(0, 1, size, dtype=torch.float64, device=device)[:, None] for size in (40, 30)]
        factors, cells, values = [km.Gaussian(width)(axis) for axis in axes], mask.reshape(-1).to(device), y.to(device)
        if structured:
            a = km.linalg.MaskedKronecker(km.KroneckerProduct(factors), mask.to(device), noise)
            mean = a.mean(values, tolerance=1e-11).reshape(-1)
        else:
            whole = torch.kron(*factors)
            matrix = whole[cells][:, cells] + noise * torch.eye(len(values), dtype=torch.float64, device=device)
            mean = whole[:, cells] @ torch.linalg.solve(matrix, values)
        found = torch.autograd.grad((mean * torch.linspace(-1, 1, 1200).to(mean)).sum(), [width, noise])
        return [mean.detach().cpu(), *(part.cpu() for part in found)]

    for one, exact in zip(gradients("cuda", True), gradients("cpu", False), strict=True):
        assert torch.allclose(one, exact, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("method", ["direct", "krylov", "randomised"])
def test_the_largest_singular_values(method, dtype):
    u, v = torch.linalg.qr(normal(600, 200)).Q, torch.linalg.qr(normal(200, 200, seed=1)).Q
    s = torch.logspace(0, -8, 200, dtype=torch.float64)
    a = ((u * s) @ v.T).to(dtype).cuda()
    found = km.linalg.svd(a, 6, method=method)
    rounding = len(a) * torch.finfo(dtype).eps
    allowed = rounding if method != "randomised" else float(found.residual.max()) + rounding
    assert ((found.s.double().cpu() - s[:6]).abs() <= allowed).all()
    whole = (found.u.double() * found.s.double()) @ found.vh.double()
    truth = float(torch.linalg.matrix_norm(a.double() - whole, 2))
    assert truth <= 1.01 * float(found.error) + rounding


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(60, 60), (5, 40, 40), (300, 300)])
def test_pairs_of_a_generalised_problem(shape, dtype):
    root, other = normal(*shape), normal(*shape, seed=1)
    a, b = other + other.mT, root @ root.mT / shape[-1] + torch.eye(shape[-1], dtype=torch.float64)
    w, v = km.linalg.eigh(a.to(dtype).cuda(), b.to(dtype).cuda())
    w, v, n, unit = w.double().cpu(), v.double().cpu(), shape[-1], torch.finfo(dtype).eps
    flat = zip(a.reshape(-1, n, n).numpy(), b.reshape(-1, n, n).numpy(), strict=True)
    exact = torch.from_numpy(np.stack([scipy.linalg.eigh(*pair, eigvals_only=True) for pair in flat])).reshape(w.shape)
    assert ((w - exact).abs() <= 20 * n * unit * exact.abs().amax(-1, keepdim=True)).all()
    assert (v.mT @ b @ v - torch.eye(n, dtype=torch.float64)).abs().max() <= 20 * n * unit
