"""The solvers of kermac and kernel_tools against what they are said to compute, in float64."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from kernmantle import compat, errors
from kernmantle.compat import kermac
from kernmantle.compat.kermac import linalg as kermac_linalg
from kernmantle.compat.kernel_tools import kernels, linalg
from kernmantle.testing import assert_close

from ..arrays import normal


def spd(*shape, seed=0):
    root = normal(*shape, seed=seed)
    return root @ root.mT + shape[-1] * torch.eye(shape[-1], dtype=torch.float64)


@pytest.mark.parametrize("overwrite", [True, False])
@pytest.mark.parametrize("mode", list(kermac.FillMode))
def test_kermac_solves_for_rows(overwrite, mode):
    exact, b = spd(3, 6, 6), normal(3, 2, 6, seed=1)
    a, rows = exact.clone(), b.clone()
    x, factored, solved = kermac_linalg.solve_cholesky(
        a, rows, fill_mode=mode, overwrite_a=overwrite, overwrite_b=overwrite, check_errors=True
    )
    assert_close(x @ exact, b, depth=36)
    assert factored.tolist() == solved.tolist() == [0, 0, 0]
    assert torch.equal(rows, b) != overwrite
    assert (x.data_ptr() == rows.data_ptr()) == overwrite
    general = normal(3, 6, 6, seed=4)
    x, _, _ = kermac_linalg.solve_lu(general.clone(), b.clone(), overwrite_a=overwrite, overwrite_b=overwrite)
    assert_close(x @ general, b, depth=1000)


@pytest.mark.parametrize("mode", list(kermac.FillMode))
def test_kermac_eigh(mode):
    a = spd(2, 5, 5)
    w, v, info = kermac_linalg.eigh(a.clone(), fill_mode=mode, overwrite_a=True, check_errors=True)
    assert_close(v @ torch.diag_embed(w) @ v.mT, a, depth=25)
    assert info.shape == (2,)
    assert info.dtype == torch.int32


@pytest.mark.parametrize("mode", list(kermac.FillMode))
def test_the_fill_mode_is_that_of_the_array(mode):
    """The other triangle is not read: it is NaN here."""
    exact, b = spd(2, 6, 6), normal(2, 3, 6, seed=1)
    junk = torch.full_like(exact, torch.nan)
    half = exact.triu() + junk.tril(-1) if mode is kermac.FillMode.UPPER else exact.tril() + junk.triu(1)
    for overwrite in (False, True):
        x, _, _ = kermac_linalg.solve_cholesky(half.clone(), b.clone(), fill_mode=mode, overwrite_a=overwrite)
        assert_close(x @ exact, b, depth=36)
        w, v, _ = kermac_linalg.eigh(half.clone(), fill_mode=mode, overwrite_a=overwrite)
        assert_close(v @ torch.diag_embed(w) @ v.mT, exact, depth=36)


def test_kermac_failures():
    a, b = -spd(1, 3, 3), normal(1, 2, 3)
    assert kermac_linalg.solve_cholesky(a, b)[1].tolist() == [1]
    with pytest.raises(ValueError, match="Non-zero"):
        kermac_linalg.solve_cholesky(a, b, check_errors=True)
    with pytest.raises(ValueError, match="Non-zero"):
        kermac_linalg.solve_lu(torch.zeros(1, 3, 3), torch.ones(1, 2, 3), check_errors=True)
    for wrong, kind in (
        (lambda: kermac_linalg.solve_cholesky(a.numpy(), b), TypeError),
        (lambda: kermac_linalg.solve_cholesky(a.half(), b), TypeError),
        (lambda: kermac_linalg.solve_lu(a[:, :2], b), ValueError),
        (lambda: kermac_linalg.solve_lu(a, b.mT), ValueError),
        (lambda: kermac_linalg.solve_lu(a, b.float()), ValueError),
        (lambda: kermac_linalg.solve_lu(a.expand(2, 3, 3), b), ValueError),
        (lambda: kermac_linalg.eigh(a[0, 0]), ValueError),
    ):
        with pytest.raises(kind):
            wrong()


def test_kernel_tools_kernels():
    x, z = normal(7, 3), normal(5, 3, seed=1)
    distances = torch.cdist(x, z)
    assert_close(kernels.euclidean(x, z), distances.square(), depth=8)
    assert_close(kernels.euclidean(x, z, squared=False), distances, depth=8)
    assert_close(kernels.gaussian(x, z, 1.5), torch.exp(-distances.square() / 4.5), depth=8)
    assert_close(kernels.laplacian(x, z, 1.5), torch.exp(-distances / 1.5), depth=8)
    assert_close(kernels.dispersal(x, z, 1.5, 0.7), torch.exp(-(distances**0.7) / 1.5), depth=16)


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_kernel_tools_tangent_kernels(depth):
    """Against the recursion over layers."""
    x, z, bias = normal(6, 4), normal(5, 4, seed=1), 0.3
    x_unit, z_unit = (t / t.norm(dim=-1, keepdim=True) for t in (x, z))
    for rows, others, found in (
        (x, z, kernels.ntk_relu(x, z, depth, bias)),
        (x_unit, z_unit, kernels.ntk_relu_unit_sphere(x_unit, z_unit, depth, bias)),
        (x, x, kernels.ntk_relu(x, None, depth, bias)),
    ):
        lengths = rows.norm(dim=-1)[:, None] * others.norm(dim=-1)
        plain = rows @ others.mT
        tangent = plain + bias**2
        for _ in range(1, depth):
            cosine = (plain / lengths).clip(-1, 1)
            slope = 1 - torch.acos(cosine) / np.pi
            plain = lengths * (cosine * slope + (1 - cosine.square()).sqrt() / np.pi)
            tangent = tangent * slope + plain + bias**2
        # The angle of a row with itself is lost in the recursion's acos.
        assert (found - tangent).abs().max() < 1e-6 * tangent.abs().max()


@pytest.mark.parametrize("overwrite", [True, False])
@pytest.mark.parametrize("lower", [True, False])
def test_kernel_tools_spectra(overwrite, lower):
    exact = spd(8, 8)
    expected = torch.linalg.eigvalsh(exact)
    w, v = linalg.cusolver_eigh(exact.clone(), overwrite_a=overwrite, lower=lower)
    assert_close(w, expected, depth=64)
    assert_close(exact @ v, v * w, depth=64)
    w, v = linalg.cusolver_eigh(exact.clone(), overwrite_a=overwrite, subset_by_index=[2, 4], lower=lower)
    assert_close(w, expected[2:5], depth=64)
    assert v.shape == (8, 3)
    assert_close(linalg.cusolver_eigh(exact.clone(), eigvals_only=True), expected, depth=64)
    batch = torch.stack([exact, 2 * exact])
    w, v = linalg.cusolver_batched_eigh(batch.clone(), overwrite_a=overwrite, lower=lower)
    assert_close(w[1], 2 * expected, depth=64)
    assert_close(batch @ v, v * w[:, None], depth=64)


@pytest.mark.parametrize("overwrite", [True, False])
def test_kernel_tools_lu(overwrite):
    exact, targets = normal(6, 6), normal(3, 6, seed=1)
    a, rows = exact.clone(), targets.clone()
    factor, pivots = linalg.cusolver_getrf(a, overwrite_a=overwrite)
    assert (factor.data_ptr() == a.data_ptr()) == overwrite
    assert pivots.dtype == torch.int64
    x = linalg.cusolver_getrs(factor, pivots, rows, overwrite_targets=overwrite)
    assert (x.data_ptr() == rows.data_ptr()) == overwrite
    assert_close(exact @ x.mT, targets.mT, depth=1000)


def test_kernel_tools_bad_input():
    a = spd(4, 4)
    for wrong, words in (
        (lambda: linalg.cusolver_eigh(a[0]), "axes"),
        (lambda: linalg.cusolver_eigh(a[:2]), "square"),
        (lambda: linalg.cusolver_eigh(a.half()), "float32"),
        (lambda: linalg.cusolver_eigh(a, subset_by_index=(2, 7)), "subset_by_index"),
        (lambda: linalg.cusolver_getrf(torch.zeros(2, 2)), "info of getrf"),
        (lambda: linalg.cusolver_getrs(a, torch.ones(4), a[:, :2]), "dimension"),
        (lambda: linalg.cusolver_getrs(a, torch.ones(4), a.float()), "dtype"),
    ):
        with pytest.raises(ValueError, match=words):
            wrong()
    if not torch.cuda.is_available():
        with pytest.raises(errors.DeviceError, match="NVIDIA GPU"):
            linalg.cusolver_mg_eigh(a)


def test_kernel_tools_workspaces():
    for found in (
        linalg.cusolver_eigh_workspace_requirements(500, torch.float32),
        linalg.cusolver_batched_eigh_workspace_requirements(50, 10, torch.float64),
        linalg.cusolver_getrf_workspace_requirements(300, 500, torch.float64),
    ):
        assert len(found) == 2
        assert found[0] > 0
        assert all(isinstance(size, int) for size in found)
    few, many = (linalg.cusolver_mg_eigh_workspace_requirements(5000, torch.float64, count) for count in (2, 8))
    assert 0 < many < few


PROGRAM = """
import kernmantle.compat
kernmantle.compat.install("kermac")
kernmantle.compat.install("kernel_tools")
import torch, kermac, kermac.linalg
import kernel_tools.kernels as kernels
from kernel_tools.linalg import *
x = torch.randn(2, 20, 3)
a = kermac.run_kernel(kermac.kernel_descriptor_laplace_l2, x, x, bandwidth=10.0)
b = torch.randn(2, 4, 20)
x, info, _ = kermac.linalg.solve_cholesky(a=a, b=b, fill_mode=kermac.FillMode.UPPER, check_errors=True)
assert (x @ a - b).abs().max() < 1e-2
K = kernels.laplacian(b[0], b[0], bandwidth=20.0).double()
w, v = cusolver_eigh(K.clone(), overwrite_a=True)
assert ((v * w) @ v.T - K).abs().max() < 1e-10
print("done")
"""


def test_existing_programs_run(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], check=False, cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "done\n", done.stderr
    assert {"kermac", "kernel_tools"} <= set(compat.MODULES)
